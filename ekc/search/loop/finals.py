"""The end of a run: finalists executed and compared with the reference, then measured again in turn.

Turn by turn, there and back (A B C C B A), so that drift falls on all alike and the winner is not just the
luckiest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from ekc.devices.device import Metering
from ekc.errors import DeviceError, EkcError, ToolchainError
from ekc.ir.interpreter.compare import DATA_SEED
from ekc.ir.interpreter.tolerance import ReferenceEvaluator
from ekc.ir.operator import Operator
from ekc.runtime.verify import UNSAFE_KERNEL, WRONG_RESULT, verify, verify_if_executable
from ekc.search.data.candidate import Candidate
from ekc.search.loop.measure import FINAL_WINDOW_S, MeasurementFailure, Measurer
from ekc.search.loop.selection import make_rank_key, select_winners, sort_by_latency

FINALIST_COUNT = 4
"""By the objective."""
FASTEST_COUNT = 2
"""By latency, where they are not among those."""
FINAL_REPEATS = 3
REJECTED_VERDICTS = (WRONG_RESULT, UNSAFE_KERNEL)
"""How the verdict on a kernel begins that may not win."""
UNCHECKED_PREFIX = "unchecked"
"""How the status of a kernel begins that could not be executed; it may not win either."""
FIRST_FINAL_REPEAT = 1
"""Draw 0 was the first look; the finals are draws of their own."""
MAX_METERING_GAP = timedelta(seconds=60)
"""Between two meterings, beyond which they were not taken in turn: one takes some 7 s."""


@dataclass
class Finals:
    """Picks finalists, checks them, measures them again."""

    op: Operator
    measurer: Measurer
    objective: str
    max_slowdown: float
    report: Callable[[str, Candidate], None] = lambda name, about: None
    """Takes the name of an event and the finalist that it is about."""
    _expected: ReferenceEvaluator | None = None

    def run(self, candidates: list[Candidate], can_continue: Callable[[], bool]) -> list[Candidate]:
        """The finalists, right and freshly measured. `measure()` says whether there is time for more than
        what the objective needs once."""
        finalists = self.pick_finalists(candidates)
        for c in finalists:
            c.timings, c.meterings = c.timings[:1], c.meterings[:1]
        turns: list[tuple[Candidate, int]] = []
        for repeat in range(FINAL_REPEATS):
            if repeat and not can_continue():
                break
            for c in finalists[:: -1 if repeat % 2 else 1]:
                self._remeasure(
                    c, FIRST_FINAL_REPEAT + repeat, repeat == 0, self._needs_energy or can_continue()
                )
                self.report("final", c)
                turns.append((c, FIRST_FINAL_REPEAT + repeat))
        in_turn = _is_in_turn(
            [self.measurer.find_metering_time(c.schedule, FINAL_WINDOW_S, draw) for c, draw in turns]
        )
        for c in finalists:
            c.in_turn = in_turn
        return [c for c in finalists if c.ok and (c.metered or not self._needs_energy)]

    @property
    def _needs_energy(self) -> bool:
        """A GPU that cannot be metered (a part of one, by MIG) can still be tuned for latency."""
        return self.objective != "latency"

    def pick_finalists(self, candidates: list[Candidate]) -> list[Candidate]:
        """The fastest that are right, and among those near them the best by the objective."""
        fast = self.select_correct(sort_by_latency(candidates), FASTEST_COUNT)
        if not fast:
            return []
        limit = fast[0].latency_s * (1 + self.max_slowdown)
        near = [c for c in candidates if c.ok and c.latency_s <= limit]
        good = self.select_correct(
            sorted(near, key=lambda c: make_rank_key(c, self.objective)), FINALIST_COUNT
        )
        return list({id(c): c for c in (*good, *fast)}.values())

    def select_correct(self, ranked: list[Candidate], count: int) -> list[Candidate]:
        """The first `count` candidates whose kernel computes the operator."""
        found: list[Candidate] = []
        for c in ranked:
            if len(found) == count:
                break
            if c.ok and self.check(c):
                found.append(c)
        return found

    def check(self, candidate: Candidate) -> bool:
        """Execute the compiled PTX once per schedule, on chosen blocks; the verdict is filed."""
        if not candidate.checked:
            self._verify(candidate)
            self.report("check", candidate)
        return candidate.ok

    def _verify(self, candidate: Candidate) -> None:
        verdict = self.measurer.find_verdict(candidate.schedule)
        if verdict is None:
            try:
                verdict = self._execute(candidate)
            except ToolchainError:
                raise
            except DeviceError as problem:
                # It faulted or hung where it would run.
                candidate.status = self.measurer.record_failure(
                    candidate.schedule, f"device: {problem}"
                ).status
                return
            except EkcError as problem:
                # Says nothing of the kernel, so nothing is filed: another ekc may be able to.
                candidate.status = f"{UNCHECKED_PREFIX}: {problem}"
                return
            self.measurer.record_verdict(candidate.schedule, verdict)
        candidate.checked = verdict
        if verdict.startswith(REJECTED_VERDICTS):
            candidate.status = verdict

    def _execute(self, candidate: Candidate) -> str:
        if self._expected is None:
            self._expected = ReferenceEvaluator.from_seed(self.op, DATA_SEED)
        what = candidate.schedule, candidate.kernel, self._expected
        here = verify_if_executable(self.measurer.device, *what)
        if here is None:
            return str(verify(*what))
        if here.fault:
            return str(here)
        try:
            machine = verify(*what)
        except EkcError as problem:
            # Right on the device, and that is where it will run; what nobody could look for is told.
            return f"{here}; the PTX machine could not look for races and stray accesses: {problem}"
        return f"{machine}; {here}" if machine.fault else f"{here}; {machine}"

    def _remeasure(self, candidate: Candidate, repeat: int, is_first: bool, is_metered: bool) -> None:
        timing = self.measurer.time(candidate.schedule, lambda: candidate.kernel, repeat)
        metering: Metering | MeasurementFailure | None = None
        if is_metered:
            metering = self.measurer.meter(
                candidate.schedule, lambda: candidate.kernel, FINAL_WINDOW_S, repeat
            )
        for outcome in (timing, metering) if self._needs_energy else (timing,):
            if isinstance(outcome, MeasurementFailure):
                # A repeat that fails is on file; what was measured before it stands.
                candidate.status = outcome.status if is_first else candidate.status
                return
        if is_first:
            candidate.timings = []
        if is_first and is_metered:
            candidate.meterings = []
        candidate.timings.append(timing)  # type: ignore[arg-type]
        if isinstance(metering, Metering):
            candidate.meterings.append(metering)

    def select_winners(self, finalists: list[Candidate]) -> tuple[Candidate, Candidate]:
        """(best by the objective within the slowdown, fastest)."""
        return select_winners(finalists, self.objective, self.max_slowdown)


def _is_in_turn(times: list[datetime | None]) -> bool:
    """Whether meterings were taken one after another in this order. Some may be on file since another run
    had the same finalist: what drifted in between would count as a difference between kernels."""
    known = [t for t in times if t is not None]
    steps = [later - sooner for sooner, later in pairwise(known)]
    return len(known) == len(times) and all(timedelta(0) <= step <= MAX_METERING_GAP for step in steps)
