"""A part of a tensor: its elements at the outer product of some indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir import expr as ex
from ekc.ir.operator import Compute, TensorSpec

Indices = tuple[NDArray[Any], ...]
"""For each dimension of a tensor the indices of a part, rising."""


@dataclass(frozen=True, eq=False)
class TensorPart:
    """Elements of a tensor of this shape; nothing else of it may be read."""

    shape: tuple[int, ...]
    indices: Indices
    values: NDArray[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        """As of an array."""
        return self.values.dtype

    def pick(self, index: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The elements at an index for each dimension, broadcast."""
        found = zip(self.indices, index, strict=True)
        return np.asarray(self.values[tuple(np.searchsorted(known, wanted) for known, wanted in found)])


def find_read_indices(compute: Compute, spec: TensorSpec, where: Mapping[str, NDArray[Any]]) -> Indices:
    """The indices of a tensor that a compute reads at chosen indices of its own; those outside the tensor are
    read as the nearest inside."""
    ranges = dict(where) | {a.name: np.arange(a.extent) for a in compute.reduction_axes}
    loads = [load for load in ex.find_loads(compute.body) if load.tensor == spec.name]
    return tuple(
        reduce(np.union1d, (_evaluate_index(load.index[d], extent, ranges) for load in loads))
        for d, extent in enumerate(spec.shape)
    )


def _evaluate_index(index: ex.Expr, extent: int, ranges: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """The values of an index expression, each once."""
    names = sorted(ex.find_variables(index))
    grid = dict(zip(names, np.ix_(*(ranges[name] for name in names)), strict=True))
    return np.unique(np.clip(np.asarray(ex.evaluate(index, grid, _refuse_load)), 0, extent - 1))


def _refuse_load(load: ex.Load) -> Any:
    raise ValueError(f"{load}: an index cannot read a tensor")
