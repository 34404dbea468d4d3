"""Fusion of computes: inlined producers, epilogues, and producers computed at their use (`compute_at`).

Inlining a producer replaces the reads of its tensor by its body. An epilogue is a compute that reads a result
and is applied when the result is stored. The conditions for both are here, so that the steps of schedules and
the rules that derive structures agree. For producers computed inside a nest: their reads and their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ekc.ir import expr as ex
from ekc.ir.affine import AffineForm, Extent, to_affine
from ekc.ir.compute import Axis, Compute, TensorSpec
from ekc.ir.lowering.buffers import BoundsGuard, TensorAccess, find_guards, make_global_access
from ekc.ir.lowering.memory_access import IndexForms, map_axes_to_element, to_affine_index
from ekc.ir.operator import Operator
from ekc.ir.program import Nest, Staging


def has_load(compute: Compute, tensor: str) -> bool:
    """Whether the body of a compute reads a tensor."""
    return any(load.tensor == tensor for load in compute.loads)


def is_elementwise(reader: Compute, tensor: TensorSpec) -> bool:
    """Whether a compute reads a tensor only at its own element, and reduces nothing."""
    own = tuple(ex.Var(a.name) for a in reader.spatial_axes)
    found = [load.index for load in reader.loads if load.tensor == tensor.name]
    return (
        bool(found)
        and not reader.reduction_axes
        and reader.output.shape == tensor.shape
        and all(index == own for index in found)
    )


def is_clamped_on_store(compute: Compute) -> bool:
    """Whether storing the result clamps it: int32 stored as int8."""
    return compute.output.dtype.is_integer and compute.output.dtype is not compute.acc_dtype


def has_other_accumulator(producer: Compute, reader: Compute) -> bool:
    """Whether the reader would compute the body in another type; float32 cannot represent every int32."""
    return producer.acc_dtype is not reader.acc_dtype


def group_fusable_computes(op: Operator) -> tuple[tuple[Compute, ...], ...]:
    """The computes of an operator in groups that can each be one launch: a compute and its epilogues, each
    the only reader of the one before and elementwise in it.

    A compute that could be the epilogue of several groups goes to the one with most arithmetic.
    """
    groups: list[list[Compute]] = []
    for compute in op.computes:
        open_ends = [
            g
            for g in groups
            if is_elementwise(compute, g[-1].output)
            and _count_readers(op, g[-1].output.name) == 1
            and not is_clamped_on_store(g[-1])
            and not (len(g) > 1 and has_other_accumulator(g[-1], compute))
        ]
        if open_ends:
            max(open_ends, key=lambda g: g[0].flops).append(compute)
        else:
            groups.append([compute])
    # In the order of their last computes: everything that a group reads is then computed before it.
    groups.sort(key=lambda g: op.computes.index(g[-1]))
    return tuple(map(tuple, groups))


def _count_readers(op: Operator, tensor: str) -> int:
    return sum(has_load(c, tensor) for c in op.computes)


def inline_producer(reader: Compute, producer: Compute) -> Compute:
    """The reader with the producer's body in place of the tensor: T[i, j - 1] -> max(X[i, j - 1], 0)."""
    axes = [a.name for a in producer.spatial_axes]

    def change(load: ex.Load) -> ex.Expr:
        if load.tensor != producer.output.name:
            return load
        return ex.substitute(producer.body, dict(zip(axes, load.index, strict=True)))

    return replace(reader, body=ex.replace_loads(reader.body, change))


def fuse_epilogue(nest: Nest, reader: Compute) -> Compute:
    """The epilogue of a nest with one more compute, over the axes of the nest:
    D[p, q] = max(C[p, q] + bias[q], 0) -> D[i, j] = max(C[i, j] + bias[j], 0)."""
    axes = nest.compute.spatial_axes
    names = {a.name: ex.Var(b.name) for a, b in zip(reader.spatial_axes, axes, strict=True)}
    renamed = replace(reader, axes=axes, body=ex.substitute(reader.body, names))
    return inline_producer(renamed, nest.epilogue) if nest.epilogue else renamed


def find_out_of_bounds_read(
    reader: Compute, producer: Compute, tensors: Mapping[str, TensorSpec]
) -> ex.Load | None:
    """A read outside the producer's tensor, which gives 0, where the producer's body is not 0."""
    extents = {a.name: a.extent for a in reader.axes}
    for load in reader.loads:
        if load.tensor != producer.output.name:
            continue
        for index, axis in zip(load.index, producer.spatial_axes, strict=True):
            leaves = find_guards((to_affine(index, {}),), (axis.extent,), extents)
            if leaves and not _is_zero_beyond(producer, axis, tensors):
                return load
    return None


