"""Accumulators: how they begin, take in a value, and are joined over lanes and warps."""

from __future__ import annotations

import math

from ekc.codegen.region_text import box, coordinates
from ekc.codegen.scope import Scope
from ekc.codegen.types import Arithmetic, converted, zero
from ekc.codegen.view import View
from ekc.ir.dtypes import start_value
from ekc.ir.footprint import placed
from ekc.ir.linear import variable
from ekc.ir.nodes import CombineNode, ComputeNode, InitNode, ReduceNode
from ekc.ir.patterns.warp import WARP
from ekc.ir.region import segment_cell

_WALKS_WRITTEN_OUT = 8
"""A reduction on the spot over several axes walks along its last one so often in a row, without loops; each
walk is one of up to 8 steps itself."""


def init_view(scope: Scope, node: InitNode) -> View:
    """Where a sum begins: in its accumulator, or in the result itself."""
    compute = scope.kernel.nest.compute
    acc = compute.acc_dtype
    start = Arithmetic(acc).literal(start_value(compute.combine, acc))
    names, loops = scope.tile_loops(node.region, None, 1)
    if node.buffer is not None:
        target = names.cell(node.buffer, segment_cell(node.region))
        return View("init", {"loops": loops, "target": target, "start": start, "guard": ""})
    guard, start = names.condition(node.target.guards), converted(start, acc, compute.output.dtype)
    return View(
        "init", {"loops": loops, "target": names.element(node.target), "start": start, "guard": guard}
    )


def compute_view(scope: Scope, node: ComputeNode) -> View:
    """One value worked out, and set or combined with what was there."""
    compute = node.nest.compute
    acc = compute.acc_dtype
    arithmetic = Arithmetic.of(compute, scope.kernel.tensors)
    value = scope.names.value(
        compute.body, arithmetic, node.nest.index, lambda x: scope.read(node.reads[x], acc, scope.names)
    )
    target = scope.copied(node.target, scope.names)
    guard = scope.names.condition(node.guards)
    if not compute.reduction:
        statement = f"{target} = {converted(value, acc, node.target.dtype)};"
        return View("compute", {"statement": statement, "guard": guard})
    statement = arithmetic.combined(compute.combine, target, value)
    return View("compute", {"statement": statement, "guard": guard})


def combine_view(scope: Scope, node: CombineNode) -> View:
    """Accumulators of lanes joined by shuffles."""
    names, loops = scope.tile_loops(node.buffer.region, None, 1)
    target = names.cell(node.buffer, segment_cell(node.buffer.region))
    lanes = 1
    for loop in node.lanes:
        lanes *= int(loop.extent)
    step = int(scope.kernel.lane_step)
    other = f"__shfl_xor_sync(0xffffffffu, {target}, lane)"
    compute = scope.kernel.nest.compute
    update = Arithmetic.of(compute, scope.kernel.tensors).combined(compute.combine, target, other)
    return View(
        "combine",
        {
            "loops": loops,
            "half": lanes // 2 * step,
            "step": step,
            "update": update,
            "lanes": lanes,
            "combine": compute.combine,
        },
    )


def reduce_view(scope: Scope, node: ReduceNode) -> View:
    """Elements of a region dealt out to groups of warps; each copy of the buffer is what one warp has."""
    compute, buffer, region = node.compute, node.buffer, node.buffer.region
    names = scope.names.within(region, scope.names.shared_coordinates(scope.kernel, region))
    size, warps = int(region.size), int(node.staging.warps)
    group, per_round = WARP * warps, scope.threads // (WARP * warps)
    *others, last = compute.reduction
    cell = segment_cell(region)
    scope.parity[buffer.name] = "0" if warps > 1 else ""
    axes = placed(compute, node.source.index) | {a.name: variable(a.name) for a in compute.reduction}
    acc = compute.acc_dtype
    arithmetic = Arithmetic.of(compute, scope.kernel.tensors)
    value = names.value(compute.body, arithmetic, axes, lambda x: scope.read(node.reads[x], acc, names))
    steps = -(-last.extent // group)
    here = box(scope.names, node.staging.tensor, region)
    text = {
        "what": f"{compute.combine} at {here} -> {names[buffer.name]}",
        "rounds": -(-size // per_round),
        "per_round": per_round,
        "exact": size % per_round == 0,
        "size": size,
        "group": group,
        "coordinates": coordinates(region, names),
        "start": arithmetic.literal(start_value(compute.combine, acc)),
        "others": [{"name": names[a.name], "extent": a.extent, "step": 1} for a in others],
        "unroll": "" if math.prod(a.extent for a in others) <= _WALKS_WRITTEN_OUT else " 1",
        "last": names[last.name],
        "steps": steps,
        "tail": f"{names[last.name]} < {last.extent}" if steps * group != last.extent else "",
        "update": arithmetic.combined(compute.combine, "reduced", value),
        "meet": arithmetic.combined(
            compute.combine, "reduced", "__shfl_xor_sync(0xffffffffu, reduced, lane)"
        ),
        "guard": names.condition(node.source.guards),
        "type": buffer.dtype.cuda,
        "zero": zero(buffer.dtype),
        "part": names.cell(buffer, cell, f"thread / {WARP} % {warps}" if warps > 1 else ""),
        "warps": warps,
        "threads": scope.threads,
        "join_rounds": -(-size // scope.threads),
        "result": names.cell(buffer, cell, scope.parity[buffer.name]),
        "join": arithmetic.combined(compute.combine, "reduced", names.cell(buffer, cell, "part")),
    }
    return View("reduce", text)
