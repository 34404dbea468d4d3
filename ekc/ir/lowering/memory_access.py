"""Global memory that a launch reads and writes: tensors, elements of a block, and guards of reduction tails.

Elements of an im2col tile may be the same in the tensor, as windows of a convolution overlap. A joint loop
runs through the digits of a mixed-radix number, one digit for each dimension: all columns of a row before the
next row, all rows of an image before the next. Blocks start at different digits; distinct elements are the
mean over these starts.

The tail of a reduction needs a guard unless every factor of the body is 0 beyond the axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.errors import ScheduleError
from ekc.ir import expr as ex
from ekc.ir.affine import AffineForm, Extent, QuasiAffine, to_affine
from ekc.ir.compute import Axis, Compute, TensorSpec
from ekc.ir.lowering.buffers import BoundsGuard, find_guards
from ekc.ir.lowering.regions import Region, derive_region
from ekc.ir.program import Nest
from ekc.tables import group_pairs

FloatOrArray = Any
"""A float, or a float64 vector over a population."""


def count_distinct_elements(region: Region) -> FloatOrArray:
    """Distinct elements of the tensor in an im2col tile.

    Exact without windows. With windows it is the mean over the starts of a joint loop, with the full halo of
    each digit. Otherwise (several joint segments, a dimension with several quotients) it is the size of the
    tile, an upper bound.
    """
    runs = [s for s in region.segments if s.is_joint]
    digits = _find_digits(region)
    if len(runs) != 1 or digits is None:
        return region.size
    length, before, total = np.asanyarray(runs[0].extent, np.float64), np.ones(()), np.ones(())
    for s in region.segments:
        if not s.is_joint and s.dim not in digits:
            total = total * s.extent
    for dim, (period, step) in sorted(digits.items(), key=lambda item: -item[1][0]):
        prefixes = 1 + (length - 1) / period
        values, before = prefixes / before, prefixes
        windows = [s for s in region.segments if s.dim == dim and not s.is_joint]
        taps = np.prod([np.ones(()), *(np.asanyarray(s.extent) for s in windows)], axis=0)
        halo = sum((np.asanyarray(s.extent) - 1) * np.abs(s.stride) for s in windows)
        total = total * np.minimum(values * taps, (values - 1) * step + halo + 1)
    return np.minimum(total, region.size)


def _find_digits(region: Region) -> dict[int, tuple[int, int]] | None:
    """(iterations between changes, step) by dimension that a joint loop moves; None if they vary."""
    assert region.view is not None
    digits = {}
    for dim, form in enumerate(region.view.forms):
        if not form.terms:
            continue
        (atom, step), *more = form.terms
        assert isinstance(atom, QuasiAffine)
        period = _find_digit_period(atom)
        if more or np.ndim(period) or np.ndim(step):
            return None
        digits[dim] = (int(period), abs(int(step)))
    return digits


def _find_digit_period(atom: QuasiAffine) -> Any:
    """Iterations of the joint loop between two changes of a digit."""
    inside = [a for a, _ in atom.inner.terms if isinstance(a, QuasiAffine)]
    below = _find_digit_period(inside[0]) if inside else 1
    return below * atom.divisor if atom.op == "//" else below


IndexForms = list[tuple[AffineForm, ...]]
"""The index forms of every read of one tensor."""


def find_direct_reads(nest: Nest) -> dict[str, IndexForms]:
    """Reads of the body that go to global memory, by tensor."""
    staged = {s.tensor for s in nest.stagings}
    return group_pairs((x.tensor, forms) for x, forms in nest.read_forms.items() if x.tensor not in staged)


def find_global_reads(nest: Nest) -> dict[str, IndexForms]:
    """Reads of global memory of a launch, by tensor: by stagings, fused producers and the epilogue too."""
    produced = {s.tensor: s.producer for s in nest.stagings if s.producer}
    found: dict[str, IndexForms] = {}

    def visit(reads: Mapping[ex.Load, tuple[AffineForm, ...]]) -> None:
        for load, forms in reads.items():
            compute = produced.get(load.tensor)
            if compute is None:
                found.setdefault(load.tensor, []).append(forms)
            else:
                axes = map_axes_to_element(compute, forms)
                visit({x: to_affine_index(x, axes) for x in compute.loads})

    visit(nest.read_forms)
    for load in ex.find_loads(nest.written_value):
        if load.tensor != nest.compute.output.name:
            found.setdefault(load.tensor, []).append(to_affine_index(load, nest.axis_forms))
    return found


def find_stored_tensors(nest: Nest) -> set[str]:
    """Tensors that a launch accesses in their storage type: global ones, and tiles of fused producers."""
    return {*find_global_reads(nest), *(s.tensor for s in nest.stagings), nest.output.name}


def to_affine_index(load: ex.Load, axis_forms: Mapping[str, AffineForm]) -> tuple[AffineForm, ...]:
    """The index of a read as affine forms, from the forms of its axes."""
    return tuple(to_affine(i, axis_forms) for i in load.index)


def map_axes_to_element(compute: Compute, element: tuple[AffineForm, ...]) -> dict[str, AffineForm]:
    """Forms of the spatial axes of a compute at one element of its output."""
    return dict(zip((a.name for a in compute.spatial_axes), element, strict=True))


def find_global_writes(nest: Nest) -> IndexForms:
    """Index of the output elements that a launch writes."""
    return [to_affine_index(nest.compute.output_element, nest.axis_forms)]


def count_block_elements(index_forms: IndexForms, nest: Nest) -> NDArray[np.float64]:
    """Distinct elements that one block accesses of a tensor (see `count_distinct_elements`)."""
    region = derive_block_region(index_forms, nest)
    if region is not None:
        count = region.size if region.view is None else count_distinct_elements(region)
        return np.asanyarray(count, dtype=np.float64)
    inner, extents = _find_inner_loops(nest)
    total = np.zeros(())
    for read in index_forms:
        points = np.ones(())
        for form in read:
            points = points * _bound_index_width(form, inner, extents)
        total = total + points
    return total


def derive_block_region(index_forms: IndexForms, nest: Nest) -> Region | None:
    """The part of a tensor that one block accesses; None where it is no box. No staging copies it, so that is
    no error."""
    try:
        return derive_region(index_forms, *_find_inner_loops(nest), nest.axis_by_loop)
    except ScheduleError:
        return None


def _find_inner_loops(nest: Nest) -> tuple[frozenset[str], dict[str, Extent]]:
    """Loops that run within a block, and the extents of all loops."""
    inner = frozenset((*(x.name for x in nest.loops if not x.is_block), *nest.fused_reduction_extents))
    return inner, nest.extents | nest.fused_reduction_extents


def _bound_index_width(form: AffineForm, inner_loops: frozenset[str], extents: Mapping[str, Extent]) -> Any:
    """Upper bound on the number of values of an index while `inner_loops` run."""
    reach: Any = 0.0
    for atom, coefficient in form.terms:
        step = np.abs(np.asanyarray(coefficient, dtype=np.float64))
        if isinstance(atom, str):
            reach = reach + step * (np.asanyarray(extents[atom]) - 1.0 if atom in inner_loops else 0.0)
        elif atom.find_variables() & inner_loops:
            inner_range = _bound_index_width(atom.inner, inner_loops, extents) - 1.0
            divisor = np.asanyarray(atom.divisor)
            each = np.ceil(inner_range / divisor) if atom.op == "//" else np.minimum(inner_range, divisor - 1)
            reach = reach + step * each
    return reach + 1.0


def derive_reduction_guards(nest: Nest, tensors: Mapping[str, TensorSpec]) -> tuple[BoundsGuard, ...]:
    """Guards of reduction tails. A product of reads that are all 0 beyond the tail needs none."""
    guards: list[BoundsGuard] = []
    for axis in nest.compute.reduction_axes:
        if not is_zero_beyond_axis(nest.compute, axis, tensors):
            guards += find_guards((nest.axis_forms[axis.name],), (axis.extent,), nest.extents)
    return tuple(guards)


def is_zero_beyond_axis(compute: Compute, axis: Axis, tensors: Mapping[str, TensorSpec]) -> bool:
    """Whether every factor of the body is 0 beyond a reduction axis."""
    if axis.extent == 1:
        # A tile has the single point of the axis only, so there are no zeros beyond it.
        return False
    parts = ex.list_factors(compute.body)
    reads = [p for p in parts if isinstance(p, ex.Load)]
    others = any(not isinstance(p, (ex.Load, ex.Const)) for p in parts)
    if compute.combine != "sum" or not reads or others:
        return False
    return all(_ends_at_axis(axis, read, tensors[read.tensor]) for read in reads)


def _ends_at_axis(axis: Axis, read: ex.Load, spec: TensorSpec) -> bool:
    """Whether the axis indexes a dimension of its own extent, so that reads beyond it give 0."""
    pairs = zip(read.index, spec.shape, strict=True)
    return any(form == ex.Var(axis.name) and extent == axis.extent for form, extent in pairs)
