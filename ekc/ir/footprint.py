"""What a launch touches of global memory: which elements each block needs, staged or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.errors import ScheduleError
from ekc.ir import expr as ex
from ekc.ir.linear import Extent, Linear, linearize
from ekc.ir.operator import Compute
from ekc.ir.program import Nest
from ekc.ir.region import region_of
from ekc.ir.view_footprint import distinct

Forms = list[tuple[Linear, ...]]
"""The index forms of every read of one tensor."""


def direct_reads(nest: Nest) -> dict[str, Forms]:
    """The tensors that the body reads straight from global memory."""
    staged = {s.tensor for s in nest.stagings}
    found: dict[str, Forms] = {}
    for load in ex.loads(nest.compute.body):
        if load.tensor not in staged:
            found.setdefault(load.tensor, []).append(tuple(linearize(i, nest.forms) for i in load.index))
    return found


def global_reads(nest: Nest) -> dict[str, Forms]:
    """Every global tensor a launch reads, through stagings, through tensors computed on the spot, and when
    it writes."""
    produced = {s.tensor: s.produced_by for s in nest.stagings if s.produced_by}
    found: dict[str, Forms] = {}

    def visit(body: ex.Expr, index: Mapping[str, Linear]) -> None:
        for load in ex.loads(body):
            forms, compute = index_of(load, index), produced.get(load.tensor)
            if compute is None:
                found.setdefault(load.tensor, []).append(forms)
            else:
                visit(compute.body, placed(compute, forms))

    visit(nest.compute.body, nest.forms)
    for load in ex.loads(nest.written):
        if load.tensor != nest.compute.output.name:
            found.setdefault(load.tensor, []).append(index_of(load, nest.index))
    return found


def stored(nest: Nest) -> set[str]:
    """The tensors that a launch reads or writes as they are stored: in global memory, or in a tile of it that
    is computed on the spot."""
    return {*global_reads(nest), *(s.tensor for s in nest.stagings), nest.output.name}


def index_of(load: ex.Load, index: Mapping[str, Linear]) -> tuple[Linear, ...]:
    """The index of a read, its axes given as forms."""
    return tuple(linearize(i, index) for i in load.index)


def placed(compute: Compute, element: tuple[Linear, ...]) -> dict[str, Linear]:
    """The spatial axes of a compute at the element of its output that a read asks for."""
    return dict(zip((a.name for a in compute.spatial), element, strict=True))


def global_writes(nest: Nest) -> Forms:
    """The output elements a launch writes."""
    return [tuple(linearize(i, nest.index) for i in nest.compute.store.index)]


def block_elements(forms: Forms, nest: Nest) -> NDArray[np.float64]:
    """Distinct elements of a tensor that one block touches (of a view, `distinct` says how exactly)."""
    inner = frozenset((*(x.name for x in nest.loops if not x.is_block), *nest.reduced_inside))
    extents = nest.extents | nest.reduced_inside
    try:
        region = region_of(forms, inner, extents, nest.axis_of)
        return np.asanyarray(region.size if region.view is None else distinct(region), dtype=np.float64)
    except ScheduleError:
        # No staging asked for this box, so nothing is illegal: bound each read by itself.
        total = np.zeros(())
        for read in forms:
            points = np.ones(())
            for form in read:
                points = points * _width(form, inner, extents)
            total = total + points
        return total


def _width(form: Linear, inner: frozenset[str], extents: Mapping[str, Extent]) -> Any:
    """At most how many values an index takes while the loops `inner` run."""
    reach: Any = 0.0
    for atom, coefficient in form.terms:
        step = np.abs(np.asanyarray(coefficient, dtype=np.float64))
        if isinstance(atom, str):
            reach = reach + step * (np.asanyarray(extents[atom]) - 1.0 if atom in inner else 0.0)
        elif atom.variables() & inner:
            within, divisor = _width(atom.inner, inner, extents) - 1.0, np.asanyarray(atom.divisor)
            each = np.ceil(within / divisor) if atom.op == "//" else np.minimum(within, divisor - 1)
            reach = reach + step * each
    return reach + 1.0
