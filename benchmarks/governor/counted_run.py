"""A simulated run whose kernel counters can be read, as GPOEO and ODPP do, and whose progress is known."""

from __future__ import annotations

import numpy as np

from ekc.governor.samples import Values
from ekc.governor.simulation.simulated_run import SimulatedJob, SimulatedRun

COUNTER_NOISE = 0.03
"""Relative standard deviation of kernel counters."""
COUNTER_SLOWDOWNS = {"rtx3090": 1.10, "h200": 1.0}
"""Slowdown factor of each card during a counter window: kernels are replayed by a profiler, not by GPM."""


class CountedRun(SimulatedRun):
    """A `SimulatedRun` with counters. `counter_windows`: (time, true phase of the job) at the start of each
    window."""

    def __init__(self, job: SimulatedJob, seed: int = 0, has_hooks: bool = False) -> None:
        super().__init__(job, seed, has_hooks)
        self.counter_windows: list[tuple[float, int]] = []

    def get_progress(self) -> float:
        """Number of finished stretches, with the finished part of the current one."""
        return self._stretch_index + (1.0 - self._remaining_share if self.is_running() else 0.0)

    def read_counters(self, seconds: float) -> dict[str, float] | None:
        """Mean counters of the next `seconds` (use of pipes and memory, 0 to 100), with the slowdown that
        they cost on the card; None after the end of the job."""
        if not self.is_running():
            return None
        self.counter_windows.append((self.now(), self.get_regime()))
        begin = len(self._recent_spans)
        self._run_until(self.now() + seconds, COUNTER_SLOWDOWNS[self.job.card.name])
        return self._sample_counters(np.concatenate(self._recent_spans[begin:]))

    def _sample_counters(self, spans: Values) -> dict[str, float]:
        stages = self.job.stages
        seconds, which = spans[:, 0], spans[:, 4].astype(int)
        work = np.bincount(which, weights=seconds / spans[:, 3], minlength=len(stages)) / seconds.sum()
        busy_s = np.bincount(which, weights=seconds, minlength=len(stages))
        pipe = np.array([s.pipe_util for s in stages])
        tensor = np.array([s.tensor_share for s in stages])
        exact = {
            "sm_active": float(busy_s @ np.array([s.sm_util for s in stages]) / seconds.sum()),
            "dram": float(work @ np.array([s.memory_util for s in stages])),
            "tensor": float(work @ (pipe * tensor)),
            "fma": float(work @ (pipe * (1 - tensor))),
        }
        return {k: v * float(self._rng.normal(1.0, COUNTER_NOISE)) for k, v in exact.items()}
