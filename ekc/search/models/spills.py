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
from ekc.ir.limits import Limits
from ekc.ir.patterns.warp import WARP
from ekc.search.models.belief import Belief, normal_below
from ekc.search.models.features import REGISTERS, THREADS

Array = NDArray[np.float64]

STACK = 64
"""Bytes of stack from which on a kernel counts as spilled: ptxas also keeps a few for what was no spill."""
UNIT = 8
"""Registers are given out in such units."""
LEAST = 1e-6
"""Chance of what is all but sure to spill: still in the order of the promise."""


def spilled(resources: Sequence[Resources]) -> bool:
    """Whether any launch keeps in memory what found no register."""
    return any(r.stack_bytes > STACK for r in resources)


def needed(resources: Sequence[Resources]) -> float:
    """Registers a thread that the launch with most of them would take: those it has, and what lies on its
    stack."""
    return max(r.registers + r.stack_bytes / 4 for r in resources)


class Spills:
    """The belief in registers needed, on a device with these limits."""

    def __init__(self, limits: Limits, seed: int) -> None:
        self._limits = limits
        self._belief = Belief(seed)
        self._most_off = 0.0
        """Log of registers needed over counted, where that was most."""

    def learn(self, rows: NDArray[np.float32], resources: Sequence[Sequence[Resources]]) -> None:
        """Feature rows of compiled kernels, and what ptxas gave each."""
        counted, need = _counted(rows), np.array([needed(r) for r in resources])
        self._most_off = max(self._most_off, float(np.log(need / counted).max()))
        self._belief.learn(rows, counted, need, merits=np.ones(len(rows)))

    def chance(self, rows: NDArray[np.float32]) -> Array:
        """Log of the probability that each fits: 0 where no count was ever so far off, and for all before
        enough were compiled to say."""
        log = np.zeros(len(rows))
        counted, room = np.log(_counted(rows)), np.log(self._room(rows))
        near = np.flatnonzero(counted + self._most_off > room)
        if self._belief.ready and len(near):
            mean, spread = self._belief.expect(rows[near], np.exp(counted[near]))
            log[near] = np.log(np.maximum(normal_below((room[near] - mean) / spread), LEAST))
        return log

    def _room(self, rows: NDArray[np.float32]) -> Array:
        """Registers that a thread may need without being spilled."""
        threads = np.ceil(_count(rows, THREADS) / WARP) * WARP
        a_thread = np.floor(self._limits.registers_per_sm / threads / UNIT) * UNIT
        return np.asarray(np.minimum(a_thread, self._limits.registers_per_thread) + STACK / 4)


def _counted(rows: NDArray[np.float32]) -> Array:
    return _count(rows, REGISTERS)


def _count(rows: NDArray[np.float32], column: int) -> Array:
    return np.asarray(np.exp2(rows[:, column].astype(np.float64)) - 1.0)
