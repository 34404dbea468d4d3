"""The probes of a real job's GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ekc.governor.actuators.nvml_board import NvmlBoard, explained
from ekc.governor.live.job import Job
from ekc.governor.live.steps import StepReader
from ekc.governor.live.units import ProbeOf
from ekc.governor.protocols import Probe
from ekc.governor.samples import Samples

SAMPLE_S = 0.1


def nvml_probe_of(job: Job, steps: Path | None) -> ProbeOf:
    """Probes that watch as long as the job runs."""
    counted = StepReader(steps) if steps else _unknown
    return lambda gpu: PollingProbe(gpu, job.running, counted)


def _unknown() -> None:
    return None


class PollingProbe:
    """Reads NVML while `record` waits."""

    simulated = False

    def __init__(self, gpu: str, running: Callable[[], bool], steps: Callable[[], float | None]) -> None:
        self._board = NvmlBoard(gpu)
        self.label = f"NVML, {self._board.name}"
        self.running = running
        self.steps = steps
        self.now: Callable[[], float] = time.monotonic

    def energy_j(self) -> float:
        """The total-energy counter."""
        return float(self._ask("nvmlDeviceGetTotalEnergyConsumption")) / 1000

    def counters(self, seconds: float) -> dict[str, float] | None:
        """None."""
        return None

    def record(self, seconds: float) -> Samples:
        """Ten readings a second."""
        end = self.now() + seconds
        rows: list[tuple[float, ...]] = []
        while self.running() and self.now() < end:
            use = self._ask("nvmlDeviceGetUtilizationRates")
            watts = self._ask("nvmlDeviceGetPowerUsage") / 1000
            clock = self._ask("nvmlDeviceGetClockInfo", self._board.library.NVML_CLOCK_SM)
            rows.append((self.now(), watts, float(use.gpu), float(use.memory), float(clock)))
            time.sleep(max(0.0, min(SAMPLE_S, end - self.now())))
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit") / 1000
        return Samples(*np.array(rows).reshape(-1, 5).T, power_limit_w=limit, sensor_s=1.0)

    def _ask(self, function: str, *arguments: Any) -> Any:
        return explained(function, getattr(self._board.library, function), self._board.handle, *arguments)


__all__ = ["PollingProbe", "Probe", "nvml_probe_of"]
