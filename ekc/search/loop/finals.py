"""The end of a run: finalists are executed and compared with the reference, then measured again in turn.
`SelectionRule` (`search/data/selection.py`) says which kernels are finalists, and which of them is the best.

The order is A B C, C B A, so that drift of the device affects all finalists equally.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Metering
from ekc.errors import DeviceError, EkcError, ToolchainError
from ekc.ir.comparison.compare import DATA_SEED
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.verify import verify, verify_if_executable
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import FINALS, MEASURING
from ekc.search.data.result import REJECTED_VERDICTS, UNCHECKED_PREFIX
from ekc.search.data.selection import SelectionRule, sort_by_latency
from ekc.search.loop.library_contender import LibraryContender
from ekc.search.loop.measure import MeasurementFailure, Measurer

FIRST_FINAL_REPEAT = 1
"""Repeat number of the first final measurement; repeat 0 is the timing of the trial."""


@dataclass
class Finals:
    """Picks finalists, checks them and measures them again."""

    op: Operator
    measurer: Measurer
    get_kernel: Callable[[Schedule], CompiledKernel]
    rule: SelectionRule
    report: Callable[[str, Candidate], None] = lambda name, about: None
    """Called with the name of an event and the finalist that it is about."""
    library: LibraryContender | None = None
    """Measured in turn with the finalists."""
    is_library_in_turn: bool = False
    _reference: ReferenceEvaluator | None = None

    def run(self, candidates: list[Candidate], can_continue: Callable[[], bool]) -> list[Candidate]:
        """Pick, check and measure the finalists. Returns those that are correct and measured. While
        `can_continue` holds, each is measured `repeats` times; in any case once."""
        finalists = self.pick_finalists(candidates)
        for c in finalists:
            c.timings, c.meterings = c.timings[:1], c.meterings[:1]
        turns: list[tuple[Candidate | LibraryContender, int]] = []
        contenders: list[Candidate | LibraryContender] = [*finalists]
        if self.library is not None and finalists:
            self.library.choose(can_continue)
            contenders.append(self.library)
        for repeat in range(FINALS.repeats):
            if repeat and not can_continue():
                break
            number = FIRST_FINAL_REPEAT + repeat
            for one in contenders[:: -1 if repeat % 2 else 1]:
                is_metered = self._needs_energy or can_continue()
                turns.append((one, number))
                if isinstance(one, LibraryContender):
                    one.measure(number, is_metered)
                    continue
                self._remeasure(one, number, repeat == 0, is_metered)
                self.report("final", one)
        self._note_turns(finalists, turns)
        return [c for c in finalists if c.ok and (c.metered or not self._needs_energy)]

    def _note_turns(
        self, finalists: list[Candidate], turns: list[tuple[Candidate | LibraryContender, int]]
    ) -> None:
        """Note whether the finalists were metered in turn, and the library with them."""
        window_s, gap = MEASURING.final_window_s, timedelta(seconds=FINALS.max_metering_gap_s)
        times: list[datetime | None] = []
        ours: list[datetime | None] = []
        of_library = iter(self.library.metered_at if self.library else ())
        for one, number in turns:
            if isinstance(one, LibraryContender):
                times.append(next(of_library, None))
            else:
                times.append(self.measurer.find_metering_time(one.schedule, window_s, number))
                ours.append(times[-1])
        in_turn, self.is_library_in_turn = _is_in_turn(ours, gap), _is_in_turn(times, gap)
        for c in finalists:
            c.in_turn = in_turn

    @property
    def _needs_energy(self) -> bool:
        """Whether a finalist must be metered: a MIG instance can be tuned for latency alone."""
        return self.rule.objective != "latency"

    def pick_finalists(self, candidates: list[Candidate]) -> list[Candidate]:
        """Pick the fastest correct candidates, and the best by the objective among those nearly as fast."""
        fast = self.select_correct(sort_by_latency(candidates), FINALS.fastest_count)
        if not fast:
            return []
        ranked = self.rule.rank_near(candidates, fast[0].latency_s)
        good = self.select_correct(ranked, FINALS.finalist_count)
        return list({id(c): c for c in (*good, *fast)}.values())

    def select_correct(self, ranked: list[Candidate], count: int) -> list[Candidate]:
        """Select the first `count` candidates whose kernel computes the operator."""
        found: list[Candidate] = []
        for c in ranked:
            if len(found) == count:
                break
            if c.ok and self.check(c):
                found.append(c)
        return found

    def check(self, candidate: Candidate) -> bool:
        """Execute the kernel on chosen blocks, once per schedule, and store the verdict; whether it is ok."""
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
                # The kernel faulted or hung on the device.
                failure = self.measurer.record_failure(candidate.schedule, f"device: {problem}")
                candidate.status = failure.status
                return
            except EkcError as problem:
                # No property of the kernel, so nothing is stored: another version of ekc may execute it.
                candidate.status = f"{UNCHECKED_PREFIX}: {problem}"
                return
            self.measurer.record_verdict(candidate.schedule, verdict)
        candidate.checked = verdict
        if verdict.startswith(REJECTED_VERDICTS):
            candidate.status = verdict

    def _execute(self, candidate: Candidate) -> str:
        """Execute a kernel on the device, if it runs there, and in the PTX machine. Returns the verdict."""
        if self._reference is None:
            self._reference = ReferenceEvaluator.from_seed(self.op, DATA_SEED)
        arguments = candidate.schedule, self.get_kernel(candidate.schedule), self._reference
        on_device = verify_if_executable(self.measurer.device, *arguments)
        if on_device is None:
            return str(verify(*arguments))
        if on_device.fault:
            return str(on_device)
        try:
            emulated = verify(*arguments)
        except EkcError as problem:
            # Correct on the device, where it will run; the verdict names the checks that are missing.
            return f"{on_device}; the PTX machine could not look for races and stray accesses: {problem}"
        return f"{emulated}; {on_device}" if emulated.fault else f"{on_device}; {emulated}"

    def _remeasure(self, candidate: Candidate, repeat: int, is_first: bool, is_metered: bool) -> None:
        schedule, get_kernel = candidate.schedule, partial(self.get_kernel, candidate.schedule)
        timing = self.measurer.time(schedule, get_kernel, repeat)
        metering: Metering | MeasurementFailure | None = None
        if is_metered:
            metering = self.measurer.meter(schedule, get_kernel, MEASURING.final_window_s, repeat)
        for outcome in (timing, metering) if self._needs_energy else (timing,):
            if isinstance(outcome, MeasurementFailure):
                # The failure of a repeat is stored; the figures before it remain valid.
                candidate.status = outcome.status if is_first else candidate.status
                return
        if is_first:
            candidate.timings = []
        if is_first and is_metered:
            candidate.meterings = []
        candidate.timings.append(timing)  # type: ignore[arg-type]
        if isinstance(metering, Metering):
            candidate.meterings.append(metering)
            candidate.metering_s = candidate.metering_s or self.measurer.cost.metering_s


def _is_in_turn(times: list[datetime | None], max_gap: timedelta) -> bool:
    """Whether meterings were taken one after another in this order. Those of another run with the same
    finalist were not: drift of the device since then would look like a difference between kernels."""
    stored = [t for t in times if t is not None]
    gaps = [later - earlier for earlier, later in pairwise(stored)]
    return len(stored) == len(times) and all(timedelta(0) <= gap <= max_gap for gap in gaps)
