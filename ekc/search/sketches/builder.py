"""What a rule of the space builds a structure with: steps, holes and the roles of loops, for one launch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.errors import ScheduleError
from ekc.ir import expr as ex
from ekc.ir.compute import Axis, Compute
from ekc.ir.divisions import find_quotient_period
from ekc.ir.hardware.limits import Limits
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.operator import Operator
from ekc.ir.program import Program, make_initial_program
from ekc.ir.rules.launch import iterate_checks
from ekc.ir.schedule import Bind, CacheWrite, ComputeInline, Hole, Reorder, Split, Step
from ekc.search.sketches.decisions import (
    Decision,
    TileLevel,
    keep_exact_rows,
    make_choice,
    make_level,
    make_tiling,
)
from ekc.search.sketches.divided_axes import find_divide_steps, find_groups, find_part_axes, find_short_groups

MAX_VTHREADS, MAX_THREADS, MAX_TILE, MAX_REDUCE, WARP_LANES = 8, 256, 16, 64, 32
"""Largest factor at each tile level. Ours, not the paper's."""
COLUMN_LANES = 4
"""Lanes side by side along columns: with 16 bytes each they fill two sectors, as a burst of DRAM does."""
ComputeChain = tuple[Compute, ...]
"""What one launch makes: a compute, and those put behind it."""


@dataclass(frozen=True, eq=False)
class Structure:
    """A step list with holes, and the decisions that fill them."""

    name: str
    steps: tuple[Step, ...]
    decisions: tuple[Decision, ...]


