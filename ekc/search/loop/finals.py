"""The end of a run: finalists are executed and compared with the reference, then measured again in turn.
`SelectionRule` (`search/data/selection.py`) says which kernels are finalists, and which of them is the best.

The order is A B C, C B A, so that drift of the device affects all finalists equally.

A library may be a contender: its algorithms are checked and timed, and the best is measured with the
finalists. Nothing of it goes into the record file, so a resumed run measures it again; and nothing of it can
win.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import LibraryDevice, Metering, Timing
from ekc.errors import DeviceError, EkcError, ToolchainError
from ekc.ir.comparison.compare import DATA_SEED
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.verify import WRONG_RESULT, verify, verify_if_executable, verify_library_kernel
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import FINALS, MEASURING
from ekc.search.data.library_result import LibraryResult, make_library_result
from ekc.search.data.result import REJECTED_VERDICTS, UNCHECKED_PREFIX
from ekc.search.data.selection import SelectionRule, compute_objective, sort_by_latency
from ekc.search.data.trial import Trial
from ekc.search.loop.measure import MeasurementFailure, Measurer

FIRST_FINAL_REPEAT = 1
"""Repeat number of the first final measurement; repeat 0 is the timing of the trial."""
MAX_ALGORITHMS = 16
"""Algorithms that are asked of a library."""
MAX_METERED = 3
"""Algorithms that are metered to choose one: the fastest, among those nearly as fast as the fastest."""


class LibraryContender:
    """The algorithms of a library for one operator on the device of a run."""

    def __init__(self, op: Operator, measurer: Measurer, rule: SelectionRule) -> None:
        self.op, self._measurer, self._rule = op, measurer, rule
        self.note = "not measured, because the run ended before"
        """Why there is no result; "" where there is one."""
        self._kernel: Any = None
        self._verdicts: dict[Any, str] = {}
        self._failures: list[str] = []
        self._timings: list[Timing] = []
        self._meterings: list[Metering] = []

    def choose(self, can_continue: Callable[[], bool]) -> None:
        """Check and time the algorithms, meter the fastest, and choose the best by the objective."""
        device = self._measurer.device
        if self._measurer.is_replay or not isinstance(device, LibraryDevice):
            self.note = f"{device.label} runs no library; a real GPU does"
            return
        try:
            kernels = device.list_library_kernels(self.op, MAX_ALGORITHMS)
        except DeviceError as problem:
            self.note = str(problem)
            return
        reference = ReferenceEvaluator.from_seed(self.op, DATA_SEED)
        latencies_s: dict[Any, float] = {}
        for kernel in kernels:
            if latencies_s and not can_continue():
                break
            latency_s = self._check_and_time(device, kernel, reference)
            if latency_s is not None:
                latencies_s[kernel] = latency_s
        self._choose_best(device, latencies_s, can_continue)

    def _check_and_time(
        self, device: LibraryDevice, kernel: Any, reference: ReferenceEvaluator
    ) -> float | None:
        """Latency of an algorithm; None where it is wrong or fails, which is noted."""
        try:
            verdict = verify_library_kernel(device, kernel, reference)
            if verdict.startswith(WRONG_RESULT):
                self._failures.append(f"{kernel.name}: {verdict}")
                return None
            timing = device.time(kernel)
        except DeviceError as problem:
            self._failures.append(f"{kernel.name}: {problem}")
            return None
        self._verdicts[kernel] = verdict
        self._measurer.cost.add_timing(timing, self._measurer.device.peaks.board_power_w)
        return timing.latency_s

    def _choose_best(
        self, device: LibraryDevice, latencies_s: dict[Any, float], can_continue: Callable[[], bool]
    ) -> None:
        if not latencies_s:
            self.note = f"no algorithm of {len(self._failures)} works: {self._failures[0]}"
            return
        self.note = ""
        ranked = sorted(latencies_s, key=lambda kernel: latencies_s[kernel])
        max_slowdown = 0.0 if self._rule.objective == "latency" else self._rule.max_slowdown
        limit_s = latencies_s[ranked[0]] * (1 + max_slowdown)
        near = [kernel for kernel in ranked if latencies_s[kernel] <= limit_s][:MAX_METERED]
        self._kernel = near[0]
        if len(near) == 1 or not can_continue():
            return
        values: dict[Any, float] = {}
        for kernel in near:
            try:
                metering = device.meter(kernel, seconds=MEASURING.label_window_s)
            except DeviceError as problem:
                self._failures.append(f"{kernel.name}: {problem}")
                continue
            self._measurer.cost.add_metering(metering)
            energy_j = metering.power_w * latencies_s[kernel]
            values[kernel] = float(compute_objective(self._rule.objective, latencies_s[kernel], energy_j))
        self._kernel = min(values, key=lambda kernel: values[kernel]) if values else near[0]

    def measure(self, repeat: int, is_metered: bool) -> datetime | None:
        """Measure the chosen algorithm once more, as a finalist is. Returns the time of its metering; None
        where it was not metered. Does nothing where none was chosen."""
        device = self._measurer.device
        if self._kernel is None or not isinstance(device, LibraryDevice):
            return None
        try:
            timing = device.time(self._kernel, repeat=repeat)
            self._timings.append(timing)
            self._measurer.cost.add_timing(timing, device.peaks.board_power_w)
            if is_metered:
                metering = device.meter(self._kernel, seconds=MEASURING.final_window_s, repeat=repeat)
                self._meterings.append(metering)
                self._measurer.cost.add_metering(metering)
                return datetime.now(UTC)
        except DeviceError as problem:
            # The figures before it remain valid.
            self._failures.append(f"{self._kernel.name}: {problem}")
        return None

    def make_result(self, best: Trial, in_turn: bool) -> tuple[LibraryResult | None, str]:
        """(The result beside the run's best kernel, or None; why there is none, or "")."""
        if not self._timings:
            return None, self.note or self._failures[-1]
        proposed = len(self._verdicts) + len(self._failures), tuple(self._failures)
        measured = self._timings, self._meterings
        name, verdict = self._kernel.name, self._verdicts[self._kernel]
        return make_library_result(name, verdict, proposed, measured, best, in_turn), ""


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
        times: list[datetime | None] = []
        own_times: list[datetime | None] = []
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
                if isinstance(one, LibraryContender):
                    times.append(one.measure(number, is_metered))
                    continue
                self._remeasure(one, number, repeat == 0, is_metered)
                self.report("final", one)
                window_s = MEASURING.final_window_s
                own_times.append(self.measurer.find_metering_time(one.schedule, window_s, number))
                times.append(own_times[-1])
        gap = timedelta(seconds=FINALS.max_metering_gap_s)
        self.is_library_in_turn = _is_in_turn(times, gap)
        is_in_turn = _is_in_turn(own_times, gap)
        for c in finalists:
            c.in_turn = is_in_turn
        return [c for c in finalists if c.ok and (c.metered or not self._needs_energy)]

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
