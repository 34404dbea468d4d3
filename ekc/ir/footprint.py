"""What a launch touches of global memory: which elements each block needs, staged or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.errors import ScheduleError
from ekc.ir import expr as ex
from ekc.ir.linear import AffineForm, Extent, to_affine
from ekc.ir.operator import Compute
from ekc.ir.program import Nest
from ekc.ir.region import find_region
from ekc.ir.view_footprint import count_distinct_elements

IndexForms = list[tuple[AffineForm, ...]]
"""The index forms of every read of one tensor."""


def find_direct_reads(nest: Nest) -> dict[str, IndexForms]:
    """The tensors that the body reads straight from global memory."""
    staged = {s.tensor for s in nest.stagings}
    found: dict[str, IndexForms] = {}
    for load in ex.find_loads(nest.compute.body):
        if load.tensor not in staged:
            found.setdefault(load.tensor, []).append(
                tuple(to_affine(i, nest.index_forms) for i in load.index)
            )
    return found


def find_global_reads(nest: Nest) -> dict[str, IndexForms]:
    """Every global tensor a launch reads, through stagings, through tensors computed on the spot, and when
    it writes."""
    produced = {s.tensor: s.producer for s in nest.stagings if s.producer}
    found: dict[str, IndexForms] = {}

    def visit(body: ex.Expr, index: Mapping[str, AffineForm]) -> None:
        for load in ex.find_loads(body):
            forms, compute = to_affine_index(load, index), produced.get(load.tensor)
            if compute is None:
                found.setdefault(load.tensor, []).append(forms)
            else:
                visit(compute.body, map_axes_to_element(compute, forms))

    visit(nest.compute.body, nest.index_forms)
    for load in ex.find_loads(nest.written_value):
        if load.tensor != nest.compute.output.name:
            found.setdefault(load.tensor, []).append(to_affine_index(load, nest.axis_forms))
    return found


def find_stored_tensors(nest: Nest) -> set[str]:
    """The tensors that a launch reads or writes as they are stored: in global memory, or in a tile of it that
    is computed on the spot."""
    return {*find_global_reads(nest), *(s.tensor for s in nest.stagings), nest.output.name}


def to_affine_index(load: ex.Load, axis_forms: Mapping[str, AffineForm]) -> tuple[AffineForm, ...]:
    """The index of a read, its axes given as forms."""
    return tuple(to_affine(i, axis_forms) for i in load.index)


def map_axes_to_element(compute: Compute, element: tuple[AffineForm, ...]) -> dict[str, AffineForm]:
    """The spatial axes of a compute at the element of its output that a read asks for."""
    return dict(zip((a.name for a in compute.spatial_axes), element, strict=True))


def find_global_writes(nest: Nest) -> IndexForms:
    """The output elements a launch writes."""
    return [tuple(to_affine(i, nest.axis_forms) for i in nest.compute.output_element.index)]


def count_block_elements(index_forms: IndexForms, nest: Nest) -> NDArray[np.float64]:
    """Distinct elements of a tensor that one block touches (of a view, `distinct` says how exactly)."""
    inner = frozenset((*(x.name for x in nest.loops if not x.is_block), *nest.fused_reduction_extents))
    extents = nest.extents | nest.fused_reduction_extents
    try:
        region = find_region(index_forms, inner, extents, nest.axis_by_loop)
        return np.asanyarray(
            region.size if region.view is None else count_distinct_elements(region), dtype=np.float64
        )
    except ScheduleError:
        # No staging asked for this box, so nothing is illegal: bound each read by itself.
        total = np.zeros(())
        for read in index_forms:
            points = np.ones(())
            for form in read:
                points = points * _bound_index_width(form, inner, extents)
            total = total + points
        return total


def _bound_index_width(form: AffineForm, inner_loops: frozenset[str], extents: Mapping[str, Extent]) -> Any:
    """At most how many values an index takes while the loops `inner` run."""
    reach: Any = 0.0
    for atom, coefficient in form.terms:
        step = np.abs(np.asanyarray(coefficient, dtype=np.float64))
        if isinstance(atom, str):
            reach = reach + step * (np.asanyarray(extents[atom]) - 1.0 if atom in inner_loops else 0.0)
        elif atom.find_variables() & inner_loops:
            within, divisor = (
                _bound_index_width(atom.inner, inner_loops, extents) - 1.0,
                np.asanyarray(atom.divisor),
            )
            each = np.ceil(within / divisor) if atom.op == "//" else np.minimum(within, divisor - 1)
            reach = reach + step * each
    return reach + 1.0
