"""Whether a kernel will spill, learned from what ptxas said of the others.

The registers of a kernel are counted before it is compiled, and the rule "registers" refuses what needs too
many. Near that edge counting errs, and what spills is four to three hundred times as slow as expected. That
is no figure to learn other latencies from: it made beliefs unsure of all around, and what is unsure promises
most, so a search spent its trials on more of the kind. What the compiler says of every kernel is learned
instead, registers needed over registers counted, and what a genome promises it promises as far as it is
likely to fit (expected improvement under a learned constraint: Gardner and others, 2014).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import Resources
from ekc.ir.hardware.limits import Limits
from ekc.ir.hardware.memory import WARP
from ekc.search.cost_model.features import REGISTERS_COLUMN, THREADS_COLUMN
from ekc.search.cost_model.surrogate import Surrogate, normal_cdf

Array = NDArray[np.float64]

SPILL_STACK_BYTES = 64
"""Bytes of stack from which on a kernel counts as spilled: ptxas also keeps a few for what was no spill."""
REGISTER_ALLOCATION_UNIT = 8
"""Registers are given out in such units."""
MIN_FEASIBILITY = 1e-6
"""Chance of what is all but sure to spill: still in the order of the promise."""


def has_spilled(resources: Sequence[Resources]) -> bool:
    """Whether any launch keeps in memory what found no register."""
    return any(r.stack_bytes > SPILL_STACK_BYTES for r in resources)


def count_needed_registers(resources: Sequence[Resources]) -> float:
    """Registers a thread that the launch with most of them would take: those it has, and what lies on its
    stack."""
    return max(r.registers + r.stack_bytes / 4 for r in resources)


class SpillModel:
    """The belief in registers needed, on a device with these limits."""

    def __init__(self, limits: Limits, seed: int) -> None:
        self._limits = limits
        self._surrogate = Surrogate(seed)
        self._max_log_error = 0.0
        """Log of registers needed over counted, where that was most."""

    def learn(self, rows: NDArray[np.float32], resources: Sequence[Sequence[Resources]]) -> None:
        """Feature rows of compiled kernels, and what ptxas gave each."""
        counted, need = _get_counted_registers(rows), np.array([count_needed_registers(r) for r in resources])
        self._max_log_error = max(self._max_log_error, float(np.log(need / counted).max()))
        self._surrogate.learn(rows, counted, need, objective_values=np.ones(len(rows)))

    def predict_log_feasibility(self, rows: NDArray[np.float32]) -> Array:
        """Log of the probability that each fits: 0 where no count was ever so far off, and for all before
        enough were compiled to say."""
        log = np.zeros(len(rows))
        counted, room = np.log(_get_counted_registers(rows)), np.log(self._find_register_budget(rows))
        near = np.flatnonzero(counted + self._max_log_error > room)
        if self._surrogate.is_ready and len(near):
            mean, spread = self._surrogate.predict(rows[near], np.exp(counted[near]))
            log[near] = np.log(np.maximum(normal_cdf((room[near] - mean) / spread), MIN_FEASIBILITY))
        return log

    def _find_register_budget(self, rows: NDArray[np.float32]) -> Array:
        """Registers that a thread may need without being spilled."""
        threads = np.ceil(_decode_count(rows, THREADS_COLUMN) / WARP) * WARP
        a_thread = (
            np.floor(self._limits.registers_per_sm / threads / REGISTER_ALLOCATION_UNIT)
            * REGISTER_ALLOCATION_UNIT
        )
        return np.asarray(np.minimum(a_thread, self._limits.registers_per_thread) + SPILL_STACK_BYTES / 4)


def _get_counted_registers(rows: NDArray[np.float32]) -> Array:
    return _decode_count(rows, REGISTERS_COLUMN)


def _decode_count(rows: NDArray[np.float32], column: int) -> Array:
    return np.asarray(np.exp2(rows[:, column].astype(np.float64)) - 1.0)