class StructureBuilder:
    """Collects steps, decisions and loop names for one launch."""

    def __init__(self, op: Operator, chain: ComputeChain, prefix: str) -> None:
        self.op, self.chain, self.compute, self.prefix = op, chain, chain[0], prefix
        before = find_divide_steps(op, self.compute)
        short = find_short_groups(op, self.compute)
        self.block_axes = find_part_axes(self.compute) | find_groups(op, self.compute) - short
        """Axes that are a block's number alone (rules 0 and 9)."""
        self.short_group_axes = frozenset(name[:-1] + "1" for name in short)
        """What is inside groups so short that blocks have several of them, and each of these whole."""
        self.exact_axes = frozenset(f"{step.axis}.1" for step in before)
        """Axes whose tiles leave no rest: where these end, others of the same go on."""
        self.uncut_axes = frozenset(
            name for name in self.exact_axes if find_quotient_period(self.compute, name) > 1
        )
        """Those that something read still divides: no tile cuts them."""
        self.uncut_sum_axes = frozenset(f"{step.axis}.0" for step in before)
        """Sums that are not cut, for their inner digits are: a tile of both would be one in slices."""
        self.steps: list[Step] = [*before]
        self.decisions: list[Decision] = []
        self.block_loops: list[str] = []
        self.vthread_loops: list[str] = []
        self.thread_loops: list[str] = []
        self.outer_loops: list[str] = []
        self.inner_loops: list[str] = []
        self.tile_loops: list[str] = []
        self.alignments: dict[str, int] = {}
        """Elements that the tiles of an axis are a multiple of, where not 1."""

    def tile_axis(self, axis: Axis, levels: dict[str, int], name: str = "tile") -> list[str]:
        """Split an axis by a new decision; the loop names from outer to inner."""
        columns = tuple(make_level(kind, axis.extent, most) for kind, most in levels.items())
        grain = self.alignments.get(axis.name, 1)
        name = f"{name}.{axis.name}" + (f".by{grain}" if grain > 1 else "")
        return self.split_axis(axis, make_tiling(name, axis.extent, columns, grain))

    def split_into_columns(self, axis: Axis) -> list[str]:
        """Split an output axis into blocks, threads, lanes side by side, and a tile of each."""
        threads, tile = (make_level(kind, axis.extent, 8) for kind in ("thread", "tile"))
        columns = (threads, TileLevel("lane", (COLUMN_LANES,)), tile)
        return self.split_axis(axis, make_tiling(f"tile.columns.{axis.name}", axis.extent, columns))

    def split_over_lanes(self, axis: Axis, lane_count: int) -> list[str]:
        """Split a reduction axis over the lanes of a warp, neighbours in each: whole vectors of what is read
        along it, where those of a warp make the axis without a rest."""
        read = {
            x.tensor for x in ex.find_loads(self.compute.body) if axis.name in ex.find_variables(x.index[-1])
        }
        wide = max((list_vector_widths(self.op, tensor)[-1] for tensor in read), default=1)
        own = make_level("reduce", axis.extent, max(8, wide))
        if axis.extent % (lane_count * wide) == 0:
            own = TileLevel("reduce", tuple(v for v in own.values if v % wide == 0))
        columns = (TileLevel("lane", (lane_count,)), own)
        name = "tile.lanes" if lane_count == WARP_LANES else f"tile.{lane_count}lanes"
        return self.split_axis(axis, make_tiling(f"{name}.{axis.name}", axis.extent, columns))

    def split_row(self, axis: Axis, vector_widths: tuple[int, ...]) -> list[str]:
        """Split an axis that stays within a block: iterations, whole warps, vectors where any width fits."""
        top = max(WARP_LANES, min(1024, axis.extent))
        threads = TileLevel("thread", tuple(n for n in (32, 64, 128, 256, 512, 1024) if n <= top))
        columns = (threads, TileLevel("vector", vector_widths)) if vector_widths else (threads,)
        return self.split_axis(axis, make_tiling(f"tile.row.{axis.name}", axis.extent, columns))

    def split_axis(self, axis: Axis, decision: Decision) -> list[str]:
        """Split an axis as a decision says, where that leaves no rest if none may be."""
        if axis.name in self.exact_axes:
            decision = keep_exact_rows(decision, axis.extent)
        self.decisions.append(decision)
        self.steps.append(Split(axis.name, tuple(Hole(h) for h in decision.holes)))
        return [f"{axis.name}.{i}" for i in range(len(decision.holes) + 1)]

    def assign_roles(self, **loops: str) -> None:
        """Note which role each new loop plays."""
        roles = {
            "block": self.block_loops,
            "vthread": self.vthread_loops,
            "thread": self.thread_loops,
            "outer": self.outer_loops,
            "inner": self.inner_loops,
            "tile": self.tile_loops,
        }
        for role, loop in loops.items():
            roles[role].append(loop)

    def add_choice(self, name: str, values: tuple[int, ...]) -> Hole:
        """A new single-number decision."""
        decision = make_choice(self.prefix + name, values)
        self.decisions.append(decision)
        return Hole(decision.name)

    def add_vector_width(self, kind: str, tensor: str, min_width: int = 1) -> Hole:
        """How many elements of a tensor move at once: as many as may, `least` at the fewest. Fewer are more
        instructions for the same bytes: of 19,172 pairs of recorded GEMMs that differ in one width, the wider
        was the faster in 92 % (benchmarks/recorded_widths.py)."""
        values = tuple(v for v in list_vector_widths(self.op, tensor) if v >= min_width)
        decision = make_choice(f"{self.prefix}{kind}.{tensor}", values, starts_at_max=True)
        self.decisions.append(decision)
        return Hole(decision.name)

    def find_reader(self, tensor: str, at: str | None) -> str:
        """The output to name where no loop tells which of several computes reads a tensor."""
        reading = [c for c in self.op.computes if tensor in {x.tensor for x in ex.find_loads(c.body)}]
        return self.compute.output.name if at is None and len(reading) > 1 else ""

    def is_block_axis(self, axis: Axis) -> bool:
        """Whether a spatial axis is a block's number and nothing else."""
        return axis.extent == 1 or axis.name in self.block_axes | self.uncut_axes

    def cut_spatial(self, axis: Axis, is_reused: bool, is_last: bool) -> None:
        """Cut a spatial axis (rule 1)."""
        if axis.name in self.uncut_axes and is_last:
            self.tile_loops.append(axis.name)
        elif self.is_block_axis(axis):
            self.block_loops.append(axis.name)
        elif axis.name in self.short_group_axes:
            t, n = self.tile_axis(axis, {"tile": MAX_TILE})
            self.assign_roles(thread=t, tile=n)
        elif is_reused:
            many = sum(a.extent > 1 and a.name not in self.block_axes for a in self.compute.spatial_axes) > 2
            own = (
                {"vthread": MAX_VTHREADS // 4, "tile": MAX_TILE // 2}
                if many
                else {"vthread": MAX_VTHREADS, "tile": MAX_TILE}
            )
            b, v, t, n = self.tile_axis(
                axis, {"vthread": own["vthread"], "thread": MAX_THREADS, "tile": own["tile"]}
            )
            self.assign_roles(block=b, vthread=v, thread=t, tile=n)
        elif is_last:
            b, t, n = self.tile_axis(axis, {"thread": MAX_THREADS, "tile": 8})
            self.assign_roles(block=b, thread=t, tile=n)
        else:
            b, t = self.tile_axis(axis, {"thread": MAX_THREADS})
            self.assign_roles(block=b, thread=t)

    def cut_reduction(self, axis: Axis) -> None:
        """Cut a reduction axis (rule 2)."""
        if axis.extent == 1:
            self.outer_loops.append(axis.name)
            return
        if axis.name in self.uncut_axes:
            (self.inner_loops if axis.extent <= MAX_REDUCE else self.outer_loops).append(axis.name)
            return
        if axis.name in self.uncut_sum_axes:
            self.outer_loops.append(axis.name)
            return
        outer, inner = self.tile_axis(axis, {"reduce": MAX_REDUCE})
        self.assign_roles(outer=outer, inner=inner)

    def order_and_bind(self, lane_loops: tuple[str, ...] = ()) -> None:
        """Order the loops and spread them; `last` are lanes, fastest of all threads."""
        self.steps.append(
            Reorder(
                (
                    *self.block_loops,
                    *self.thread_loops,
                    *lane_loops,
                    *self.outer_loops,
                    *self.inner_loops,
                    *self.vthread_loops,
                    *self.tile_loops,
                )
            )
        )
        self.steps += [Bind(x, "block.x") for x in self.block_loops]
        self.steps += [Bind(x, "thread.x") for x in (*self.thread_loops, *lane_loops)]
        self.steps += [Bind(x, "vthread") for x in self.vthread_loops]

    def cache_results(self, vector: Hole | int | None = None) -> None:
        """Results in registers until complete, those behind them with them (rule 5)."""
        if vector is None:
            written = self.chain[-1].output.name
            vector = self.add_vector_width("vector", written)
        self.steps.append(CacheWrite(self.compute.output.name, "register", vector))
        self.steps += [ComputeInline(done.output.name) for done in self.chain[:-1]]

    def build(self, name: str) -> Structure:
        """The structure."""
        return Structure(self.prefix + name, tuple(self.steps), tuple(self.decisions))


def is_buildable(op: Operator, structure: Structure) -> bool:
    """Whether the steps make a Program at all, and every decision has a choice; what the numbers may be is
    for the rules."""
    if not all(d.size for d in structure.decisions):
        return False
    try:
        derive_launches(_make_smallest_program(op, structure))
    except ScheduleError:
        return False
    return True


def has_legal_member(op: Operator, structure: Structure, limits: Limits) -> bool:
    """Whether the least member of a structure that builds is legal."""
    return all(
        bool(np.all(check.ok)) for check in iterate_checks(_make_smallest_program(op, structure), limits)
    )


def _make_smallest_program(op: Operator, structure: Structure) -> Program:
    """The Program of the first row of every table, as a population of one."""
    program = make_initial_program(op)
    values = {hole: d.table[:1, i] for d in structure.decisions for i, hole in enumerate(d.holes)}
    for step in structure.steps:
        program = step.fill_holes(values).apply(program)
    return program


def list_vector_widths(op: Operator, tensor: str) -> tuple[int, ...]:
    """Vector widths up to 16 bytes."""
    return tuple(v for v in (1, 2, 4, 8, 16) if v * op.tensors[tensor].dtype.bytes <= 16)
