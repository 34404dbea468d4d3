"""What the computes of an operator make of its inputs in float64, and the error that rounding can explain.

A tensor between two computes is worked out only where it is asked for, so that a few blocks of a large
product behind a bias and an activation cost no more than those of the product alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir import expr as ex
from ekc.ir.dtypes import FLOAT32, INT32, DType
from ekc.ir.evaluation.drawn import Tensor, draw_inputs
from ekc.ir.evaluation.output import Where
from ekc.ir.evaluation.part import Indices, Part, find_indices
from ekc.ir.evaluation.reference import (
    Computed,
    as_stored,
    evaluate_body,
    hold_values,
    inputs_as_read,
    list_floats,
    read_padded,
    reference_at,
)
from ekc.ir.inline import elementwise
from ekc.ir.operator import Compute, Operator

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Right:
    """Right values, and how far rounding alone may take a kernel from them."""

    value: Array
    slack: float
    wrapped: bool = False
    """Whether some int32 that leads to them wrapped."""
    indices: Indices | None = None
    """Where they stand in their tensor, if that is not whole."""

    choice: Array | float = 0.0
    """How much further each element may be, because rounding may change which of two values is chosen."""

    def moved(self, error: Array | float) -> tuple[Array, ...]:
        """The values with an error: all up, all down, each up or down."""
        signs = np.random.default_rng(0).choice((-1.0, 1.0), self.value.shape)
        return tuple(self.value + sign * error for sign in (1.0, -1.0, signs))


@dataclass(frozen=True, eq=False)
class Expected:
    """Inputs of an operator, and what its computes make of them."""

    op: Operator
    arrays: tuple[Tensor, ...]
    _whole: dict[str, Right] = field(default_factory=dict, repr=False)
    _over: dict[str, Expected] = field(default_factory=dict, repr=False)

    @classmethod
    def draw(cls, op: Operator, seed: int) -> Expected:
        """On random inputs, made where they are read."""
        return cls(op, draw_inputs(op, seed))

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """The inputs by name."""
        return inputs_as_read(self.op, self.arrays)

    @cached_property
    def makers(self) -> dict[str, Compute]:
        """The compute that makes each tensor that is no input."""
        return {c.output.name: c for c in self.op.computes}

    def over(self, op: Operator) -> Expected:
        """What the same inputs come to over the computes of `op`, which a step may have made two of one."""
        if op == self.op:
            return self
        return self._over.setdefault(op.digest, Expected(op, self.arrays))

    def tensor(self, name: str) -> Right:
        """All of a tensor that some compute makes; worked out once."""
        if name not in self._whole:
            self._whole[name] = self.at(self.makers[name], everything(self.makers[name]))
        return self._whole[name]

    def at(self, compute: Compute, where: Where, held: Collection[str] = ()) -> Right:
        """One compute at chosen indices; `held` are tensors that are never stored, so not rounded to their
        dtype.

        Its slack is what rounding does in its own arithmetic, and what the slack of each tensor that it
        reads does to its result, found by moving that tensor. Where the body chooses by a comparison, that is
        an allowance of each element: one that rounding may turn over excuses no other.
        """
        read = {name: self._read(compute, name, where, held) for name in self._made(compute)}
        values = {n: self._placed(n, r, hold_values(self.makers[n], r.value)) for n, r in read.items()}
        found, stored = self._evaluate(compute, where, values), compute.output.name not in held
        value, wrapped = found.values, found.wrapped or any(right.wrapped for right in read.values())
        if stored:
            value = overflowed(value, compute.output.dtype)
        scale = float(np.max(np.abs(value[np.isfinite(value)]), initial=0.0))
        slack = 0.0 if self._rounds_nothing(compute, held) else rounding(compute, scale, stored)
        choice: Array | float = 0.0
        for name, right in read.items():
            # Where a comparison chooses, an error moves some elements by far and most not at all.
            for error, chooses in ((right.slack, ex.chooses(compute.body)), (right.choice, True)):
                if not np.any(error):
                    continue
                moved = ({name: self._placed(name, right, m)} for m in right.moved(error))
                changed = (self._evaluate(compute, where, values | m).values for m in moved)
                furthest = np.maximum.reduce([_distances(c, value) for c in changed])
                if chooses:
                    choice = choice + furthest
                else:
                    slack += float(np.max(furthest, initial=0.0))
        return Right(value, slack, wrapped, choice=choice)

    def _rounds_nothing(self, compute: Compute, held: Collection[str]) -> bool:
        """Whether it only brings stored elements elsewhere, or picks the largest or smallest of some."""
        body = compute.body
        if not isinstance(body, ex.Load) or body.tensor in held:
            return False
        if compute.reduction and compute.combine not in ("max", "min"):
            return False
        read, out = self.op.tensors[body.tensor].dtype, compute.output.dtype
        return read is out or (out is FLOAT32 and not read.integer)

    def _made(self, compute: Compute) -> dict[str, None]:
        """The tensors it reads that are no inputs."""
        return dict.fromkeys(x.tensor for x in ex.loads(compute.body) if x.tensor in self.makers)

    def _read(self, reader: Compute, name: str, where: Where, held: Collection[str]) -> Right:
        """A tensor as a compute needs it: the same elements where it reads no others, else those that it
        reads, or all of it where that is not much more."""
        maker = self.makers[name]
        if not elementwise(reader, maker.output):
            indices = find_indices(reader, maker.output, where)
            if name in self._whole or 2 * math.prod(map(len, indices)) >= maker.output.elements:
                return self.tensor(name)
            part = dict(zip((a.name for a in maker.spatial), indices, strict=True))
            return replace(self.at(maker, part), indices=indices)
        there = dict(zip((a.name for a in maker.spatial), where.values(), strict=True))
        return self.at(maker, there, held)

    def _placed(self, name: str, right: Right, values: Array) -> Any:
        """Values of a tensor, to be found by their indices in it."""
        return values if right.indices is None else Part(self.op.tensors[name].shape, right.indices, values)

    def _evaluate(self, compute: Compute, where: Where, made: dict[str, Any]) -> Computed:
        own = {n: values for n, values in made.items() if elementwise(compute, self.makers[n].output)}
        if not own:
            return reference_at(compute, self.inputs | made, where)
        grid = {a: where[a].reshape([-1 if b == a else 1 for b in where]) for a in where}
        tensors = self.inputs | made

        def load(x: ex.Load) -> Array:
            return own[x.tensor] if x.tensor in own else read_padded(tensors[x.tensor], x, grid)

        shape = tuple(len(index) for index in where.values())

        def computed(kind: np.dtype[Any]) -> Array:
            return np.broadcast_to(evaluate_body(compute.body, grid, load, kind, list_floats(tensors)), shape)

        return as_stored(compute, computed, compute.acc_dtype is INT32)


def rounding(compute: Compute, scale: float, stored: bool = True) -> float:
    """The error that a compute's own arithmetic can explain in results of size `scale`: grows with the square
    root of the number of terms, as random rounding errors do, with a margin of 8. Integers allow none."""
    terms = math.prod(float(a.extent) for a in compute.reduction)
    epsilon = 0.0 if compute.acc_dtype.integer else FLOAT32.epsilon * math.sqrt(terms + 1) * 8
    if stored and compute.output.dtype is not compute.acc_dtype:
        epsilon += compute.output.dtype.epsilon
    return epsilon * max(scale, 1e-3)


def overflowed(values: Array, dtype: DType) -> Array:
    """Values with those that a float type cannot hold as the infinities that storing makes of them."""
    if dtype.integer:
        return values
    with np.errstate(over="ignore"):
        stored = values.astype(dtype.numpy).astype(np.float64)
    return np.where(np.isinf(stored), stored, values)


def everything(compute: Compute) -> Where:
    """All indices of a compute."""
    return {a.name: np.arange(a.extent) for a in compute.spatial}


def _distances(values: Array, right: Array) -> Array:
    """The distance of each element where both are finite, else 0. An infinity explains no error: beside it
    there is none that rounding allows."""
    both = np.isfinite(values) & np.isfinite(right)
    with np.errstate(invalid="ignore"):
        return np.where(both, np.abs(values - right), 0.0)
