"""Schedules drawn for tests of the explorer, and the menu once more, written from its table in the docs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

import ekc
from ekc import devices
from ekc.errors import EkcError
from ekc.explorer.steps import NextStep, list_legal_families, list_steps
from ekc.ir import expr as ex
from ekc.ir.program import Nest, Program
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule import (
    Atomic,
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Divide,
    Fuse,
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
from ekc.ir.schedule.menu import list_families
from ekc.search.space.space import Space

DEVICE = devices.open("a100")
OPERATORS = {
    "matmul": lambda: ekc.matmul(64, 96, 48),
    "tensor cores": lambda: ekc.matmul(128, 128, 64, dtype="float16"),
    "conv2d": lambda: ekc.conv2d(1, 8, 12, 12, out_channels=16, kernel=3, padding=1),
    "groups": lambda: ekc.conv2d(1, 8, 8, 8, out_channels=16, kernel=3, padding=1, groups=2),
    "softmax": lambda: ekc.softmax((32, 64)),
    "epilogue": lambda: ekc.matmul(64, 64, 32).epilogue(lambda c, bias: ekc.relu(c + bias), bias=(64,)),
}


def draw_schedule(name: str, seed: int) -> ekc.Schedule:
    """The first steps of a schedule drawn from the space of the search; it need not be legal yet."""
    op, random = OPERATORS[name](), np.random.default_rng(seed)
    space = Space(op, DEVICE.limits)
    drawn, _ = space.repair(random, space.sample(random, 4))
    steps = space.build_schedule(drawn, 0).steps
    return ekc.Schedule(op).apply_steps(*steps[: random.integers(0, len(steps) + 1)])


def list_legal_steps(schedule: ekc.Schedule) -> list[NextStep]:
    """The next steps that are legal for the device."""
    legal = list_legal_families(schedule, DEVICE.limits)
    return list_steps(list(list_families(schedule.program)), {x.number: x.rows.tolist() for x in legal})


def explain_refusal(schedule: ekc.Schedule, steps: tuple[Step, ...]) -> str:
    """Why the steps are not legal for the device; "" if they are."""
    try:
        enforce_rules(schedule.apply_steps(*steps).program, DEVICE.limits)
    except EkcError as problem:
        return str(problem)
    return ""


def format_steps(steps: tuple[Step, ...]) -> str:
    """The steps as Python."""
    return "".join(step.to_python() for step in steps).removeprefix(".")


def list_menu(program: Program) -> Iterator[tuple[Step, ...]]:
    """Every entry of the menu, legal or not."""
    for nest in program.nests:
        for step in list_nest_steps(program, nest):
            yield (step,)
        yield from list_tensor_entries(nest)
    for step in list_graph_steps(program):
        yield (step,)


def list_factors(extent: int) -> list[int]:
    powers = {2**e for e in range(1, 20)}
    return [n for n in range(2, extent) if extent % n == 0 or n in powers]


def list_places(nest: Nest) -> list[str | None]:
    return [None, *(x.name for x in nest.loops if x.level in ("serial", "vthread"))]


def list_nest_steps(program: Program, nest: Nest) -> Iterator[Step]:
    names = [x.name for x in nest.loops]
    for loop in nest.loops:
        if loop.level == "serial":
            yield from (Split(loop.name, (n,)) for n in list_factors(loop.extent))
            levels = "block.x block.y block.z thread.x thread.y thread.z vthread"
            yield from (Bind(loop.name, level) for level in levels.split())
            if loop.name in nest.axis_forms:
                yield from (Divide(loop.name, 2**e * by) for by in (1, 3, 5, 7) for e in range(12))
        if loop.level in ("serial", "vthread") and loop.extent > 1:
            factors = [*list_factors(loop.extent), loop.extent]
            yield from (Unroll(loop.name, n) for n in factors if n != loop.unroll)
    for outer, inner in itertools.pairwise(names):
        yield Reorder((inner, outer))
        yield Fuse(outer, inner)
    yield Vectorize(names[-1])
    for loop in nest.loops:
        if any(s.at == loop.name and s.scope == "shared" for s in nest.stagings):
            ways = [(2, "register"), *((n, "async") for n in range(2, 7))]
            yield from (Pipeline(loop.name, n, c) for n, c in ways if (n, c) != (loop.stages, loop.copy))
    yield from list_copies(program, nest)
    output = nest.compute.output.name
    if not nest.has_accumulator:
        yield from (CacheWrite(output, vector=v) for v in (1, 2, 4, 8, 16))
    if nest.compute.reduction_axes and not nest.is_atomic:
        yield Atomic(output)


def list_copies(program: Program, nest: Nest) -> Iterator[Step]:
    reads = {load.tensor for load in ex.find_loads(nest.compute.body)}
    for tensor in reads - {s.source for s in nest.stagings}:
        rank = len(program.op.tensors[tensor].shape)
        readers = [n for n in program.nests if tensor in {x.tensor for x in ex.find_loads(n.compute.body)}]
        reader = nest.compute.output.name if len(readers) > 1 else ""
        orders: list[tuple[int, ...]] = [()] + ([(*range(1, rank), 0)] if rank > 1 else [])
        for at in list_places(nest):
            for vector in (1, 2, 4, 8, 16):
                yield CacheRead(tensor, "register", at, vector, reader=reader)
                for order in orders:
                    for pad, swizzle in ((0, 1), (4, 1), (8, 1), (0, 2), (0, 4), (0, 8)):
                        yield CacheRead(tensor, "shared", at, vector, order, pad, swizzle, reader)
    for staging in nest.stagings:
        for at in list_places(nest):
            if staging.scope == "shared" and not any(s.source == staging.name for s in nest.stagings):
                yield from (CacheRead(staging.name, "register", at, v) for v in (1, 2, 4, 8, 16))
            if at != staging.at:
                yield ComputeAt(staging.name, at)
    for earlier in program.nests:
        if earlier is not nest and earlier.output.name in reads:
            for at in list_places(nest):
                warps = (1, 2, 4, 8) if earlier.compute.reduction_axes else (1,)
                yield from (ComputeAt(earlier.output.name, at, w) for w in warps)


def list_tensor_entries(nest: Nest) -> Iterator[tuple[Step, ...]]:
    depths = [x.name for x in nest.loops if x.is_reduction and x.level in ("serial", "vthread")]
    tiles = [s.name for s in nest.stagings if s.scope == "shared"]
    if depths and len(tiles) == 2 and not nest.instruction:
        yield (Tensorize(depths[-1], "wgmma.m64nNk16"),)
        for shape in ("m16n8k16", "m16n8k8", "m16n8k32"):
            for at in list_places(nest):
                copies = [CacheRead(tile, "fragment", at) for tile in tiles]
                yield (*copies, Tensorize(depths[-1], f"mma.{shape}"))


def list_graph_steps(program: Program) -> Iterator[Step]:
    for nest in program.nests:
        for axis in nest.compute.reduction_axes if nest.is_unscheduled else ():
            yield from (RFactor(axis.name, n) for n in range(2, min(axis.extent, 65)) if axis.extent % n == 0)
    for spec in program.op.inputs:
        rank = len(spec.shape)
        for a in range(rank):
            for b in range(a + 1, rank):
                order = list(range(rank))
                order[a], order[b] = b, a
                yield Pack(spec.name, tuple(order))
    yield from (ComputeInline(n.output.name) for n in program.nests[:-1])
