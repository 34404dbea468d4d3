"""Structures: step lists with holes, derived by rules from what a compute reads, never from its name.

The rules, in the order they apply:

0. *divide*: an axis that a read divides, such as that of a channel in groups, is cut where its
   quotients turn over (`divided.py`); the other rules see two axes. A group is a block's number, but where
   a sector holds several; tiles within it leave no rest; what a read still divides is not cut. Structures
   with the axis whole stay beside these.
1. *tile*: every spatial axis that some read does not depend on (so that its data are reused) is cut
   into blocks, vthreads, threads and a tile per thread; the others into blocks and threads, the
   last output axis also into a tile per thread.
2. *reduce*: every reduction axis is cut into an outer and an inner loop.
3. *stage*: each tensor with reuse across threads may go through shared memory, in its own order or
   with its last spatial dimension fastest; any tensor may go through registers.
4. *lanes*: the reduction may be spread over the lanes of a warp instead of kept in one thread; that comes
   first where rows are read once, along their neighbours. Where neighbours are other sums, as in the columns
   of a matrix, four lanes may stand side by side along them. What is read goes through registers where it
   can, for only so are loads of global memory vectors.
5. *hold*: results stay in registers until complete; computes that are elementwise in them, and their only
   readers, are put behind them, so that one launch makes both.
6. *fly*: where every tensor with reuse goes through shared memory and registers, the tiles may also come by
   asynchronous copies, if the target has them and they can move each tensor: elements of 4 bytes in any
   order, narrower ones side by side.
7. *fuse*: where the last compute goes over rows that all computes before it reduce, those may be computed
   on the spot, in the same launch; a tensor that both read then goes through shared memory, or not.
8. *multiply*: a sum of products of two tensors, of a type that tensor cores take, may be done by products of
   a warp: rows and columns cut into warps, tiles, and the instruction's lanes and registers, both factors
   through shared memory into fragments (`tensorized.py`). Outputs that only one of them has are fused into
   one dimension, where there are several, or the largest of them is taken. Where the target has products of
   a warpgroup, they may do it too, of factors that stay in shared memory (`warpgroups.py`).
9. *parts*: where the outputs are too few to fill the device, the longest sum may be cut into parts, which
   are outputs of a launch of their own, and summed by another (`in_parts.py`).
10. *pack*: where a window moves over the last dimension of what tensor cores are to multiply, it may be
   copied into another order first, the depth last (`packed.py`).
11. *leave out*: a structure whose stagings no size makes legal (a region along a fused index, reads of
   one tensor that move apart) is dropped; where none is left, everything is read where it lies.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from ekc.ir import expr as ex
from ekc.ir.inline import chains
from ekc.ir.limits import Limits
from ekc.ir.operator import Axis, Compute, Operator
from ekc.ir.steps import CacheRead, ComputeAt, Hole, Pipeline, Unroll, Vectorize
from ekc.search.space.builder import LANES, SIDE, Builder, Chain, Structure, builds, fits, widths
from ekc.search.space.digits import part_axes
from ekc.search.space.divided import divided, groups
from ekc.search.space.flying import DEPTHS, grain, grains, movable
from ekc.search.space.in_parts import in_parts, own_tables
from ekc.search.space.packed import packed
from ekc.search.space.tensorized import tensorized
from ekc.search.space.warpgroups import of_warpgroups

MOST_ROW_BYTES = 36 * 1024
"""A row that goes through shared memory: 48 KiB with what a tile may round up."""
LANES_HELD = "lanes registers"
"""What a structure over lanes is called whose data come through registers."""
MOST_ROUTINGS = 32
"""Ways of staging the tensors of one compute that become structures."""


@dataclass(frozen=True)
class Route:
    """How one tensor reaches the arithmetic."""

    tensor: str
    shared: bool
    order: tuple[int, ...] = ()
    """Dimensions as stored in shared memory; () is the tensor's own."""
    register: bool = False

    def __str__(self) -> str:
        path = ("shared" + ("'" if self.order else "") if self.shared else "global") + (
            "+register" if self.register else ""
        )
        return f"{self.tensor}:{path}"


def structures(op: Operator, limits: Limits) -> tuple[Structure, ...]:
    """Every structure of an operator on a target."""
    found = _in_launches(op, limits)
    more = [way(op, limits, found, _in_launches) for way in (in_parts, packed)]
    return (*found, *_fused(op), *itertools.chain(*more))


