"""The menu: the next steps that may follow a schedule, before the rules have checked them.

Entries that differ in their numbers only are one `Family`: its numbers are columns, so that the rules and the
analysis are computed for all its entries at once. `docs/how-to/explore.md` has the menu as a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.compute import TensorSpec
from ekc.ir.divisions import compute_quotient_period
from ekc.ir.hardware.cp_async import MAX_PIPELINE_STAGES
from ekc.ir.hardware.mma import MMA_INSTRUCTIONS
from ekc.ir.hardware.wgmma import WGMMA_FAMILIES
from ekc.ir.lowering.buffers import MAX_ACCESS_BYTES
from ekc.ir.program import BLOCK_LEVELS, THREAD_LEVELS, Loop, Nest, Program
from ekc.ir.schedule import (
    Atomic,
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Divide,
    Fuse,
    Hole,
    Pack,
    Pipeline,
    Reorder,
    RFactor,
    Split,
    Step,
    Tensorize,
    Unroll,
    Vectorize,
)

VECTOR_WIDTHS = (1, 2, 4, 8, 16)
TILE_LAYOUTS = ((0, 1), (4, 1), (8, 1), (0, 2), (0, 4), (0, 8))
"""(pad in elements, swizzle in chunks) of tiles in shared memory."""
MAX_PARTS = 64
"""Most parts of a reduction in two launches."""

Column = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Family:
    """Entries of the menu that differ in their numbers only."""

    steps: tuple[Step, ...]
    """The steps of an entry, one but for tensor cores, with a hole for each number."""
    numbers: Mapping[str, Column] = field(default_factory=dict)
    """Hole -> its number in each entry; empty for a family of one entry."""

    @cached_property
    def size(self) -> int:
        """Number of entries."""
        return len(next(iter(self.numbers.values()))) if self.numbers else 1

    def make_program(self, program: Program) -> Program:
        """The Program after the steps, its extents columns where the entries differ. Raises `ScheduleError`
        where no entry can be legal."""
        for step in self.steps:
            program = (step.fill_holes(self.numbers) if self.numbers else step).apply(program)
        return program

    def make_steps(self, row: int) -> tuple[Step, ...]:
        """The steps of one entry."""
        values: dict[str, Any] = {hole: int(column[row]) for hole, column in self.numbers.items()}
        return tuple(step.fill_holes(values) for step in self.steps)


def list_families(program: Program) -> Iterator[Family]:
    """All families of the menu for a Program."""
    for nest in program.nests:
        yield from _list_loop_cuts(nest)
        yield from _list_loop_orders(nest)
        yield from _list_bindings(nest)
        yield from _list_loop_forms(nest)
        yield from _list_stagings(program, nest)
        yield from _list_moves(program, nest)
        yield from _list_outputs(nest)
        yield from _list_tensor_products(nest)
    yield from _list_graph_rewrites(program)


def list_factors(extent: int) -> tuple[int, ...]:
    """Numbers from 2 to below an extent that divide it or are powers of two."""
    return tuple(n for n in range(2, extent) if extent % n == 0 or n & (n - 1) == 0)


def _make_family(step: Step, **columns: Sequence[int]) -> Iterator[Family]:
    """The family of a step with holes, if it has entries."""
    numbers = {hole: np.array(column, dtype=np.int64) for hole, column in columns.items()}
    family = Family((step,), numbers)
    if family.size:
        yield family


def _list_serial_loops(nest: Nest) -> list[Loop]:
    return [x for x in nest.loops if x.level == "serial"]


def _list_places(nest: Nest) -> list[str | None]:
    """Loops in which a copy can be made, and None for once a block."""
    return [None, *(x.name for x in nest.loops if x.is_serial and x.level != "vector")]


def _list_loop_cuts(nest: Nest) -> Iterator[Family]:
    """split and divide: each serial loop."""
    for loop in _list_serial_loops(nest):
        yield from _make_family(Split(loop.name, (Hole("n"),)), n=list_factors(loop.extent))
        if loop.name in nest.axis_forms and loop.name not in nest.divided_axes:
            period = compute_quotient_period(nest.compute, loop.name)
            for by in range(period, loop.extent, period) if period > 1 else ():
                if (by // period) & (by // period - 1) == 0:
                    yield Family((Divide(loop.name, by),))


def _list_loop_orders(nest: Nest) -> Iterator[Family]:
    """reorder and fuse: each two neighbouring loops."""
    for outer, inner in zip(nest.loops, nest.loops[1:], strict=False):
        yield Family((Reorder((inner.name, outer.name)),))
        yield Family((Fuse(outer.name, inner.name),))


def _list_bindings(nest: Nest) -> Iterator[Family]:
    """bind: each serial loop to each level."""
    for loop in _list_serial_loops(nest):
        for level in (*BLOCK_LEVELS, *THREAD_LEVELS, "vthread"):
            yield Family((Bind(loop.name, level),))


def _list_loop_forms(nest: Nest) -> Iterator[Family]:
    """unroll, vectorize and pipeline."""
    for loop in nest.loops:
        if loop.is_serial and loop.level != "vector" and loop.extent > 1:
            factors = [n for n in (*list_factors(loop.extent), loop.extent) if n != loop.unroll]
            yield from _make_family(Unroll(loop.name, Hole("n")), n=factors)
    yield Family((Vectorize(nest.loops[-1].name),))
    for place in dict.fromkeys(s.at for s in nest.stagings if s.scope == "shared" and s.at is not None):
        now = nest.find_loop(place)
        for copy, stages in (("register", (2,)), ("async", tuple(range(2, MAX_PIPELINE_STAGES + 1)))):
            other = [n for n in stages if (n, copy) != (now.stages, now.copy)]
            yield from _make_family(Pipeline(place, Hole("n"), copy), n=other)


def _list_stagings(program: Program, nest: Nest) -> Iterator[Family]:
    """cache_read: each tensor that the nest reads, into shared memory and registers, at each place."""
    copied = {s.source for s in nest.stagings}
    for tensor in dict.fromkeys(load.tensor for load in nest.compute.loads):
        if tensor in copied:
            continue
        rank = len(program.op.tensors[tensor].shape)
        reader = nest.compute.output.name if _count_readers(program, tensor) > 1 else ""
        widths = _list_widths(program.op.tensors[tensor])
        for at in _list_places(nest):
            for order in ((), (*range(1, rank), 0)) if rank > 1 else ((),):
                layouts = [(v, pad, sw) for v in widths for pad, sw in TILE_LAYOUTS]
                vector, pad, swizzle = zip(*layouts, strict=True)
                tile = CacheRead(tensor, "shared", at, Hole("v"), order, Hole("p"), Hole("s"), reader)
                yield from _make_family(tile, v=vector, p=pad, s=swizzle)
            mine = CacheRead(tensor, "register", at, Hole("v"), reader=reader)
            yield from _make_family(mine, v=widths)
    for staging in nest.stagings:
        if staging.scope == "shared" and staging.name not in copied:
            for at in _list_places(nest):
                step = CacheRead(staging.name, "register", at, Hole("v"))
                yield from _make_family(step, v=_list_widths(program.op.tensors[staging.tensor]))


def _list_widths(spec: TensorSpec) -> tuple[int, ...]:
    """Vector widths of at most 16 bytes; others break a rule."""
    return tuple(v for v in VECTOR_WIDTHS if v * spec.dtype.bytes <= MAX_ACCESS_BYTES)


def _count_readers(program: Program, tensor: str) -> int:
    return sum(any(load.tensor == tensor for load in n.compute.loads) for n in program.nests)


def _list_moves(program: Program, nest: Nest) -> Iterator[Family]:
    """compute_at: each copy to each other loop, and each earlier tensor that the nest reads."""
    for staging in nest.stagings:
        # The step moves the first of two copies with one name.
        is_first = next(n for n in program.nests if n.find_staging(staging.name)) is nest
        for at in _list_places(nest) if is_first else ():
            if at != staging.at:
                yield Family((ComputeAt(staging.name, at),))
    read = {load.tensor for load in nest.compute.loads}
    for earlier in program.nests:
        if earlier is not nest and earlier.output.name in read:
            for at in _list_places(nest):
                warps = (1, 2, 4, 8) if earlier.compute.reduction_axes else (1,)
                yield from _make_family(ComputeAt(earlier.output.name, at, Hole("w")), w=warps)


def _list_outputs(nest: Nest) -> Iterator[Family]:
    """cache_write and atomic."""
    name = nest.compute.output.name
    if not nest.has_accumulator:
        yield from _make_family(CacheWrite(name, vector=Hole("v")), v=_list_widths(nest.output))
    if nest.compute.reduction_axes and not nest.is_atomic:
        yield Family((Atomic(name),))


def _list_tensor_products(nest: Nest) -> Iterator[Family]:
    """tensorize: the product, for mma after fragments of both factors at each place."""
    depths = [x.name for x in nest.loops if x.is_reduction and x.is_serial]
    tiles = [s.name for s in nest.stagings if s.scope == "shared"]
    if not depths or len(tiles) != 2 or nest.instruction:
        return
    for name in dict.fromkeys(p.name for p in WGMMA_FAMILIES):
        yield Family((Tensorize(depths[-1], name),))
    for product in MMA_INSTRUCTIONS:
        for at in _list_places(nest):
            fragments = tuple(CacheRead(tile, "fragment", at) for tile in tiles)
            yield Family((*fragments, Tensorize(depths[-1], product.name)))


def _list_graph_rewrites(program: Program) -> Iterator[Family]:
    """rfactor, pack and compute_inline."""
    for nest in program.nests:
        if nest.is_unscheduled:
            for axis in nest.compute.reduction_axes:
                for parts in list_factors(min(axis.extent, MAX_PARTS + 1)):
                    if axis.extent % parts == 0:
                        yield Family((RFactor(axis.name, parts),))
    for spec in program.op.inputs:
        own = tuple(range(len(spec.shape)))
        for one, other in ((a, b) for a in own for b in own[a + 1 :]):
            order = tuple({one: other, other: one}.get(d, d) for d in own)
            yield Family((Pack(spec.name, order),))
    for nest in program.nests[:-1]:
        yield Family((ComputeInline(nest.output.name),))
