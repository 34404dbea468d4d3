"""`StructureBuilder`: the steps, holes and loop roles that rules build a structure from.

Legality of asynchronous copies (`cp.async`) into shared memory, for any tile size (rule 6).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ekc.errors import ScheduleError
from ekc.ir import expr as ex
from ekc.ir.compute import Axis, Compute
from ekc.ir.divisions import compute_quotient_period
from ekc.ir.hardware.cp_async import ASYNC_COPIES_BY_BYTES
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.operator import Operator
from ekc.ir.program import Program, make_initial_program
from ekc.ir.rules.launch import iterate_checks
from ekc.ir.schedule import Bind, CacheWrite, ComputeInline, Hole, Reorder, Split, Step
from ekc.search.data.defaults import TILING
from ekc.search.sketches.decisions import (
    Decision,
    TileLevel,
    keep_exact_rows,
    make_choice,
    make_level,
    make_tiling,
)
from ekc.search.sketches.divided_axes import (
    derive_divide_steps,
    derive_part_axes,
    derive_short_groups,
    find_contiguous_axis,
    find_groups,
    match_digits,
)
from ekc.search.sketches.rules import ACCUMULATE, COPY, DIVIDE, REDUCE, SPREAD, STAGE, TILE, Rule

WARP_LANES = 32
"""Lanes of a warp."""
ComputeChain = tuple[Compute, ...]
"""The computes of one launch: the first, and the elementwise ones fused behind it."""
LOOP_ROLES = ("block", "vthread", "thread", "outer", "inner", "tile")
"""Roles of the loops of a structure."""


@dataclass(frozen=True, eq=False)
class Structure:
    """A list of steps with holes, and the decisions that fill the holes."""

    name: str
    steps: tuple[Step, ...]
    decisions: tuple[Decision, ...]
    rules: frozenset[Rule] = frozenset()
    """Rules that made it; none for one that a user wrote."""
    edits: tuple[str, ...] = ()
    """Changes that the search made since, such as `insert pipeline k.0`."""


def note_rule(structure: Structure, rule: Rule) -> Structure:
    """The structure, made by one more rule."""
    return replace(structure, rules=structure.rules | {rule})


class StructureBuilder:
    """Collects steps, decisions and the roles of loops for one launch."""

    def __init__(self, op: Operator, chain: ComputeChain, prefix: str) -> None:
        self.op, self.chain, self.compute, self.prefix = op, chain, chain[0], prefix
        divide_steps = derive_divide_steps(op, self.compute)
        short = derive_short_groups(op, self.compute)
        self.block_axes = derive_part_axes(self.compute) | find_groups(op, self.compute) - short
        """Axes that only number the blocks: groups and the parts of split-K (rules 0 and 9)."""
        self.short_group_axes = frozenset(name[:-1] + "1" for name in short)
        """Inner axes of short groups. A block computes several such groups, each of them completely."""
        self.exact_axes = frozenset(f"{step.axis}.1" for step in divide_steps)
        """Inner axes of `divide`, tiled by exact divisors: a partial tile would run into the next group."""
        self.uncut_axes = frozenset(
            name for name in self.exact_axes if compute_quotient_period(self.compute, name) > 1
        )
        """Exact axes that a read still divides: they are never tiled."""
        self.uncut_sum_axes = frozenset(f"{step.axis}.0" for step in divide_steps)
        """Outer axes of `divide` that are not tiled if they are summed, because their inner axes are: a tile
        of both would not be contiguous."""
        self.steps: list[Step] = [*divide_steps]
        self.decisions: list[Decision] = []
        self.loops: dict[str, list[str]] = {role: [] for role in LOOP_ROLES}
        """Role -> loops, outer first."""
        self.alignments: dict[str, int] = {}
        """Axis name -> elements that its tiles must be a multiple of. Absent: 1."""
        self.rules = {DIVIDE} if divide_steps else set()
        """Rules applied so far."""

    def tile_axis(self, axis: Axis, levels: dict[str, int], name: str = "tile") -> list[str]:
        """Split an axis by a new decision with these largest factors per level; loop names, outer first."""
        columns = tuple(make_level(kind, axis.extent, max_factor) for kind, max_factor in levels.items())
        alignment = self.alignments.get(axis.name, 1)
        name = f"{name}.{axis.name}" + (f".by{alignment}" if alignment > 1 else "")
        return self.split_axis(axis, make_tiling(name, axis.extent, columns, alignment))

    def split_into_columns(self, axis: Axis) -> list[str]:
        """Split an output axis into blocks, threads, adjacent lanes, and a tile of each lane (rule 4)."""
        threads, tile = (make_level(kind, axis.extent, 8) for kind in ("thread", "tile"))
        columns = (threads, TileLevel("lane", (TILING.column_lanes,)), tile)
        return self.split_axis(axis, make_tiling(f"tile.columns.{axis.name}", axis.extent, columns))

    def split_over_lanes(self, axis: Axis, lane_count: int) -> list[str]:
        """Split a reduction axis over lanes, contiguous elements in each lane. They are whole vectors of the
        tensors read along the axis, where the vectors of all lanes divide the extent (rule 4)."""
        self.rules.add(SPREAD)
        read = {
            x.tensor for x in ex.find_loads(self.compute.body) if axis.name in ex.find_variables(x.index[-1])
        }
        width = max((list_vector_widths(self.op, tensor)[-1] for tensor in read), default=1)
        per_lane = make_level("reduce", axis.extent, max(8, width))
        if axis.extent % (lane_count * width) == 0:
            per_lane = TileLevel("reduce", tuple(v for v in per_lane.values if v % width == 0))
        columns = (TileLevel("lane", (lane_count,)), per_lane)
        name = "tile.lanes" if lane_count == WARP_LANES else f"tile.{lane_count}lanes"
        return self.split_axis(axis, make_tiling(f"{name}.{axis.name}", axis.extent, columns))

    def split_row(self, axis: Axis, vector_widths: tuple[int, ...]) -> list[str]:
        """Split an axis of one block: iterations, threads in whole warps, vectors by widths (rule 7)."""
        top = max(WARP_LANES, min(1024, axis.extent))
        threads = TileLevel("thread", tuple(n for n in (32, 64, 128, 256, 512, 1024) if n <= top))
        columns = (threads, TileLevel("vector", vector_widths)) if vector_widths else (threads,)
        return self.split_axis(axis, make_tiling(f"tile.row.{axis.name}", axis.extent, columns))

    def split_axis(self, axis: Axis, decision: Decision) -> list[str]:
        """Split an axis by a decision, an exact axis by exact divisors only; loop names, outer to inner."""
        if axis.name in self.exact_axes:
            decision = keep_exact_rows(decision, axis.extent)
        self.decisions.append(decision)
        self.steps.append(Split(axis.name, tuple(Hole(h) for h in decision.holes)))
        return [f"{axis.name}.{i}" for i in range(len(decision.holes) + 1)]

    def assign_roles(self, **loops: str) -> None:
        """Record the role of each new loop: `assign_roles(block="i.0", thread="i.1")`."""
        for role, loop in loops.items():
            self.loops[role].append(loop)

    def add_choice(self, name: str, values: tuple[int, ...]) -> Hole:
        """Add a decision for a single number; the hole that it fills."""
        decision = make_choice(self.prefix + name, values)
        self.decisions.append(decision)
        return Hole(decision.name)

    def add_vector_width(self, kind: str, tensor: str, min_width: int = 1) -> Hole:
        """Add a decision for the elements of a tensor that one access moves, at least `min_width`. It starts
        at its maximum: of 19,172 pairs of recorded GEMMs that differ in one width, the wider was faster in 92
        % (`benchmarks/simulator/load_width.py`)."""
        values = tuple(v for v in list_vector_widths(self.op, tensor) if v >= min_width)
        decision = make_choice(f"{self.prefix}{kind}.{tensor}", values, starts_at_max=True)
        self.decisions.append(decision)
        return Hole(decision.name)

    def add_copy_width(self, tensor: str, order: tuple[int, ...], is_async: bool) -> Hole | int:
        """Add a decision for the elements that one copy into shared memory moves. `order`: order of the
        dimensions there, () for that of the tensor. An asynchronous copy that changes it moves one (rules 3
        and 6)."""
        self.rules |= {STAGE, COPY} if is_async else {STAGE}
        if order and is_async:
            return 1
        alignment = compute_copy_alignment(self.op, tensor) if is_async else 1
        return self.add_vector_width("vector" if alignment == 1 else "flight", tensor, alignment)

    def find_reader(self, tensor: str, at: str | None) -> str:
        """Output to name in a `CacheRead` outside all loops, where several computes read the tensor, or
        ""."""
        readers = [c for c in self.op.computes if tensor in {x.tensor for x in ex.find_loads(c.body)}]
        return self.compute.output.name if at is None and len(readers) > 1 else ""

    def is_block_axis(self, axis: Axis) -> bool:
        """Whether a spatial axis only numbers the blocks."""
        return axis.extent == 1 or axis.name in self.block_axes | self.uncut_axes

    def cut_spatial(self, axis: Axis, is_reused: bool, is_last: bool) -> None:
        """Tile a spatial axis (rule 1). `is_reused`: some read does not depend on the axis."""
        self.rules.add(TILE)
        if axis.name in self.uncut_axes and is_last:
            self.loops["tile"].append(axis.name)
        elif self.is_block_axis(axis):
            self.loops["block"].append(axis.name)
        elif axis.name in self.short_group_axes:
            t, n = self.tile_axis(axis, {"tile": TILING.max_tile})
            self.assign_roles(thread=t, tile=n)
        elif is_reused:
            tiled = [a for a in self.compute.spatial_axes if a.extent > 1 and a.name not in self.block_axes]
            vthreads, tile = TILING.max_vthreads, TILING.max_tile
            if len(tiled) > 2:
                vthreads, tile = vthreads // 4, tile // 2
            b, v, t, n = self.tile_axis(
                axis, {"vthread": vthreads, "thread": TILING.max_threads, "tile": tile}
            )
            self.assign_roles(block=b, vthread=v, thread=t, tile=n)
        elif is_last:
            b, t, n = self.tile_axis(axis, {"thread": TILING.max_threads, "tile": 8})
            self.assign_roles(block=b, thread=t, tile=n)
        else:
            b, t = self.tile_axis(axis, {"thread": TILING.max_threads})
            self.assign_roles(block=b, thread=t)

    def cut_reduction(self, axis: Axis) -> None:
        """Tile a reduction axis into an outer and an inner loop (rule 2)."""
        self.rules.add(REDUCE)
        if axis.extent == 1 or axis.name in self.uncut_sum_axes:
            self.loops["outer"].append(axis.name)
        elif axis.name in self.uncut_axes:
            self.loops["inner" if axis.extent <= TILING.max_reduce else "outer"].append(axis.name)
        else:
            outer, inner = self.tile_axis(axis, {"reduce": TILING.max_reduce})
            self.assign_roles(outer=outer, inner=inner)

    def order_and_bind(self, lane_loops: tuple[str, ...] = ()) -> None:
        """Order the loops and bind them to blocks, threads and vthreads; `lane_loops` vary fastest."""
        threads = (*self.loops["thread"], *lane_loops)
        serial = (*self.loops["outer"], *self.loops["inner"], *self.loops["vthread"], *self.loops["tile"])
        self.steps.append(Reorder((*self.loops["block"], *threads, *serial)))
        self.steps += [Bind(x, "block.x") for x in self.loops["block"]]
        self.steps += [Bind(x, "thread.x") for x in threads]
        self.steps += [Bind(x, "vthread") for x in self.loops["vthread"]]

    def cache_results(self, vector: Hole | int | None = None) -> None:
        """Keep results in registers until they are complete, and fuse the epilogues there (rule 5).

        `vector`: elements that one store writes; None adds a decision for them.
        """
        self.rules.add(ACCUMULATE)
        if vector is None:
            vector = self.add_vector_width("vector", self.chain[-1].output.name)
        self.steps.append(CacheWrite(self.compute.output.name, "register", vector))
        self.steps += [ComputeInline(compute.output.name) for compute in self.chain[:-1]]

    def build(self, name: str) -> Structure:
        """Return the structure of this name."""
        return Structure(self.prefix + name, tuple(self.steps), tuple(self.decisions), frozenset(self.rules))


def is_buildable(op: Operator, structure: Structure) -> bool:
    """Whether the steps apply without an error for the first and the last value of every decision, which each
    have one. Resource limits are not checked: they depend on the values."""
    if not all(d.size for d in structure.decisions):
        return False
    try:
        derive_launches(_make_program(op, structure, [0, -1]))
    except ScheduleError:
        return False
    return True


def has_legal_member(op: Operator, structure: Structure, limits: LaunchLimits) -> bool:
    """Whether the schedule with the first value of every decision obeys all rules of a target."""
    return all(bool(np.all(check.ok)) for check in iterate_checks(_make_program(op, structure, [0]), limits))


def _make_program(op: Operator, structure: Structure, rows: list[int]) -> Program:
    """The Program with some rows of the table of every decision, as a population."""
    program = make_initial_program(op)
    values = {hole: d.table[rows, i] for d in structure.decisions for i, hole in enumerate(d.holes)}
    for step in structure.steps:
        program = step.fill_holes(values).apply(program)
    return program


def list_vector_widths(op: Operator, tensor: str) -> tuple[int, ...]:
    """Vector widths of a tensor in elements, up to 16 bytes."""
    return tuple(v for v in (1, 2, 4, 8, 16) if v * op.tensors[tensor].dtype.bytes <= 16)


def compute_copy_alignment(op: Operator, tensor: str) -> int:
    """Elements of a tensor that the narrowest asynchronous copy moves."""
    return max(1, min(ASYNC_COPIES_BY_BYTES) // op.tensors[tensor].dtype.bytes)


def can_copy_async(op: Operator, compute: Compute, load: ex.Load, order: tuple[int, ...]) -> bool:
    """Whether asynchronous copies can store a tensor in this dimension order. Elements of 4 bytes: any order.
    Narrower elements: only the tensor's own order, along an axis whose tiles hold whole copies."""
    alignment, last = compute_copy_alignment(op, load.tensor), load.index[-1]
    digits = match_digits(compute, last)
    # A copy that begins in the middle of a row must be aligned too.
    extents = [op.tensors[load.tensor].shape[-1], *([compute.find_axis(digits[1]).extent] if digits else [])]
    contiguous = (digits or isinstance(last, ex.Var)) and all(e % alignment == 0 for e in extents)
    return alignment == 1 or bool(contiguous and not order)


def compute_axis_alignments(op: Operator, compute: Compute) -> dict[str, int]:
    """Axis name -> elements that its tiles must be a multiple of, so that no tile cuts a copy in two."""
    found: dict[str, int] = {}
    for load in ex.find_loads(compute.body):
        axis = find_contiguous_axis(compute, load.index[-1])
        if axis is not None:
            found[axis] = max(found.get(axis, 1), compute_copy_alignment(op, load.tensor))
    return found
