"""Sums cut into parts over blocks (rule 9): where the outputs are too few to fill the device.

How many outputs a multiprocessor can work on follows from what is read. Where every factor is shared by many
outputs, a block holds a tile of them; where the data of each are its own, a warp makes each one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import log2, prod

import numpy as np
from numpy.typing import NDArray

from ekc.ir import expr as ex
from ekc.ir.compute import Axis, Compute
from ekc.ir.hardware.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.program import make_initial_program
from ekc.ir.schedule import Hole, RFactor
from ekc.search.sketches.builder import Structure
from ekc.search.sketches.decisions import Decision

TILE_OUTPUTS, WARP_OUTPUTS = 64 * 64, 64
"""Outputs of one multiprocessor at a time: a tile, or as many as it has warps. Ours."""
MIN_SUM_TERMS, MIN_PART_TERMS = 2048, 128
"""Terms that a sum must have, and each part of it: less is not worth a launch. Ours."""
PART_ALIGNMENT = 32
"""Parts are rather multiples of this: whole warps, whole instructions of tensor cores."""
FILL_DIVISORS = (1, 4)
"""Parts as many as fill the device, and as few as a quarter of that. Ours."""


def derive_split_k(
    op: Operator,
    limits: Limits,
    base_structures: Iterable[Structure],
    derive: Callable[[Operator, Limits], list[Structure]],
) -> list[Structure]:
    """Every structure of the operator with its largest sum in parts; `of` makes those of a graph, `known` are
    those without parts."""
    tables = {d.name: d.table for s in base_structures for d in s.decisions}
    compute = max(op.computes, key=lambda c: c.flops)
    found = []
    for axis, parts in _choose_splits(compute, limits):
        step = RFactor(axis.name, parts)
        for s in derive(step.apply(make_initial_program(op)).op, limits):
            name = f"{parts} parts of {axis.name}, {s.name}"
            own = rename_conflicting_decisions(
                replace(s, name=name, steps=(step, *s.steps)), tables, f"{parts}parts/"
            )
            found.append(own)
    return found


def _choose_splits(compute: Compute, limits: Limits) -> list[tuple[Axis, int]]:
    """The longest reduction axis, and in how many parts; none where the device is full without."""
    outputs = prod(a.extent for a in compute.spatial_axes)
    terms = prod(a.extent for a in compute.reduction_axes)
    if terms < MIN_SUM_TERMS:
        return []
    axis = max(compute.reduction_axes, key=lambda a: a.extent)
    fill = limits.sms * (TILE_OUTPUTS if _has_only_shared_reads(compute) else WARP_OUTPUTS) / outputs
    most = min(axis.extent - 1, terms // MIN_PART_TERMS, int(2 * fill))
    legal = [n for n in range(2, most + 1) if axis.extent % n == 0]
    wanted = [fill / shrink for shrink in FILL_DIVISORS if legal and fill / shrink >= 2]
    near = (min(legal, key=lambda n: _measure_distance(n, want, axis)) for want in wanted)
    return [(axis, parts) for parts in dict.fromkeys(near)]


def _measure_distance(parts: int, target: float, axis: Axis) -> tuple[int, bool, float]:
    """Octaves between a number of parts and the wanted one; of those alike, whole grains are nearer."""
    octaves = abs(log2(parts / target))
    return round(octaves), axis.extent // parts % PART_ALIGNMENT != 0, octaves


def _has_only_shared_reads(compute: Compute) -> bool:
    """Whether every tensor is read by many outputs."""
    wide = {a.name for a in compute.spatial_axes if a.extent > 1}
    return all(wide - ex.find_variables(load) for load in ex.find_loads(compute.body))


def rename_conflicting_decisions(
    structure: Structure, tables: dict[str, NDArray[np.int64]], prefix: str
) -> Structure:
    """The structure with another name for each decision that has another table under its own."""
    decisions: list[Decision] = []
    holes: dict[str, Hole] = {}
    for d in structure.decisions:
        own = "" if np.array_equal(tables.setdefault(d.name, d.table), d.table) else prefix
        decisions.append(replace(d, name=own + d.name, holes=tuple(own + hole for hole in d.holes)))
        holes |= {hole: Hole(own + hole) for hole in d.holes}
    steps = tuple(s.fill_holes(holes) for s in structure.steps)
    return replace(structure, steps=steps, decisions=tuple(decisions))
