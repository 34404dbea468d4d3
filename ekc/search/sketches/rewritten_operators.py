"""Structures of an operator that steps rewrite first: split-K (rule 9) and packed inputs (rule 10).

Split-K: long sums are cut over blocks where the outputs are too few to fill the device. The outputs that one
multiprocessor works on at a time depend on the reads. Where many outputs share every tensor, a block computes
a tile of outputs; where each output reads its own data, a warp computes one output.

Packed inputs, for tensor cores: an input is copied so that the depth is its last dimension. An `mma`
instruction loads whole vectors where the depth, or the factor's own axis, is contiguous in memory. Where a
window moves over the last dimension, as in an image stored channels first, neither is contiguous, and
elements are loaded one at a time. The copy costs one launch for each factor; the copied image is read again
for every position of the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import log2, prod

import numpy as np
from numpy.typing import NDArray

from ekc.ir import expr as ex
from ekc.ir.compute import Axis, Compute
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.program import make_initial_program
from ekc.ir.schedule import Hole, Pack, RFactor, Tensorize
from ekc.search.data.defaults import SPLIT_K
from ekc.search.sketches import rules
from ekc.search.sketches.builder import Structure, note_rule
from ekc.search.sketches.decisions import Decision
from ekc.search.sketches.divided_axes import divide_compute, find_contiguous_axis
from ekc.search.sketches.tensor_cores import derive_depth_axis


def derive_split_k(
    op: Operator,
    limits: LaunchLimits,
    base_structures: Iterable[Structure],
    derive: Callable[[Operator, LaunchLimits], list[Structure]],
) -> list[Structure]:
    """Derive the structures of an operator whose largest sum is cut into parts.

    `derive` returns the structures of an operator and limits; `base_structures` are those without split-K.
    """
    tables = {d.name: d.table for s in base_structures for d in s.decisions}
    compute = max(op.computes, key=lambda c: c.flops)
    found = []
    for axis, parts in _choose_splits(compute, limits):
        step = RFactor(axis.name, parts)
        for s in derive(step.apply(make_initial_program(op)).op, limits):
            name = f"{parts} parts of {axis.name}, {s.name}"
            split = note_rule(replace(s, name=name, steps=(step, *s.steps)), rules.SPLIT_K)
            found.append(rename_conflicting_decisions(split, tables, f"{parts}parts/"))
    return found


def _choose_splits(compute: Compute, limits: LaunchLimits) -> list[tuple[Axis, int]]:
    """(longest reduction axis, number of parts) of each split; none where the outputs fill the device."""
    outputs = prod(a.extent for a in compute.spatial_axes)
    terms = prod(a.extent for a in compute.reduction_axes)
    if terms < SPLIT_K.min_sum_terms:
        return []
    axis = max(compute.reduction_axes, key=lambda a: a.extent)
    fill = limits.sms * _count_resident_outputs(compute) / outputs
    max_parts = min(axis.extent - 1, terms // SPLIT_K.min_part_terms, int(2 * fill))
    legal = [n for n in range(2, max_parts + 1) if axis.extent % n == 0]
    targets = [fill / divisor for divisor in SPLIT_K.fill_divisors if legal and fill / divisor >= 2]
    nearest = (min(legal, key=lambda n: _measure_distance(n, target, axis)) for target in targets)
    return [(axis, parts) for parts in dict.fromkeys(nearest)]


def _count_resident_outputs(compute: Compute) -> int:
    """Outputs that one multiprocessor computes at a time."""
    return SPLIT_K.tile_outputs if _has_only_shared_reads(compute) else SPLIT_K.warp_outputs


def _measure_distance(parts: int, target: float, axis: Axis) -> tuple[int, bool, float]:
    """Octaves from a number of parts to the target, rounded; whether unaligned; the octaves."""
    octaves = abs(log2(parts / target))
    return round(octaves), axis.extent // parts % SPLIT_K.part_alignment != 0, octaves


def _has_only_shared_reads(compute: Compute) -> bool:
    """Whether several outputs share every element that is read."""
    wide = {a.name for a in compute.spatial_axes if a.extent > 1}
    return all(wide - ex.find_variables(load) for load in ex.find_loads(compute.body))


def derive_packed(
    op: Operator,
    limits: LaunchLimits,
    base_structures: Iterable[Structure],
    derive: Callable[[Operator, LaunchLimits], list[Structure]],
) -> list[Structure]:
    """Derive the tensor-core structures of an operator whose inputs are copied first.

    `derive` returns the structures of an operator and limits; `base_structures` are those without copies.
    """
    compute = divide_compute(op, max(op.computes, key=lambda c: c.flops))
    depth = derive_depth_axis(op, compute) if limits.tensor_cores else None
    steps = _make_pack_steps(op, compute, depth) if depth else []
    if depth is None or not steps:
        return []
    program = make_initial_program(op)
    for step in steps:
        program = step.apply(program)
    tables = {d.name: d.table for s in base_structures for d in s.decisions}
    name = "packed " + " ".join(step.tensor for step in steps)
    derived = [s for s in derive(program.op, limits) if _uses_tensor_cores(s, depth)]
    packed = (replace(s, name=f"{name}, {s.name}", steps=(*steps, *s.steps)) for s in derived)
    return [rename_conflicting_decisions(note_rule(s, rules.PACK), tables, "packed/") for s in packed]


def _uses_tensor_cores(structure: Structure, depth: Axis) -> bool:
    """Whether tensor cores sum along a structure's depth; another launch may use them for another sum."""
    tensorized = [step for step in structure.steps if isinstance(step, Tensorize)]
    return any(step.loop.rpartition(".")[0] == depth.name for step in tensorized)


def _make_pack_steps(op: Operator, compute: Compute, depth: Axis) -> list[Pack]:
    """A copy of each input whose last dimension a window moves over, with the depth last."""
    loads = ex.find_loads(compute.body)
    shared = [a for a in compute.reduction_axes if all(a.name in ex.find_variables(x) for x in loads)]
    taps = {a.name for a in shared if a is not depth and a.extent > 1}
    inputs = {t.name for t in op.inputs}
    moved = [x for x in loads if ex.find_variables(x.index[-1]) & taps and x.tensor in inputs]
    found = [_make_pack_step(compute, x, depth) for x in moved]
    return [step for step in found if step is not None and op.tensors[step.tensor].dtype.is_writable]


def _make_pack_step(compute: Compute, load: ex.Load, depth: Axis) -> Pack | None:
    """A copy of an input with the depth last; None if it is last, or no single dimension is contiguous."""
    deep = [d for d, form in enumerate(load.index) if find_contiguous_axis(compute, form) == depth.name]
    if len(deep) != 1 or deep[0] == len(load.index) - 1:
        return None
    return Pack(load.tensor, (*(d for d in range(len(load.index)) if d != deep[0]), deep[0]))


def rename_conflicting_decisions(
    structure: Structure, tables: dict[str, NDArray[np.int64]], prefix: str
) -> Structure:
    """Return the structure with `prefix` before the names of decisions whose tables differ from those of the
    same name in `tables`. Tables of new names are added to `tables`."""
    decisions: list[Decision] = []
    holes: dict[str, Hole] = {}
    for d in structure.decisions:
        before = "" if np.array_equal(tables.setdefault(d.name, d.table), d.table) else prefix
        decisions.append(replace(d, name=before + d.name, holes=tuple(before + hole for hole in d.holes)))
        holes |= {hole: Hole(before + hole) for hole in d.holes}
    steps = tuple(s.fill_holes(holes) for s in structure.steps)
    return replace(structure, steps=steps, decisions=tuple(decisions))