def _in_launches(op: Operator, limits: Limits) -> list[Structure]:
    """A launch for each sum. Those beside the largest get one structure each."""
    launches = chains(op)
    per_launch = [
        _of_launch(op, c, f"{c[0].output.name}/" if len(launches) > 1 else "", limits) for c in launches
    ]
    main = max(range(len(launches)), key=lambda i: launches[i][0].flops)
    beside = [_beside(options, c[0], limits) for options, c in zip(per_launch, launches, strict=True)]
    found = []
    for chosen in per_launch[main]:
        parts = [chosen if i == main else beside[i] for i in range(len(launches))]
        steps = tuple(s for p in parts for s in p.steps)
        found.append(Structure(chosen.name, steps, tuple(d for p in parts for d in p.decisions)))
    return found


def _beside(options: list[Structure], compute: Compute, limits: Limits) -> Structure:
    """The structure of a launch beside the largest: over lanes, as many as go, where it reads everything once
    and has fewer outputs than the device has threads, else the first."""
    once = not any(_reused(compute, load) for load in ex.loads(compute.body))
    few = math.prod(a.extent for a in compute.spatial) < limits.sms * limits.threads_per_sm
    lanes = [s for s in options if LANES_HELD in s.name]
    return lanes[-1] if lanes and once and few else options[0]


def _of_launch(op: Operator, chain: Chain, prefix: str, limits: Limits) -> list[Structure]:
    """Those that can be built; of an axis that is divided some with it cut there, others with it whole."""
    whole = [s for s in _derived(op, chain, prefix, limits) if builds(op, s)]
    in_place = dict.fromkeys(Route(x.tensor, False) for x in ex.loads(chain[0].body))
    found = [*_of_divided(op, chain, prefix, limits, whole), *whole]
    return found or [_tiled(op, chain, tuple(in_place), prefix)]


def _of_divided(
    op: Operator, chain: Chain, prefix: str, limits: Limits, whole: list[Structure]
) -> list[Structure]:
    """Those of rule 0, beside the others of the launch."""
    compute = divided(op, chain[0])
    if compute is chain[0]:
        return []
    tables = {d.name: d.table for s in whole for d in s.decisions}
    cut = _derived(op, (compute, *chain[1:]), prefix, limits)
    named = [own_tables(replace(s, name=f"{s.name} divided"), tables, "divided/") for s in cut]
    return [s for s in named if builds(op, s) and fits(op, s, limits)]


def _derived(op: Operator, chain: Chain, prefix: str, limits: Limits) -> list[Structure]:
    """What the rules make of a launch, whether it can be built or not."""
    compute = chain[0]
    reads = {x.tensor: x for x in ex.loads(compute.body)}
    routings = _routings(op, compute, reads)
    found = [_tiled(op, chain, routes, prefix) for routes in routings]
    if limits.async_copies:
        able = [r for r in routings if _flies(op, compute, r, reads)]
        found += [_tiled(op, chain, routes, prefix, flying=True) for routes in able]
    if compute.reduction:
        lane_axis = max(compute.reduction, key=lambda a: (_contiguous(a, reads), a.extent))
        columns = _columns(compute, reads, lane_axis)
        if columns and lane_axis.extent >= LANES // SIDE:
            found.append(_over_lanes(op, chain, lane_axis, tuple(reads), prefix, columns))
        if lane_axis.extent >= LANES:
            lanes = _over_lanes(op, chain, lane_axis, tuple(reads), prefix)
            if not builds(op, lanes):
                lanes = _over_lanes(op, chain, lane_axis, (), prefix)
            found = [lanes, *found] if _streams(compute, reads, lane_axis) else [*found, lanes]
    if not limits.tensor_cores:
        return found
    grouped = of_warpgroups(op, chain, prefix, limits)
    return [*grouped, *tensorized(op, chain, prefix, limits), *found]


def _streams(compute: Compute, reads: dict[str, ex.Load], axis: Axis) -> bool:
    """Whether a reduction walks along neighbours that no other output needs: rows of a tensor, read once."""
    along = [x for x in reads.values() if axis.name in ex.variables(x)]
    return any(axis.name in ex.variables(x.index[-1]) for x in along) and all(
        a.name in ex.variables(x) for x in along for a in compute.spatial if a.extent > 1
    )


def _columns(compute: Compute, reads: dict[str, ex.Load], summed: Axis) -> Axis | None:
    """The output axis along which the terms of a sum have their neighbours, where each is read once and they
    fill lanes."""
    once = [x for x in reads.values() if not _reused(compute, x) and summed.name in ex.variables(x)]
    for axis in compute.spatial:
        if axis.extent >= SIDE and any(ex.variables(x.index[-1]) == {axis.name} for x in once):
            return axis
    return None


