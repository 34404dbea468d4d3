"""What a rule of the space builds a structure with: steps, holes and the roles of loops, for one launch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.errors import ScheduleError
from ekc.ir import expr as ex
from ekc.ir.limits import Limits
from ekc.ir.operator import Axis, Compute, Operator
from ekc.ir.program import Program, initial
from ekc.ir.quotients import turns_at
from ekc.ir.rules.launch import checks
from ekc.ir.steps import Bind, CacheWrite, ComputeInline, Hole, Reorder, Split, Step
from ekc.ir.tree import kernels
from ekc.search.space.decisions import Decision, Level, choice, dividing_rows, level, tiling
from ekc.search.space.digits import part_axes
from ekc.search.space.divided import divided_by, groups, short_groups

VTHREADS, THREADS, TILE, REDUCE, LANES = 8, 256, 16, 64, 32
"""Largest factor at each tile level. Ours, not the paper's."""
SIDE = 4
"""Lanes side by side along columns: with 16 bytes each they fill two sectors, as a burst of DRAM does."""
Chain = tuple[Compute, ...]
"""What one launch makes: a compute, and those put behind it."""


@dataclass(frozen=True, eq=False)
class Structure:
    """A step list with holes, and the decisions that fill them."""

    name: str
    steps: tuple[Step, ...]
    decisions: tuple[Decision, ...]


