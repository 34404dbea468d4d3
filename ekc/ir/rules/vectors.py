"""Rules of vectors: aligned neighbours, at most 16 bytes, that never cross the end of a tile or tensor.

Asynchronous copies (cp.async) are vectors of 4, 8 or 16 bytes, in the order of memory, on targets that have
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ekc.ir.affine import (
    AffineForm,
    Atom,
    Extent,
    QuasiAffine,
    compute_carry_period,
    compute_displacement,
    find_atom_variables,
)
from ekc.ir.hardware.cp_async import ASYNC_COPIES_BY_BYTES
from ekc.ir.hardware.target import FIRST_AMPERE_ARCH, LaunchLimits
from ekc.ir.lowering.buffers import MAX_ACCESS_BYTES, TensorAccess
from ekc.ir.lowering.nodes import LaunchTree, StageNode, WriteNode
from ekc.ir.refusal import Check, at_most, fits, requires

REGISTER_COPY_HINT = 'use pipeline(..., copy="register")'


def check_vectors(kernel: LaunchTree, limits: LaunchLimits) -> Iterator[Check]:
    """Vector copies and writes must have at most 16 bytes, be aligned, and end within the tile and tensor."""
    for node in kernel.nodes:
        if isinstance(node, StageNode):
            staging, region = node.staging, node.buffer.region
            yield from _check_vector(staging.name, staging.vector, node.source, region, node.vector_segment)
            yield from _check_destination(node)
        elif isinstance(node, WriteNode):
            name = f"write of {node.target.spec.name}"
            yield from _check_vector(name, node.vector, node.target, node.region, node.vector_segment)


def _check_vector(
    name: str, vector: Extent, source: TensorAccess, region: Any, segment: int | None
) -> Iterator[Check]:
    v = vector
    rule, unit = f"vector width of {name}", "elements at once"
    yield at_most(
        rule,
        vector * source.dtype.bytes,
        MAX_ACCESS_BYTES,
        "bytes at once",
        nearest=f"use {MAX_ACCESS_BYTES // source.dtype.bytes} elements or fewer",
    )
    own = region.segments[segment] if segment is not None else None
    stride, extent = (own.stride, own.extent) if own else (0, 1)
    contiguous = np.asanyarray(stride) == 1
    neighbours = (v == 1) | (contiguous & (np.asanyarray(extent) % v == 0))
    yield fits(
        rule,
        neighbours,
        vector,
        limit_text="must divide a tile row of {} neighbours",
        nearest=np.where(contiguous, np.gcd(extent, v), 1),
        unit=unit,
        limit=extent,
    )
    atoms: set[Atom] = {f"#{segment}"}
    if own and own.is_joint:
        run_length, atoms = _find_run_length(source, f"#{segment}")
        divides, near = np.asanyarray(run_length) % v == 0, np.gcd(run_length, vector)
        yield fits(rule, divides, vector, "must divide runs of {} neighbours", near, unit, run_length)
    others = [c for a, c in source.address.terms if a not in atoms] + [source.address.const]
    together, near = _find_common_divisor(others, v)
    yield fits(rule, (v == 1) | together, vector, "must divide the start of every row", near, unit)
    last = [g for g in source.guards if source.index and g.form is source.index[-1]]
    if last:
        row = last[0].extent
        divides, near = (v == 1) | (row % v == 0), np.gcd(row, v)
        yield fits(rule, divides, vector, "must divide a tensor row of {}", near, unit, row)


def _find_common_divisor(steps: Sequence[Extent], width: Any) -> tuple[Any, Any]:
    """(whether all steps are multiples of a width, its greatest divisor that divides all steps)."""
    all_divide: Any = True
    near = width
    for step in steps:
        all_divide, near = all_divide & (step % width == 0), np.gcd(step, near)
    return all_divide, near


def _find_run_length(source: TensorAccess, own: str) -> tuple[Extent, set[Atom]]:
    """(number of neighbours, terms of the address that make them) along a joint loop.

    Iterations are neighbours in memory until the fastest digit of the loop turns over. Where that digit is
    not the tensor's last dimension, the number is 1. A tile in shared memory has no such end: iterations are
    neighbours where the dimension is stored last.
    """
    if source.buffer is not None:
        is_neighbour = np.asanyarray(dict(source.address.terms).get(own, 0)) == 1
        return np.where(is_neighbour, MAX_ACCESS_BYTES, 1), {own}
    last = [(a, c) for a, c in source.index[-1].terms if own in find_atom_variables(a)]
    if len(last) != 1:
        return 1, set()
    digit, step = last[0]
    if (
        not isinstance(digit, QuasiAffine)
        or np.ndim(step)
        or int(step) != 1
        or not _is_loop_digit(digit, own)
    ):
        return 1, set()
    # A slower digit (the axis fused last is not the tensor's last dimension) does not move at the first step.
    fastest = np.asanyarray(compute_displacement(AffineForm(((digit, 1),)), own, 1)) == 1
    return np.where(fastest, compute_carry_period(digit, own), 1), {digit}


def _is_loop_digit(digit: QuasiAffine, own: str) -> bool:
    """Whether a digit depends on a joint loop alone, without a constant. A constant, as the 1 of x[(j + 1) %
    8], moves the place where the digit turns over, and a vector could cross it."""
    if np.any(np.asanyarray(digit.inner.const) != 0):
        return False
    if own in dict(digit.inner.terms):
        return True
    (atom, step), *more = digit.inner.terms
    if more or not isinstance(atom, QuasiAffine) or np.any(np.asanyarray(step) != 1):
        return False
    return _is_loop_digit(atom, own)


def _check_destination(node: StageNode) -> Iterator[Check]:
    """Where neighbours are neighbours in the buffer too, the other steps of its address must stay aligned."""
    if node.buffer.fastest_segment != node.vector_segment or node.source.dtype is not node.buffer.dtype:
        return
    v = np.asanyarray(node.staging.vector)
    steps = [c for a, c in node.target_address.terms if a != f"#{node.vector_segment}"]
    together, near = _find_common_divisor([*steps, node.target_address.const], v)
    rule, ok = f"vector width of {node.staging.name}", (v == 1) | together
    yield fits(rule, ok, node.staging.vector, "must divide the pad", near, "elements at once")


def check_async_copies(kernel: LaunchTree, limits: LaunchLimits) -> Iterator[Check]:
    """Every asynchronous copy of a launch needs an instruction that can do it."""
    for node in kernel.nodes:
        if isinstance(node, StageNode) and node.is_async:
            rule = f"async copy of {node.staging.name}"
            if not limits.async_copies:
                yield requires(
                    rule,
                    False,
                    need="cp.async",
                    problem=f"targets before {FIRST_AMPERE_ARCH} have no cp.async",
                    remedy=REGISTER_COPY_HINT,
                )
            yield from _check_copy_widths(node, rule)


def _check_copy_widths(node: StageNode, rule: str) -> Iterator[Check]:
    """Elements are copied together where they stay neighbours, and one by one into another order."""
    vector, each = np.asanyarray(node.staging.vector), node.buffer.dtype.bytes
    together = node.buffer.fastest_segment == node.vector_segment
    if not together:
        yield fits(
            rule,
            vector == 1,
            node.staging.vector,
            limit_text="must be 1, as the copy changes the order of dimensions",
            nearest="1" if each in ASYNC_COPIES_BY_BYTES else REGISTER_COPY_HINT,
            unit="elements at once",
        )
    size = vector * each
    moved = (size == 4) | (size == 8) | (size == 16)
    yield fits(
        rule,
        moved,
        node.staging.vector * each,
        limit_text="must be 4, 8 or 16",
        nearest=f"use vector={max(1, 4 // each)}" if together else REGISTER_COPY_HINT,
        unit="bytes at once",
    )
