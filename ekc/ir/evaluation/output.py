"""The elements of an output that a launch wrote; of a large one, few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.evaluation.drawn import Positions
from ekc.ir.operator import TensorSpec

AxisIndices = dict[str, NDArray[Any]]
"""Chosen indices along every spatial axis of a compute; their outer product is meant."""


@dataclass(frozen=True, eq=False)
class WrittenOutput:
    """Values by their linear positions, which rise."""

    spec: TensorSpec
    positions: Positions
    values: NDArray[Any]

    @property
    def is_complete(self) -> bool:
        """Whether every element was written."""
        return self.positions.size == self.spec.elements

    def read_at(self, positions: Positions) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The elements at linear positions, 0 for what was not written, and whether each was."""
        if not self.positions.size:
            return np.zeros(positions.shape, self.values.dtype), np.zeros(positions.shape, np.bool_)
        if self.is_complete:
            return self.values[positions], np.ones(positions.shape, np.bool_)
        index = np.searchsorted(self.positions, positions).clip(max=self.positions.size - 1)
        written = np.asarray(self.positions[index] == positions)
        return np.where(written, self.values[index], np.zeros((), self.values.dtype)), written

    def count_strays(self, owned: Sequence[Positions]) -> int:
        """How many elements were written at none of these positions."""
        known = np.unique(np.concatenate([*owned, np.zeros(0, np.int64)]))
        return int(np.count_nonzero(~np.isin(self.positions, known, assume_unique=True)))

    def merge(self, other: WrittenOutput) -> WrittenOutput:
        """With the elements that another run of the same launch wrote; both hold the same values there."""
        places, first = np.unique(np.concatenate([self.positions, other.positions]), return_index=True)
        return WrittenOutput(self.spec, places, np.concatenate([self.values, other.values])[first])


def find_positions(where: AxisIndices, spec: TensorSpec) -> Positions:
    """The linear positions of the elements at chosen indices."""
    grid = zip(np.ix_(*where.values()), spec.strides, strict=True)
    found: Any = sum((index * stride for index, stride in grid), np.int64(0))
    return np.asarray(found)
