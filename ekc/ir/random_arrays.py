"""Random inputs whose elements are functions of their positions, so that any part can be computed; and
outputs.

Neighbours share a hash of 64 bits (the finalizer of SplitMix64, doi:10.1145/2660193.2660195), of which each
uses its own bits: 16 bits choose a quantile of the normal distribution, 8 are an int8, 32 are scaled to an
int32. Integer arithmetic and one table of float32 make the values the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.compute import TensorSpec
from ekc.ir.dtypes import INT8, TF32, round_to_tf32
from ekc.ir.graph import OperatorGraph

_MAX_INT32_INPUT = 1000
"""Largest magnitude of a random int32 input."""
_CHUNK_ELEMENTS = 1 << 15
"""Elements that are computed at once, so that temporaries fit into the cache."""
_ELEMENTS_PER_HASH = 8
"""Most elements that share a hash."""
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST_MULTIPLIER, _SECOND_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

Positions = NDArray[np.int64]
"""Linear positions of elements."""


@dataclass(frozen=True)
class RandomTensor:
    """A random input whose elements are computed where they are read.

    Floats are standard normal, with 65,536 distinct values. int8 is uniform over its whole range, int32 over
    +-1000, so that most sums stay within int32. Inputs of a product of n factors are near 1 or -1, exp(normal
    / sqrt(n)), and integers are odd; a product of many other values is 0, whatever a kernel leaves out.
    """

    spec: TensorSpec
    seed: int
    number: int
    """Index of the tensor among the inputs, so that two of one shape differ."""
    factor_count: int = 0
    """Factors of the product that reads the tensor; 0 for none."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, as of an array."""
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype, as of an array."""
        return self.spec.dtype.numpy_dtype

    def read_at(self, positions: Positions) -> NDArray[Any]:
        """The elements at some linear positions."""
        flat = np.ascontiguousarray(positions).reshape(-1)
        found = np.empty(flat.shape, self.spec.dtype.numpy_dtype)
        # log2 of the elements that share a hash.
        shift = {1: 3, 2: 2, 4: 1}[self._bits_dtype.itemsize]
        mask, bit_shift = np.uint64((1 << shift) - 1), np.uint64(6 - shift)
        for start in range(0, flat.size, _CHUNK_ELEMENTS):
            chunk = flat[start : start + _CHUNK_ELEMENTS].astype(np.uint64)
            hashed = self._hash_numbers(chunk >> np.uint64(shift))
            chunk &= mask
            chunk <<= bit_shift
            hashed >>= chunk
            found[start : start + _CHUNK_ELEMENTS] = self._values(hashed.astype(self._bits_dtype))
        return found.reshape(positions.shape)

    def pick(self, index: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The elements at the broadcast of an index for each dimension, tf32 rounded."""
        terms = (np.asarray(i, np.int64) * stride for i, stride in zip(index, self.spec.strides, strict=True))
        positions: Any = sum(terms, np.int64(0))
        values = self.read_at(np.asarray(positions))
        return round_to_tf32(values) if self.spec.dtype is TF32 else values

    def make_span(self, start: int, stop: int) -> NDArray[Any]:
        """Elements from one linear position up to another."""
        begin = start - start % _ELEMENTS_PER_HASH
        runs = self.make_runs(np.arange(begin, stop, _ELEMENTS_PER_HASH), _ELEMENTS_PER_HASH)
        return runs.reshape(-1)[start - begin : stop - begin]

    def make_runs(self, starts: Positions, length: int) -> NDArray[Any]:
        """`length` elements from each start, a row each; starts and length are multiples of 8."""
        per_hash = 8 // self._bits_dtype.itemsize
        found = np.empty((len(starts), length), self.spec.dtype.numpy_dtype)
        step = max(1, _CHUNK_ELEMENTS // length)
        for at in range(0, len(starts), step):
            groups = starts[at : at + step, None] // per_hash + np.arange(length // per_hash)
            hashed = self._hash_numbers(groups.astype(np.uint64)).astype("<u8", copy=False)
            found[at : at + step] = self._values(hashed.view(self._bits_dtype.newbyteorder("<")))
        return found

    def to_array(self) -> NDArray[Any]:
        """All elements as an array."""
        return self.make_span(0, self.spec.elements).reshape(self.spec.shape)

    @cached_property
    def _hash_key(self) -> np.uint64:
        return np.uint64(np.random.SeedSequence((self.seed, self.number)).generate_state(1, np.uint64)[0])

    @property
    def _bits_dtype(self) -> np.dtype[Any]:
        """Unsigned type of the bits of a hash that one element uses."""
        if not self.spec.dtype.is_integer:
            return np.dtype(np.uint16)
        return np.dtype(np.uint8 if self.spec.dtype is INT8 else np.uint32)

    def _values(self, bits: NDArray[Any]) -> NDArray[Any]:
        """Elements from the bits of a hash."""
        if not self.spec.dtype.is_integer:
            values = _compute_quantiles(self.factor_count).take(bits)
            return np.asarray(values.astype(self.spec.dtype.numpy_dtype, copy=False))
        if self.spec.dtype is INT8:
            integers = bits.view(np.int8)
        else:
            scaled = bits.astype(np.uint64) * np.uint64(2 * _MAX_INT32_INPUT + 1) >> np.uint64(32)
            integers = np.asarray(scaled.astype(np.int32) - np.int32(_MAX_INT32_INPUT))
        return np.asarray(integers | integers.dtype.type(1)) if self.factor_count else integers

    def _hash_numbers(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """A hash of 64 bits for each number; the array is overwritten."""
        numbers *= _GOLDEN_GAMMA
        numbers += self._hash_key
        for shift, factor in ((30, _FIRST_MULTIPLIER), (27, _SECOND_MULTIPLIER)):
            numbers ^= numbers >> np.uint64(shift)
            numbers *= factor
        numbers ^= numbers >> np.uint64(31)
        return numbers


InputTensor = NDArray[Any] | RandomTensor
"""An input as an array, or as a random tensor."""


def make_random_tensors(
    specs: Sequence[TensorSpec], seed: int, factor_count: int = 0
) -> tuple[RandomTensor, ...]:
    """Random tensors; `factor_count` is that of the product that reads them, 0 for none."""
    return tuple(RandomTensor(spec, seed, number, factor_count) for number, spec in enumerate(specs))


def make_random_inputs(op: OperatorGraph, seed: int) -> tuple[RandomTensor, ...]:
    """Random inputs of an operator."""
    return make_random_tensors(op.inputs, seed, count_factors(op))


def count_factors(op: OperatorGraph) -> int:
    """Factors of the longest product among the reductions of an operator; 0 where there is none."""
    products = [c for c in op.computes if c.combine == "prod" and c.reduction_axes]
    return max((math.prod(a.extent for a in c.reduction_axes) for c in products), default=0)


@cache
def _compute_quantiles(factor_count: int) -> NDArray[np.float32]:
    """Quantiles of the normal distribution at the middle of equal shares; for a product near 1 and -1."""
    count, normal = 1 << 16, NormalDist()
    upper = [normal.inv_cdf(0.5 + (i + 0.5) / count) for i in range(count // 2)]
    quantiles = [*(-x for x in reversed(upper)), *upper]
    if factor_count:
        quantiles = [math.copysign(math.exp(x / math.sqrt(factor_count)), x) for x in quantiles]
    return np.array(quantiles, np.float32)


AxisIndices = dict[str, NDArray[Any]]
"""Chosen indices along every spatial axis of a compute, for the elements of their outer product."""


@dataclass(frozen=True, eq=False)
class WrittenOutput:
    """Elements of an output that a launch wrote."""

    spec: TensorSpec
    positions: Positions
    """Linear positions of the elements, ascending."""
    values: NDArray[Any]

    @property
    def is_complete(self) -> bool:
        """Whether every element was written."""
        return self.positions.size == self.spec.elements

    def read_at(self, positions: Positions) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The elements at some linear positions, 0 where not written, and whether each was written."""
        if not self.positions.size:
            return np.zeros(positions.shape, self.values.dtype), np.zeros(positions.shape, np.bool_)
        if self.is_complete:
            return self.values[positions], np.ones(positions.shape, np.bool_)
        index = np.searchsorted(self.positions, positions).clip(max=self.positions.size - 1)
        written = np.asarray(self.positions[index] == positions)
        return np.where(written, self.values[index], np.zeros((), self.values.dtype)), written

    def count_strays(self, owned: Sequence[Positions]) -> int:
        """Number of written elements that are at none of these positions."""
        all_owned = np.unique(np.concatenate([*owned, np.zeros(0, np.int64)]))
        return int(np.count_nonzero(~np.isin(self.positions, all_owned, assume_unique=True)))

    def merge(self, other: WrittenOutput) -> WrittenOutput:
        """The union with another run of the same launch; both have the same values where both wrote."""
        positions, first = np.unique(np.concatenate([self.positions, other.positions]), return_index=True)
        return WrittenOutput(self.spec, positions, np.concatenate([self.values, other.values])[first])


def find_positions(where: AxisIndices, spec: TensorSpec) -> Positions:
    """Linear positions of the elements at chosen indices."""
    grid = zip(np.ix_(*where.values()), spec.strides, strict=True)
    positions: Any = sum((index * stride for index, stride in grid), np.int64(0))
    return np.asarray(positions)
