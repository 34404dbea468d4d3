"""A board like the A100 whose kernels follow a law: latency a + b / f, energy with the voltage squared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CLOCKS = tuple(range(300, 1416, 15))


@dataclass(frozen=True)
class LawKernel:
    """A kernel by the law."""

    fixed_s: float
    core_s_ghz: float
    core_j: float
    memory_j: float

    def compute(self, mhz: np.ndarray | float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(seconds, watts, idle watts) at clocks."""
        ghz = np.asarray(mhz, dtype=float) / 1e3
        square = (1 + 0.284 * np.maximum(0, (ghz - 1.0) / 0.41) ** 1.5) ** 2
        idle = 25 + 15 * square + 5 * ghz * square
        seconds = self.fixed_s + self.core_s_ghz / ghz
        return seconds, idle + (self.core_j * square + self.memory_j) / seconds, idle