def _is_zero_beyond(producer: Compute, axis: Axis, tensors: Mapping[str, TensorSpec]) -> bool:
    """Whether the body is 0 beyond the axis: all tensors that it reads end there, and zeros give 0."""
    if _has_axis_value(producer.body):
        return False
    for load in producer.loads:
        dims = zip(load.index, tensors[load.tensor].shape, strict=True)
        if not any(i == ex.Var(axis.name) and e <= axis.extent for i, e in dims):
            return False
    with np.errstate(all="ignore"):
        return bool(ex.evaluate(producer.body, {}, lambda load: np.float64(0.0)) == 0)


def _has_axis_value(e: ex.Expr) -> bool:
    """Whether an axis is a value in the expression, not only an index."""
    if isinstance(e, ex.Load):
        return False
    return isinstance(e, ex.Var) or any(map(_has_axis_value, ex.children(e)))


def find_epilogue_reads(
    nest: Nest,
    accumulator: TensorAccess,
    target: TensorAccess,
    tensors: Mapping[str, TensorSpec],
    extents: Mapping[str, Extent],
) -> dict[ex.Load, TensorAccess]:
    """Reads of the stored value of an element: the accumulator, and the epilogue's inputs at the element.

    A read that ends where the output ends needs no guard of its own: the store has it.
    """
    accumulated = nest.compute.output.name
    axes = dict(zip((a.name for a in nest.compute.spatial_axes), target.index, strict=True))
    found: dict[ex.Load, TensorAccess] = {}
    for load in ex.find_loads(nest.written_value):
        if load.tensor == accumulated:
            found[load] = accumulator
            continue
        access = make_global_access(tensors[load.tensor], to_affine_index(load, axes), extents)
        guards = (g for g in access.guards if not _has_stricter_guard(target.guards, g))
        found[load] = replace(access, guards=tuple(guards))
    return found


def _has_stricter_guard(guards: Sequence[BoundsGuard], one: BoundsGuard) -> bool:
    """Whether a guard of the same form has a bound at least as low."""
    return any(g.form is one.form and g.extent <= one.extent for g in guards)


def can_use_staging(nest: Nest, staging: Staging, user: Staging) -> bool:
    """Whether the fused producer of `user` reads the tensor of `staging` from that staging: if it has a fused
    producer too, or if it is a shared copy that comes before and is filled at the same depth or further
    out."""
    if staging.producer is not None:
        return True
    if staging.scope != "shared" or nest.stagings.index(staging) >= nest.stagings.index(user):
        return False
    return compute_staging_depth(nest, staging.at) <= compute_staging_depth(nest, user.at)


def compute_staging_depth(nest: Nest, at: str | None) -> int:
    """Depth of a staging: the position of its loop, -1 outside all loops."""
    return -1 if at is None else nest.find_position(at)


def has_dependence(nest: Nest, staging: Staging, user: Staging) -> bool:
    """Whether `staging` is read while the producer of `user` is computed."""
    compute = user.producer
    reads = compute is not None and any(x.tensor == staging.tensor for x in compute.loads)
    return staging is not user and reads and can_use_staging(nest, staging, user)


def find_misplaced_producer(nest: Nest) -> tuple[Staging, Staging] | None:
    """(producer, reader) where a fused producer is computed deeper than its reader; None if nowhere."""
    computed = [s for s in nest.stagings if s.producer is not None]
    depths = {s.name: compute_staging_depth(nest, s.at) for s in computed}
    pairs = ((s, user) for s in computed for user in computed if has_dependence(nest, s, user))
    return next(((s, user) for s, user in pairs if depths[user.name] < depths[s.name]), None)


def order_by_dependence(nest: Nest, stagings: Sequence[Staging]) -> list[Staging]:
    """The stagings in their order, but each after those that it reads."""
    remaining, ordered = list(stagings), []
    while remaining:
        ready = next(s for s in remaining if not any(has_dependence(nest, x, s) for x in remaining))
        remaining.remove(ready)
        ordered.append(ready)
    return ordered


def find_fused_reads(nest: Nest, staging: Staging) -> IndexForms:
    """Reads of a staging by fused producers, in terms of loops of the nest and reduction axes."""
    found: IndexForms = []
    computed = {x.tensor: x for x in nest.stagings if x.producer is not None}
    if not computed:
        return found

    def visit(body: ex.Expr, index: Mapping[str, AffineForm], user: Staging | None) -> None:
        for load in ex.find_loads(body):
            forms = to_affine_index(load, index)
            if user is not None and load.tensor == staging.tensor and can_use_staging(nest, staging, user):
                found.append(forms)
            producer = computed.get(load.tensor)
            if producer is not None and producer.producer is not None:
                visit(producer.producer.body, map_axes_to_element(producer.producer, forms), producer)

    visit(nest.compute.body, nest.index_forms, None)
    return found
