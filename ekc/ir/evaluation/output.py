"""The elements of an output that a launch wrote; of a large one, few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.evaluation.drawn import Places
from ekc.ir.operator import TensorSpec

Where = dict[str, NDArray[Any]]
"""Chosen indices along every spatial axis of a compute; their outer product is meant."""


@dataclass(frozen=True, eq=False)
class Output:
    """Values by their linear positions, which rise."""

    spec: TensorSpec
    places: Places
    values: NDArray[Any]

    @property
    def complete(self) -> bool:
        """Whether every element was written."""
        return self.places.size == self.spec.elements

    def at(self, places: Places) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The elements at linear positions, 0 for what was not written, and whether each was."""
        if not self.places.size:
            return np.zeros(places.shape, self.values.dtype), np.zeros(places.shape, np.bool_)
        if self.complete:
            return self.values[places], np.ones(places.shape, np.bool_)
        index = np.searchsorted(self.places, places).clip(max=self.places.size - 1)
        written = np.asarray(self.places[index] == places)
        return np.where(written, self.values[index], np.zeros((), self.values.dtype)), written

    def count_elsewhere(self, owned: Sequence[Places]) -> int:
        """How many elements were written at none of these positions."""
        known = np.unique(np.concatenate([*owned, np.zeros(0, np.int64)]))
        return int(np.count_nonzero(~np.isin(self.places, known, assume_unique=True)))

    def joined(self, other: Output) -> Output:
        """With the elements that another run of the same launch wrote; both hold the same values there."""
        places, first = np.unique(np.concatenate([self.places, other.places]), return_index=True)
        return Output(self.spec, places, np.concatenate([self.values, other.values])[first])


def find_places(where: Where, spec: TensorSpec) -> Places:
    """The linear positions of the elements at chosen indices."""
    grid = zip(np.ix_(*where.values()), spec.strides, strict=True)
    found: Any = sum((index * stride for index, stride in grid), np.int64(0))
    return np.asarray(found)
