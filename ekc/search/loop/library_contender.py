"""A library as a contender: its algorithms are checked and timed, the best is measured with the finalists.

Nothing of it goes into the record file, so a resumed run measures it again; and nothing of it can win.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ekc.devices.device import LibraryDevice, Metering, Timing
from ekc.errors import DeviceError
from ekc.ir.comparison.compare import DATA_SEED
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.operator import Operator
from ekc.runtime.verify import WRONG_RESULT, verify_library_kernel
from ekc.search.data.defaults import MEASURING
from ekc.search.data.library_result import LibraryResult, make_library_result
from ekc.search.data.selection import SelectionRule, compute_objective
from ekc.search.data.trial import Trial
from ekc.search.loop.measure import Measurer

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
        self.metered_at: list[datetime] = []
        """Time of each metering in the finals."""

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

    def measure(self, repeat: int, is_metered: bool) -> None:
        """Measure the chosen algorithm once more, as a finalist is. Does nothing where none was chosen."""
        device = self._measurer.device
        if self._kernel is None or not isinstance(device, LibraryDevice):
            return
        try:
            timing = device.time(self._kernel, repeat=repeat)
            self._timings.append(timing)
            self._measurer.cost.add_timing(timing, device.peaks.board_power_w)
            if is_metered:
                metering = device.meter(self._kernel, seconds=MEASURING.final_window_s, repeat=repeat)
                self._meterings.append(metering)
                self.metered_at.append(datetime.now(UTC))
                self._measurer.cost.add_metering(metering)
        except DeviceError as problem:
            # The figures before it remain valid.
            self._failures.append(f"{self._kernel.name}: {problem}")

    def make_result(self, best: Trial, in_turn: bool) -> tuple[LibraryResult | None, str]:
        """(The result beside the run's best kernel, or None; why there is none, or "")."""
        if not self._timings:
            return None, self.note or self._failures[-1]
        proposed = len(self._verdicts) + len(self._failures), tuple(self._failures)
        measured = self._timings, self._meterings
        name, verdict = self._kernel.name, self._verdicts[self._kernel]
        return make_library_result(name, verdict, proposed, measured, best, in_turn), ""
