"""Layout transforms for tensor cores (rule 10): an input is copied so that the depth is its last dimension.

An `mma` instruction loads whole vectors where the depth, or the factor's own axis, is contiguous in memory.
Where a window moves over the last dimension, as in an image stored channels first, neither is contiguous, and
elements are loaded one at a time. The copy costs one launch for each factor; the copied image is read again
for every position of the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ekc.ir import expr as ex
from ekc.ir.compute import Axis, Compute
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.program import make_initial_program
from ekc.ir.schedule import Pack, Tensorize
from ekc.search.sketches.builder import Structure
from ekc.search.sketches.divided_axes import divide_compute, find_contiguous_axis
from ekc.search.sketches.split_k import rename_conflicting_decisions
from ekc.search.sketches.tensor_cores import find_depth_axis


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
    depth = find_depth_axis(op, compute) if limits.tensor_cores else None
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
    return [rename_conflicting_decisions(s, tables, "packed/") for s in packed]


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