def _contiguous(axis: Axis, reads: dict[str, ex.Load]) -> int:
    """How many reads have neighbours along an axis."""
    return sum(axis.name in ex.variables(x.index[-1]) for x in reads.values())


def _routings(op: Operator, compute: Compute, reads: dict[str, ex.Load]) -> list[tuple[Route, ...]]:
    """Every combination of routes, most staging first."""
    if not compute.reduction:
        return [tuple(Route(t, False, register=r) for t in reads) for r in (False, True)]
    options = []
    for tensor, load in reads.items():
        routes = []
        if _reused(compute, load):
            order = _spatial_last(op, compute, load)
            routes += [Route(tensor, True, order, register=True)] if order else []
            routes += [Route(tensor, True, register=True), Route(tensor, True)]
        options.append([*routes, Route(tensor, False, register=True)])
    # Staging everything comes first, nothing last; in between the count grows with every tensor.
    routings = list(itertools.product(*options))
    return [*routings[: MOST_ROUTINGS - 1], *routings[MOST_ROUTINGS - 1 :][-1:]]


def _flies(op: Operator, compute: Compute, routes: tuple[Route, ...], reads: dict[str, ex.Load]) -> bool:
    """Whether all that is reused comes through shared memory and registers, by copies (rule 6)."""
    reused = [r for r in routes if _reused(compute, reads[r.tensor])]
    ways = [r.shared and r.register and movable(op, compute, reads[r.tensor], r.order) for r in reused]
    return bool(ways) and all(ways)


def _reused(compute: Compute, load: ex.Load) -> bool:
    """Whether some spatial axis does not enter a read."""
    return any(a.name not in ex.variables(load) for a in compute.spatial)


def _spatial_last(op: Operator, compute: Compute, load: ex.Load) -> tuple[int, ...]:
    """The dimensions with a spatial one moved last; () where the last is spatial already."""
    spatial = {a.name for a in compute.spatial if a.extent > 1}
    spatial -= part_axes(compute) | groups(op, compute)
    touches = [bool(ex.variables(i) & spatial) for i in load.index]
    if touches[-1] or not any(touches):
        return ()
    last = max(d for d, t in enumerate(touches) if t)
    return (*(d for d in range(len(touches)) if d != last), last)


def _tiled(
    op: Operator, chain: Chain, routes: tuple[Route, ...], prefix: str, flying: bool = False
) -> Structure:
    b = Builder(op, chain, prefix)
    if flying:
        b.grains = grains(op, chain[0])
    _cut(b)
    b.bind()
    b.hold()
    at = b.outer[-1] if b.outer else None
    # Without an inner loop a register tile is filled once an outer iteration.
    close = b.inner[-1] if b.inner else at
    for r in routes:
        if r.shared:
            vector = _flight(b, r) if flying else b.width("vector", r.tensor)
            pad = b.hole(f"pad.{r.tensor}", (0, 1, 2, 4, 8))
            b.steps.append(CacheRead(r.tensor, "shared", at, vector, r.order, pad))
    for r in routes:
        if r.register:
            vector = b.width("move", r.tensor)
            source = f"{r.tensor}.shared" if r.shared else r.tensor
            b.steps.append(CacheRead(source, "register", close, vector, reader=b.reader(r.tensor, close)))
    if flying and at is not None:
        b.steps.append(Pipeline(at, b.hole("depth", DEPTHS), "async"))
    elif any(r.shared for r in routes) and at is not None:
        b.steps.append(Pipeline(at, b.hole("stages", (1, 2))))
    _unroll(b)
    return b.finish(" ".join(map(str, routes)) + (" flying" if flying else ""))


def _flight(b: Builder, route: Route) -> Hole | int:
    """Elements that one asynchronous copy moves: one where the order changes."""
    least = grain(b.op, route.tensor)
    return 1 if route.order else b.width("vector" if least == 1 else "flight", route.tensor, least)


