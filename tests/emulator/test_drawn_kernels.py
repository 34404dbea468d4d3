"""Whatever ekc can emit runs in the PTX machine, agrees with float64, is clean, and waits as foretold."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ekc.ir.schedule import Schedule
from tests.emulator.drawn import BRED, TYPED, bred, stepped
from tests.emulator.generated import run
from tests.emulator.predicted import executed, predicted
from tests.ir.drawn_operators import FIRST
from tests.ir.typed import TRIPLES, rescheduled, retyped

CASES = 320


@st.composite
def steps(draw: st.DrawFn) -> Schedule:
    """Any small operator of any types with whatever steps come."""

    def choose(options: Any) -> Any:
        return draw(st.sampled_from(options))

    schedule, types = stepped(choose, FIRST), draw(st.sampled_from((None, *TRIPLES)))
    return schedule if types is None else rescheduled(schedule, retyped(schedule.op, types))


def from_the_space() -> st.SearchStrategy[Schedule]:
    """What the tuner can breed, at full depth."""
    return st.builds(bred, st.sampled_from(sorted(BRED | TYPED)), st.integers(0, 2**32 - 1))


@settings(
    max_examples=CASES,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.one_of(from_the_space(), steps()))
def test_a_drawn_kernel_is_right_and_clean(schedule: Schedule) -> None:
    ran = run(schedule)
    ran.check()
    # No choice of the compiler's can change how often threads wait for each other or exchange values.
    found, foretold = executed(ran), predicted(schedule)
    for name in ("barriers", "shuffles"):
        assert found[name] == round(foretold[name]), f"{name}\n{schedule.to_python()}"