class Builder:
    """Collects steps, decisions and loop names for one launch."""

    def __init__(self, op: Operator, chain: Chain, prefix: str) -> None:
        self.op, self.chain, self.compute, self.prefix = op, chain, chain[0], prefix
        before = divided_by(op, self.compute)
        short = short_groups(op, self.compute)
        self.parts = part_axes(self.compute) | groups(op, self.compute) - short
        """Axes that are a block's number alone (rules 0 and 9)."""
        self.short = frozenset(name[:-1] + "1" for name in short)
        """What is inside groups so short that blocks have several of them, and each of these whole."""
        self.exact = frozenset(f"{step.axis}.1" for step in before)
        """Axes whose tiles leave no rest: where these end, others of the same go on."""
        self.phases = frozenset(name for name in self.exact if turns_at(self.compute, name) > 1)
        """Those that something read still divides: no tile cuts them."""
        self.whole_sums = frozenset(f"{step.axis}.0" for step in before)
        """Sums that are not cut, for their inner digits are: a tile of both would be one in slices."""
        self.steps: list[Step] = [*before]
        self.decisions: list[Decision] = []
        self.blocks: list[str] = []
        self.vthreads: list[str] = []
        self.threads: list[str] = []
        self.outer: list[str] = []
        self.inner: list[str] = []
        self.tiles: list[str] = []
        self.grains: dict[str, int] = {}
        """Elements that the tiles of an axis are a multiple of, where not 1."""

    def tile(self, axis: Axis, levels: dict[str, int], name: str = "tile") -> list[str]:
        """Split an axis by a new decision; the loop names from outer to inner."""
        columns = tuple(level(kind, axis.extent, most) for kind, most in levels.items())
        grain = self.grains.get(axis.name, 1)
        name = f"{name}.{axis.name}" + (f".by{grain}" if grain > 1 else "")
        return self.split(axis, tiling(name, axis.extent, columns, grain))

    def side_by_side(self, axis: Axis) -> list[str]:
        """Split an output axis into blocks, threads, lanes side by side, and a tile of each."""
        threads, tile = (level(kind, axis.extent, 8) for kind in ("thread", "tile"))
        columns = (threads, Level("lane", (SIDE,)), tile)
        return self.split(axis, tiling(f"tile.columns.{axis.name}", axis.extent, columns))

    def lanes(self, axis: Axis, lanes: int) -> list[str]:
        """Split a reduction axis over the lanes of a warp, neighbours in each: whole vectors of what is read
        along it, where those of a warp make the axis without a rest."""
        read = {x.tensor for x in ex.loads(self.compute.body) if axis.name in ex.variables(x.index[-1])}
        wide = max((widths(self.op, tensor)[-1] for tensor in read), default=1)
        own = level("reduce", axis.extent, max(8, wide))
        if axis.extent % (lanes * wide) == 0:
            own = Level("reduce", tuple(v for v in own.values if v % wide == 0))
        columns = (Level("lane", (lanes,)), own)
        name = "tile.lanes" if lanes == LANES else f"tile.{lanes}lanes"
        return self.split(axis, tiling(f"{name}.{axis.name}", axis.extent, columns))

    def row(self, axis: Axis, widths: tuple[int, ...]) -> list[str]:
        """Split an axis that stays within a block: iterations, whole warps, vectors where any width fits."""
        top = max(LANES, min(1024, axis.extent))
        threads = Level("thread", tuple(n for n in (32, 64, 128, 256, 512, 1024) if n <= top))
        columns = (threads, Level("vector", widths)) if widths else (threads,)
        return self.split(axis, tiling(f"tile.row.{axis.name}", axis.extent, columns))

    def split(self, axis: Axis, decision: Decision) -> list[str]:
        """Split an axis as a decision says, where that leaves no rest if none may be."""
        if axis.name in self.exact:
            decision = dividing_rows(decision, axis.extent)
        self.decisions.append(decision)
        self.steps.append(Split(axis.name, tuple(Hole(h) for h in decision.holes)))
        return [f"{axis.name}.{i}" for i in range(len(decision.holes) + 1)]

    def place(self, **loops: str) -> None:
        """Note which role each new loop plays."""
        roles = {
            "block": self.blocks,
            "vthread": self.vthreads,
            "thread": self.threads,
            "outer": self.outer,
            "inner": self.inner,
            "tile": self.tiles,
        }
        for role, loop in loops.items():
            roles[role].append(loop)

    def hole(self, name: str, values: tuple[int, ...]) -> Hole:
        """A new single-number decision."""
        decision = choice(self.prefix + name, values)
        self.decisions.append(decision)
        return Hole(decision.name)

    def width(self, kind: str, tensor: str, least: int = 1) -> Hole:
        """How many elements of a tensor move at once: as many as may, `least` at the fewest. Fewer are more
        instructions for the same bytes: of 19,172 pairs of recorded GEMMs that differ in one width, the wider
        was the faster in 92 % (benchmarks/recorded_widths.py)."""
        values = tuple(v for v in widths(self.op, tensor) if v >= least)
        decision = choice(f"{self.prefix}{kind}.{tensor}", values, eager=True)
        self.decisions.append(decision)
        return Hole(decision.name)

    def reader(self, tensor: str, at: str | None) -> str:
        """The output to name where no loop tells which of several computes reads a tensor."""
        reading = [c for c in self.op.computes if tensor in {x.tensor for x in ex.loads(c.body)}]
        return self.compute.output.name if at is None and len(reading) > 1 else ""

    def whole(self, axis: Axis) -> bool:
        """Whether a spatial axis is a block's number and nothing else."""
        return axis.extent == 1 or axis.name in self.parts | self.phases

    def spatial(self, axis: Axis, reused: bool, last: bool) -> None:
        """Cut a spatial axis (rule 1)."""
        if axis.name in self.phases and last:
            self.tiles.append(axis.name)
        elif self.whole(axis):
            self.blocks.append(axis.name)
        elif axis.name in self.short:
            t, n = self.tile(axis, {"tile": TILE})
            self.place(thread=t, tile=n)
        elif reused:
            many = sum(a.extent > 1 and a.name not in self.parts for a in self.compute.spatial) > 2
            own = (
                {"vthread": VTHREADS // 4, "tile": TILE // 2} if many else {"vthread": VTHREADS, "tile": TILE}
            )
            b, v, t, n = self.tile(axis, {"vthread": own["vthread"], "thread": THREADS, "tile": own["tile"]})
            self.place(block=b, vthread=v, thread=t, tile=n)
        elif last:
            b, t, n = self.tile(axis, {"thread": THREADS, "tile": 8})
            self.place(block=b, thread=t, tile=n)
        else:
            b, t = self.tile(axis, {"thread": THREADS})
            self.place(block=b, thread=t)

    def reduce(self, axis: Axis) -> None:
        """Cut a reduction axis (rule 2)."""
        if axis.extent == 1:
            self.outer.append(axis.name)
            return
        if axis.name in self.phases:
            (self.inner if axis.extent <= REDUCE else self.outer).append(axis.name)
            return
        if axis.name in self.whole_sums:
            self.outer.append(axis.name)
            return
        outer, inner = self.tile(axis, {"reduce": REDUCE})
        self.place(outer=outer, inner=inner)

    def bind(self, last: tuple[str, ...] = ()) -> None:
        """Order the loops and spread them; `last` are lanes, fastest of all threads."""
        self.steps.append(
            Reorder(
                (*self.blocks, *self.threads, *last, *self.outer, *self.inner, *self.vthreads, *self.tiles)
            )
        )
        self.steps += [Bind(x, "block.x") for x in self.blocks]
        self.steps += [Bind(x, "thread.x") for x in (*self.threads, *last)]
        self.steps += [Bind(x, "vthread") for x in self.vthreads]

    def hold(self, vector: Hole | int | None = None) -> None:
        """Results in registers until complete, those behind them with them (rule 5)."""
        if vector is None:
            written = self.chain[-1].output.name
            vector = self.width("vector", written)
        self.steps.append(CacheWrite(self.compute.output.name, "register", vector))
        self.steps += [ComputeInline(done.output.name) for done in self.chain[:-1]]

    def finish(self, name: str) -> Structure:
        """The structure."""
        return Structure(self.prefix + name, tuple(self.steps), tuple(self.decisions))


def builds(op: Operator, structure: Structure) -> bool:
    """Whether the steps make a Program at all, and every decision has a choice; what the numbers may be is
    for the rules."""
    if not all(d.size for d in structure.decisions):
        return False
    try:
        kernels(_least(op, structure))
    except ScheduleError:
        return False
    return True


def fits(op: Operator, structure: Structure, limits: Limits) -> bool:
    """Whether the least member of a structure that builds is legal."""
    return all(bool(np.all(check.ok)) for check in checks(_least(op, structure), limits))


def _least(op: Operator, structure: Structure) -> Program:
    """The Program of the first row of every table, as a population of one."""
    program = initial(op)
    values = {hole: d.table[:1, i] for d in structure.decisions for i, hole in enumerate(d.holes)}
    for step in structure.steps:
        program = step.filled(values).apply(program)
    return program


def widths(op: Operator, tensor: str) -> tuple[int, ...]:
    """Vector widths up to 16 bytes."""
    return tuple(v for v in (1, 2, 4, 8, 16) if v * op.tensors[tensor].dtype.bytes <= 16)
