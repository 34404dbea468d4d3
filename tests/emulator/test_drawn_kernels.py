"""Whatever ekc can emit runs in the PTX machine, agrees with float64, is clean, and waits as foretold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ekc
from ekc.codegen.generate import generate
from ekc.ir.schedule.schedule import Schedule
from tests.emulator.drawn import BRED, MORE, bred, stepped
from tests.emulator.generated import compiled, run
from tests.emulator.predicted import executed, predicted
from tests.ir.drawn_operators import FIRST
from tests.ir.typed import TRIPLES, Types, rescheduled, retyped

CASES = max(320, settings.default.max_examples)
"""2,000 by `pytest --hypothesis-profile=many`."""


@st.composite
def steps(draw: st.DrawFn) -> Schedule:
    """Any small operator of any types with whatever steps come."""

    def choose(options: Any) -> Any:
        return draw(st.sampled_from(options))

    schedule, types = stepped(choose, FIRST), draw(st.sampled_from((None, *TRIPLES)))
    return schedule if types is None else rescheduled(schedule, retyped(schedule.op, types))


def from_the_space() -> st.SearchStrategy[Schedule]:
    """What the tuner can breed, at full depth."""
    return st.builds(bred, st.sampled_from(sorted(BRED | MORE)), st.integers(0, 2**32 - 1))


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


def test_what_the_compiler_widens_over_the_end_of_an_array_and_never_reads_is_fine() -> None:
    """Three floats of shared memory come by one load of four, the last of which nobody reads."""
    op = ekc.einsum("ab,bc->ac", (1, 2), (2, 2))
    schedule = (
        Schedule(op).fuse("a", "c").split("b", (3,)).split("a_c", (2,)).cache_write("C")
        .cache_read("A", "shared").compute_at("A.shared", None).cache_read("A.shared", "register")
    )  # fmt: skip
    ran = run(schedule)
    assert "ld.shared.v4" in compiled(ran.made.source, "sm_80")
    ran.check()


@pytest.mark.parametrize("types", [("int8", "int32", "int32"), ("int8", "float32", "float32")])
def test_bytes_joined_into_words_may_reach_over_the_end_of_an_array_but_none_that_is_used(
    types: Types,
) -> None:
    """91 bytes of shared memory come in six loads of four words; of the last word used, 3 bytes are there."""
    schedule = (
        Schedule(retyped(ekc.matmul(2, 7, 13, transpose_a=True, transpose_b=True), types))
        .reorder("i", "k", "j").split("i", (2,)).bind("i.0", "block.x")
        .cache_read("A", "register").cache_read("B", "shared", order=(1, 0))
    )  # fmt: skip
    run(schedule).check()
    assert "B_shared[91]" in compiled(generate(schedule).source, "sm_80")
    (report,) = run(schedule, ptx=lambda *asked: compiled(*asked).replace("[91]", "[90]")).reports
    assert any("load of 16 bytes" in found.message for found in report.findings)


def test_integers_multiplied_by_epilogue_after_epilogue_still_fit() -> None:
    """Three inputs of 1,000 multiply beyond int32: the harness has to draw smaller ones."""
    once = ekc.matmul(3, 2, 1).epilogue(lambda c, u: c * u, u=(3, 2))
    op = once.epilogue(lambda c, v: c * v, v=(3, 2))
    ran = run(Schedule(retyped(op, ("int32", "int32", "int32"))))
    ran.check()
    assert np.abs(ran.expected[0]).max() > 1000
