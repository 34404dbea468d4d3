"""The spill model: probability that a kernel needs no more registers than it can have.

The registers of a kernel are estimated before it is compiled, and the rule "registers" refuses schedules that
need too many. Near the limit the estimate errs, and a kernel that spills is four to three hundred times
slower than expected. Such a latency is not used to learn other latencies: it made the surrogate uncertain
about all similar kernels, and uncertainty scores high, so that a search spent its trials on more of them.
Instead the model learns registers needed, as ptxas reports them, over registers estimated. The acquisition
multiplies the expected improvement by the probability (constrained expected improvement: Gardner and others,
2014).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import Resources
from ekc.gaussian_process import Array, normal_cdf
from ekc.ir.hardware.memory import WARP
from ekc.ir.hardware.target import LaunchLimits
from ekc.search.cost_model.features import REGISTERS_COLUMN, THREADS_COLUMN
from ekc.search.cost_model.surrogate import Surrogate
from ekc.search.data.defaults import SPILLS

REGISTER_ALLOCATION_UNIT = 8
"""Registers per thread are allocated in multiples of this."""


def has_spilled(resources: Sequence[Resources]) -> bool:
    """Whether any launch spills registers to memory."""
    return any(r.stack_bytes > SPILLS.stack_bytes for r in resources)


def count_needed_registers(resources: Sequence[Resources]) -> float:
    """Registers per thread of the largest launch: those it has, and its stack in registers."""
    return max(r.registers + r.stack_bytes / 4 for r in resources)


class SpillModel:
    """Model of the registers needed over the registers estimated, on a device with these limits."""

    def __init__(self, limits: LaunchLimits) -> None:
        self._limits = limits
        self._surrogate = Surrogate()
        self._max_log_error = 0.0
        """Largest log of registers needed over estimated so far."""

    def learn(self, rows: NDArray[np.float32], resources: Sequence[Sequence[Resources]]) -> None:
        """Learn from the feature rows of compiled kernels, and the resources that ptxas reported for each."""
        estimated = _get_estimated_registers(rows)
        needed = np.array([count_needed_registers(r) for r in resources])
        self._max_log_error = max(self._max_log_error, float(np.log(needed / estimated).max()))
        self._surrogate.learn(rows, estimated, needed)

    def predict_log_feasibility(self, rows: NDArray[np.float32]) -> Array:
        """Log of the probability that each kernel does not spill. 0 if no estimate was ever wrong by the
        distance to the limit, and for all kernels before enough were compiled."""
        log = np.zeros(len(rows))
        estimated, budget = np.log(_get_estimated_registers(rows)), np.log(self._find_register_budget(rows))
        near = np.flatnonzero(estimated + self._max_log_error > budget)
        if self._surrogate.is_ready and len(near):
            mean, std = self._surrogate.predict(rows[near], np.exp(estimated[near]))
            log[near] = np.log(np.maximum(normal_cdf((budget[near] - mean) / std), SPILLS.min_feasibility))
        return log

    def _find_register_budget(self, rows: NDArray[np.float32]) -> Array:
        """Registers per thread that a kernel may need without a spill."""
        threads = np.ceil(_decode_count(rows, THREADS_COLUMN) / WARP) * WARP
        units = np.floor(self._limits.registers_per_sm / threads / REGISTER_ALLOCATION_UNIT)
        per_thread = np.minimum(units * REGISTER_ALLOCATION_UNIT, self._limits.registers_per_thread)
        return np.asarray(per_thread + SPILLS.stack_bytes / 4)


def _get_estimated_registers(rows: NDArray[np.float32]) -> Array:
    """Registers per thread that the analysis estimates, from feature rows."""
    return _decode_count(rows, REGISTERS_COLUMN)


def _decode_count(rows: NDArray[np.float32], column: int) -> Array:
    """The count of a feature column log2(1 + count)."""
    return np.asarray(np.exp2(rows[:, column].astype(np.float64)) - 1.0)
