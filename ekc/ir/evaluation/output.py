"""What a launch left in its output: all of it, or those elements of a large one that were written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ekc.ir.evaluation.drawn import Places
from ekc.ir.operator import TensorSpec

Where = dict[str, NDArray[Any]]
"""Chosen indices along every spatial axis of a compute; their outer product is meant."""


class Output(Protocol):
    """Values, and which of them were written."""

    def at(self, where: Where, spec: TensorSpec) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The elements at chosen indices, and whether each was written; `spec` is the tensor with the
        dimensions that these are indices of."""

    def wrote(self, places: Places) -> bool:
        """Whether all elements at linear positions were written."""

    def elsewhere(self, owned: Sequence[Places]) -> int:
        """How many elements were written that are at none of these positions."""

    @property
    def complete(self) -> bool:
        """Whether every element was written."""


@dataclass(frozen=True, eq=False)
class WholeOutput:
    """An array for the values and one for what was written, of as many elements as the tensor."""

    values: NDArray[Any]
    written: NDArray[np.bool_]

    def at(self, where: Where, spec: TensorSpec) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """See `Output`."""
        grid = np.ix_(*where.values())
        return self.values.reshape(spec.shape)[grid], self.written.reshape(spec.shape)[grid]

    def wrote(self, places: Places) -> bool:
        """See `Output`."""
        return bool(self.written.reshape(-1)[places].all())

    def elsewhere(self, owned: Sequence[Places]) -> int:
        """See `Output`."""
        foreign = self.written.reshape(-1).copy()
        for places in owned:
            foreign[places] = False
        return int(np.count_nonzero(foreign))

    @property
    def complete(self) -> bool:
        """See `Output`."""
        return bool(self.written.all())


@dataclass(frozen=True, eq=False)
class PartOutput:
    """The elements that were written, by their linear positions, which rise."""

    spec: TensorSpec
    places: Places
    values: NDArray[Any]

    def at(self, where: Where, spec: TensorSpec) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """See `Output`; what was not written counts as 0."""
        grid = np.ix_(*where.values())
        wanted: Any = sum((i * s for i, s in zip(grid, spec.strides, strict=True)), np.int64(0))
        place, found = self._find(wanted)
        if not self.places.size:
            return np.zeros(found.shape, self.values.dtype), found
        return np.where(found, self.values[place], np.zeros((), self.values.dtype)), found

    def wrote(self, places: Places) -> bool:
        """See `Output`."""
        return bool(self._find(places)[1].all())

    def elsewhere(self, owned: Sequence[Places]) -> int:
        """See `Output`."""
        known = np.unique(np.concatenate([*owned, np.zeros(0, np.int64)]))
        return int(np.count_nonzero(~np.isin(self.places, known, assume_unique=True)))

    @property
    def complete(self) -> bool:
        """See `Output`."""
        return self.places.size == self.spec.elements

    def joined(self, other: PartOutput) -> PartOutput:
        """With the elements that another run of the same launch wrote; both hold the same values there."""
        places, first = np.unique(np.concatenate([self.places, other.places]), return_index=True)
        return PartOutput(self.spec, places, np.concatenate([self.values, other.values])[first])

    def _find(self, wanted: Places) -> tuple[Places, NDArray[np.bool_]]:
        """Where wanted positions stand among the written ones, and whether each is one of them."""
        if not self.places.size:
            return np.zeros(wanted.shape, np.int64), np.zeros(wanted.shape, np.bool_)
        place = np.searchsorted(self.places, wanted).clip(max=self.places.size - 1)
        return place, np.asarray(self.places[place] == wanted)