def _over_lanes(
    op: Operator,
    chain: Chain,
    lane_axis: Axis,
    registers: tuple[str, ...],
    prefix: str,
    columns: Axis | None = None,
) -> Structure:
    """Rule 4: the innermost part of one reduction axis over lanes, a vector of it in each; with `columns`,
    lanes side by side along these too."""
    b = Builder(op, chain, prefix)
    side: tuple[str, ...] = ()
    for axis in b.compute.spatial:
        if b.whole(axis):
            b.blocks.append(axis.name)
        elif axis is columns:
            block, thread, beside, tile = b.side_by_side(axis)
            b.place(block=block, thread=thread, tile=tile)
            side = (beside,)
        else:
            block, thread, tile = b.tile(axis, {"thread": 32, "tile": 8}, "tile.rows")
            b.place(block=block, thread=thread, tile=tile)
    for axis in b.compute.reduction:
        if axis is not lane_axis:
            b.reduce(axis)
    outer, lane, vector = b.lanes(lane_axis, LANES // SIDE if side else LANES)
    b.outer.append(outer)
    b.inner.append(vector)
    b.bind((lane, *side))
    b.hold()
    for tensor in registers:
        width = b.width("move", tensor)
        b.steps.append(CacheRead(tensor, "register", outer, width))
    if not registers:
        b.steps.append(Unroll(vector))
    b.steps.append(Unroll(outer, b.hole("unroll", (1, 2, 4, 8, 16))))
    return b.finish(("column " if side else "") + (LANES_HELD if registers else "lanes"))


def _fused(op: Operator) -> list[Structure]:
    """Rule 7: the last compute goes over rows, and the computes before it reduce them on the spot."""
    *before, last = op.computes
    if not before or last.reduction or not all(map(_reduces_rows, before)):
        return []
    made = {c.output.name for c in before}
    rows = {v for x in ex.loads(last.body) if x.tensor in made for v in ex.variables(x)}
    if last.spatial[-1].name in rows or last.spatial[-1].extent == 1:
        return []
    again = dict.fromkeys(x.tensor for c in before for x in ex.loads(c.body))
    read = {x.tensor for x in ex.loads(last.body)} - made
    copied = tuple(t for t in again if t in read and _row_bytes(op, t, rows) <= MOST_ROW_BYTES)
    found = [_on_the_spot(op, rows, tensors) for tensors in dict.fromkeys((copied, ()))]
    return [s for s in found if builds(op, s)]


def _reduces_rows(compute: Compute) -> bool:
    reads = {x.tensor: x for x in ex.loads(compute.body)}
    return bool(compute.reduction) and any(_streams(compute, reads, a) for a in compute.reduction)


def _row_bytes(op: Operator, tensor: str, rows: set[str]) -> int:
    """The part of a tensor that the last compute goes along for one row."""
    spec = op.tensors[tensor]
    read = next(x for x in ex.loads(op.computes[-1].body) if x.tensor == tensor)
    along = [e for i, e in zip(read.index, spec.shape, strict=True) if not ex.variables(i) <= rows]
    return math.prod(along) * spec.dtype.bytes


def _on_the_spot(op: Operator, rows: set[str], copied: tuple[str, ...]) -> Structure:
    """One launch: rows over blocks and threads, each row within a block, `copied` in shared memory."""
    last = op.computes[-1]
    b = Builder(op, (last,), f"{last.output.name}/")
    vectors: tuple[int, ...] = ()
    for axis in last.spatial:
        if axis.extent == 1:
            b.blocks.append(axis.name)
        elif axis.name in rows:
            block, thread = b.tile(axis, {"thread": LANES}, "tile.rows")
            b.place(block=block, thread=thread)
        elif axis is last.spatial[-1]:
            vectors = tuple(v for v in widths(op, last.output.name) if v > 1 and axis.extent % v == 0)
            outer, thread, *tile = b.row(axis, vectors)
            b.place(outer=outer, thread=thread)
            b.tiles += tile
        else:
            b.outer.append(axis.name)
    b.bind()
    width = Hole(b.decisions[-1].holes[-1]) if vectors else 1
    for tensor in copied:
        vector = b.width("vector", tensor)
        b.steps.append(CacheRead(tensor, "shared", None, vector, reader=last.output.name))
    warps = b.hole("warps", (1, 2, 4, 8, 16, 32))
    b.steps += [ComputeAt(c.output.name, None, warps) for c in reversed(op.computes[:-1])]
    if vectors:
        at = b.outer[-1]
        b.steps += [CacheRead(f"{tensor}.shared", "register", at, width) for tensor in copied]
        b.steps.append(Vectorize(b.tiles[-1]))
    return b.finish("one launch" + "".join(f" {t}:shared" for t in copied))


def _cut(b: Builder) -> None:
    reads = ex.loads(b.compute.body)
    wide = [a for a in b.compute.spatial if a.extent > 1]
    for axis in b.compute.spatial:
        reused = bool(b.compute.reduction) and any(axis.name not in ex.variables(x) for x in reads)
        b.spatial(axis, reused, last=bool(wide) and axis is wide[-1])
    for axis in b.compute.reduction:
        b.reduce(axis)


def _unroll(b: Builder) -> None:
    for loop in b.inner[-1:]:
        b.steps.append(Unroll(loop, b.hole("unroll", (1, 2, 4, 8, 16))))
