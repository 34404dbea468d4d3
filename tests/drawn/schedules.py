"""Random legal schedules for random small operators.

The same drawing code serves hypothesis (which shrinks) and `random.Random` (for a fixed sample):
all it needs is a way to choose one of several things.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence

from hypothesis import assume
from hypothesis import strategies as st

import ekc.ir.expr as ex
from ekc.errors import ScheduleError
from ekc.ir.divisions import compute_quotient_period
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.operator import Operator
from ekc.ir.program import BLOCK_LEVELS, Loop, Nest, Program
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule import (
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Fuse,
    Pipeline,
    Reorder,
    Split,
    Step,
    Unroll,
    Vectorize,
)
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.operators import Choose, draw_operator

MOST_THREADS = 64
MOST_POINTS = 100_000
"""Most iterations of all loops of a launch, tails included."""
EARLY = ("split",) * 5 + ("fuse", "reorder", "reorder") + ("compute_inline",) * 3
MIDDLE = ("bind",) * 4 + ("cache_write", "reorder", "split", "innermost", "innermost", "vectorize")
MIDDLE += ("vectorize", "compute_at", "compute_at", "compute_inline", "lanes")
LATE = ("cache_read",) * 5 + ("compute_at", "compute_inline", "pipeline", "pipeline", "unroll", "bind")
LATE += ("vectorize", "cache_write")


def draw_schedule(choose: Choose, op: Operator, most: int = 20) -> Schedule:
    """3 to `most` legal steps (fewer where nearly everything is refused)."""
    return _longer(choose, Schedule(op), most)


def draw_in_parts(choose: Choose, op: Operator, most: int = 20) -> Schedule | None:
    """Random steps after `rfactor`; None where no sum can be split."""
    sums = [
        (a.name, parts)
        for compute in op.computes
        for a in compute.reduction_axes
        for parts in range(2, a.extent)
        if a.extent % parts == 0
    ]
    return _longer(choose, Schedule(op).rfactor(*choose(sums)), most) if sums else None


def draw_packed(choose: Choose, op: Operator, most: int = 20) -> Schedule | None:
    """Random steps after `pack` of an input; None where no input has two dimensions."""
    inputs = [t for t in op.inputs if len(t.shape) > 1 and t.dtype.name != "tf32"]
    if not inputs:
        return None
    spec = choose(inputs)
    orders = list(itertools.permutations(range(len(spec.shape))))[1:]
    return _longer(choose, Schedule(op).pack(spec.name, choose(orders)), most)


def draw_divided(choose: Choose, op: Operator, most: int = 20) -> Schedule | None:
    """Random steps after `divide` of an axis of a quotient or remainder; None where there is none."""
    turns = [(a.name, compute_quotient_period(c, a.name), a.extent) for c in op.computes for a in c.axes]
    cuts = [(name, by * n) for name, by, extent in turns if by > 1 for n in (1, 2) if by * n < extent]
    return _longer(choose, Schedule(op).divide(*choose(cuts)), most) if cuts else None


def draw_atomic(choose: Choose, op: Operator, most: int = 20) -> Schedule | None:
    """Random steps with an atomic sum; None where no sum may be split over blocks."""
    sums = [
        compute
        for compute in op.computes
        if compute.reduction_axes and compute.combine == "sum" and compute.output.dtype is compute.acc_dtype
    ]
    if not sums:
        return None
    compute = choose(sums)
    name, axis = compute.output.name, choose(compute.reduction_axes).name
    schedule = Schedule(op).cache_write(name).atomic(name).split(axis, (choose((1, 2, 3, 5)),))
    others = (a.name for a in compute.axes if a.name != axis)
    shared = schedule.reorder(f"{axis}.0", *others, f"{axis}.1").bind(f"{axis}.0", choose(BLOCK_LEVELS))
    return _longer(choose, shared, max(most, len(shared.steps)))


def _longer(choose: Choose, schedule: Schedule, most: int) -> Schedule:
    step_count = choose(range(3, most + 1))
    for _ in range(3 * step_count):
        progress = len(schedule.steps) / step_count
        if progress >= 1:
            break
        kind = choose(EARLY if progress < 0.35 else MIDDLE if progress < 0.65 else LATE)
        schedule = _with_one_more(schedule, _PROPOSE[kind](schedule.program, choose))
    return schedule


def _with_one_more(schedule: Schedule, step: Step | None) -> Schedule:
    """The schedule with the step, or unchanged where the step gives no legal kernel."""
    if step is None:
        return schedule
    try:
        longer = schedule.apply_steps(step)
        fits = all(
            k.thread_count <= MOST_THREADS and _points(k.nest) <= MOST_POINTS
            for k in derive_launches(longer.program)
        )
    except ScheduleError:
        return schedule
    return longer if fits else schedule


def _points(nest: Nest) -> int:
    return math.prod(x.extent for x in nest.loops)


def seeded_schedule(seed: int, most: int = 20) -> Schedule:
    """The same schedule for the same seed."""
    return draw_any(random.Random(seed).choice, most)


KINDS: Sequence[Callable[..., Schedule | None]] = (
    *(draw_schedule,) * 5,
    *(draw_in_parts, draw_packed, draw_divided, draw_atomic),
)


def draw_any(choose: Choose, most: int = 20) -> Schedule:
    """Any small operator with a random legal schedule."""
    op, draw = draw_operator(choose), choose(KINDS)
    return draw(choose, op, most) or draw_schedule(choose, op, most)


def draw_by(make: Callable[[Choose], Schedule | None]) -> st.SearchStrategy[Schedule]:
    """A strategy of the schedules that a function makes by choices; where it makes none, it chooses again."""

    @st.composite
    def schedules(draw: st.DrawFn) -> Schedule:
        schedule = make(lambda options: draw(st.sampled_from(options)))
        assume(schedule is not None)
        assert schedule is not None
        return schedule

    return schedules()


def keep_legal(schedule: Schedule, op: Operator | None = None) -> Schedule:
    """Those steps that are legal for a kernel of the operator, or of another one over the same axes; a sum in
    another type than it is stored in gets an accumulator first."""
    parts = [s for s in schedule.steps if s.kind == "rfactor"]
    kept = _keep(Schedule(op or schedule.op), parts)
    for nest in kept.program.nests:
        compute = nest.compute
        if compute.reduction_axes and compute.output.dtype is not compute.acc_dtype:
            kept = kept.cache_write(compute.output.name)
    return _keep(kept, [s for s in schedule.steps if s.kind != "rfactor"])


def _keep(kept: Schedule, steps: Iterable[Step]) -> Schedule:
    for step in steps:
        try:
            longer = kept.apply_steps(step)
            enforce_rules(longer.program, LaunchLimits())
        except ScheduleError:
            continue
        kept = longer
    return kept


def _nest(program: Program, choose: Choose) -> Nest:
    return choose(program.nests)


def _loop(nest: Nest, choose: Choose, fits: Callable[[Loop], bool]) -> Loop | None:
    fitting = [x for x in nest.loops if fits(x)]
    return choose(fitting) if fitting else None


def _plain(loop: Loop) -> bool:
    return loop.level == "serial" and loop.unroll == 1


def _split(program: Program, choose: Choose) -> Step | None:
    loop = _loop(_nest(program, choose), choose, lambda x: _plain(x) and x.extent > 1)
    return loop and Split(
        loop.name, choose([(2,), (3,), (4,), (8,), (2, 2), (4, 2), (2, 3), (2, 4), (5,), (2, 2, 2)])
    )


def _fuse(program: Program, choose: Choose) -> Step | None:
    loops = _nest(program, choose).loops
    pairs = [
        (a, b)
        for a, b in itertools.pairwise(loops)
        if a.is_reduction == b.is_reduction and _plain(a) and _plain(b)
    ]
    return Fuse(*(x.name for x in choose(pairs))) if pairs else None


def _reorder(program: Program, choose: Choose) -> Step | None:
    names = [x.name for x in _nest(program, choose).loops]
    if choose((True, False)):
        # Outer pieces go outside, as in every tiling.
        order = sorted(names, key=lambda n: (n.count(".") and n[-1] != "0", n.rpartition(".")[2]))
    else:
        order = []
        while names:
            order.append(names.pop(choose(range(len(names)))))
    return Reorder(tuple(order))


def _innermost(program: Program, choose: Choose) -> Step | None:
    """Vectorize a loop, after moving it innermost where needed."""
    nest = _nest(program, choose)
    loop = _loop(nest, choose, lambda x: _plain(x) and not x.is_reduction and x.extent in (2, 4, 8))
    return loop and Reorder((*(x.name for x in nest.loops if x is not loop), loop.name))


def _bind(program: Program, choose: Choose) -> Step | None:
    nest = _nest(program, choose)
    loop = _loop(nest, choose, lambda x: x.level == "serial" and (nest.is_atomic or not x.is_reduction))
    if loop is None:
        return None
    if loop.is_reduction:
        return Bind(loop.name, choose(BLOCK_LEVELS))
    levels = (*BLOCK_LEVELS, "block.x", "thread.x", "thread.x", "thread.y", "thread.z", "vthread")
    return Bind(loop.name, choose(levels))


def _lanes(program: Program, choose: Choose) -> Step | None:
    nest = _nest(program, choose)
    loop = _loop(nest, choose, lambda x: x.level == "serial" and x.is_reduction and x.extent in (2, 4, 8))
    return (
        loop and Bind(loop.name, "thread.x")
        if nest.has_accumulator
        else loop and CacheWrite(nest.compute.output.name)
    )


def _cache_write(program: Program, choose: Choose) -> Step | None:
    return CacheWrite(_nest(program, choose).compute.output.name, vector=choose((1, 2, 4, 8)))


def _cache_read(program: Program, choose: Choose) -> Step | None:
    nest = _nest(program, choose)
    tensors = [load.tensor for load in ex.find_loads(nest.compute.body)]
    if not tensors:
        return None
    copies = [s.name for s in nest.stagings if s.scope == "shared"]
    source = choose([*copies, *copies, *tensors])
    rank = len(program.op.tensors[source.split(".")[0]].shape)
    order = choose([(), (), tuple(reversed(range(rank)))])
    at = choose([None, *_serial(nest), *_serial(nest)])
    scope = "register" if "." in source else choose(("shared", "shared", "register"))
    vector, pad = choose((1, 2, 4, 8)), choose((0, 0, 1, 4))
    return CacheRead(
        source, scope, at, vector, order, pad, unroll=choose((0, 0, 3)) if scope == "shared" else 0
    )


def _serial(nest: Nest) -> list[str]:
    return [x.name for x in nest.loops if x.is_serial]


def _compute_at(program: Program, choose: Choose) -> Step | None:
    what = [n.output.name for n in program.nests[:-1]] + [s.name for n in program.nests for s in n.stagings]
    return ComputeAt(choose(what), choose([None, *_serial(program.nests[-1])])) if what else None


def _compute_inline(program: Program, choose: Choose) -> Step | None:
    """Inline an intermediate tensor, or give it an accumulator first where needed."""
    nests = program.nests[:-1]
    if not nests:
        return None
    nest = choose(nests)
    if (nest.is_unscheduled and not nest.compute.reduction_axes) or nest.has_accumulator:
        return ComputeInline(nest.output.name)
    return CacheWrite(nest.compute.output.name, vector=choose((1, 2, 4)))


def _pipeline(program: Program, choose: Choose) -> Step | None:
    places = [s.at for n in program.nests for s in n.stagings if s.scope == "shared" and s.at is not None]
    ways = ((1,), (2,), (2,), (2, "async"), (3, "async"), (5, "async"))
    return Pipeline(choose(places), *choose(ways)) if places else None


def _unroll(program: Program, choose: Choose) -> Step | None:
    names = _serial(_nest(program, choose))
    return Unroll(choose(names), choose((None, 0, 1, 2, 4))) if names else None


def _vectorize(program: Program, choose: Choose) -> Step | None:
    return Vectorize(_nest(program, choose).loops[-1].name)


_PROPOSE = {
    propose.__name__.removeprefix("_"): propose
    for propose in (
        *(_split, _fuse, _reorder, _innermost, _bind, _lanes, _cache_write, _cache_read),
        *(_compute_at, _compute_inline, _pipeline, _unroll, _vectorize),
    )
}
