"""Axes with quotients and remainders in an index (rule 0), and indices made of two axes as digits.

A read such as `x[c // 16]` divides axis c. The step `divide` splits c where the quotient changes, into c.0
and c.1, and the other rules see these two axes: `divide_compute`.

An index such as `k_part*128 + k`, where k has 128 values, has two axes as its digits: `match_digits`. Split-K
makes such indices (`ekc.ir.schedule.graph_rewrites`), and so do operators written in parts by hand.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from ekc.ir import expr as ex
from ekc.ir.affine import AffineForm, Atom, to_affine
from ekc.ir.compute import Axis, Compute
from ekc.ir.divisions import compute_quotient_period
from ekc.ir.lowering.memory_access import to_affine_index
from ekc.ir.operator import Operator
from ekc.ir.program import make_initial_program
from ekc.ir.schedule import Divide
from ekc.search.data.defaults import TILING


def match_digits(compute: Compute, index: ex.Expr) -> tuple[str, str] | None:
    """(outer axis, inner axis) of an index `outer*extent(inner) + inner`; None for any other index."""
    form = to_affine(index, {})
    if len(form.terms) != 2 or form.const != 0:
        return None
    outer, inner = sorted(form.terms, key=lambda term: -int(term[1]))
    if not isinstance(outer[0], str) or not isinstance(inner[0], str):
        return None
    adjoining = inner[1] == 1 and outer[1] == compute.find_axis(inner[0]).extent
    return (outer[0], inner[0]) if adjoining else None


def find_contiguous_axis(compute: Compute, index: ex.Expr) -> str | None:
    """The axis along which elements of a dimension are contiguous: its only axis, or its inner digit."""
    if isinstance(index, ex.Var):
        return index.name
    found = match_digits(compute, index)
    return found and found[1]


def derive_part_axes(compute: Compute) -> frozenset[str]:
    """Spatial axes that number the parts of a sum: in every read the outer digit of a reduction axis only."""
    sums = {a.name for a in compute.reduction_axes}
    part_axes = frozenset(a.name for a in compute.spatial_axes)
    for load in ex.find_loads(compute.body):
        pairs = [match_digits(compute, index) for index in load.index]
        outer = [pair[0] for pair in pairs if pair and pair[1] in sums]
        once = {x for x in outer if sum(x in ex.find_variables(index) for index in load.index) == 1}
        part_axes &= once
    return part_axes if ex.find_loads(compute.body) else frozenset()


def make_divide_steps(compute: Compute) -> tuple[Divide, ...]:
    """A `divide` step for every axis whose remainder restarts within its extent."""
    periods = [(a, compute_quotient_period(compute, a.name)) for a in compute.axes]
    return tuple(Divide(axis.name, period) for axis, period in periods if 1 < period < axis.extent)


def divide_compute(op: Operator, compute: Compute) -> Compute:
    """The compute with the loops that the `divide` steps make as its axes; the same object where there are no
    such steps. Only its reads are meaningful: its output is not indexed by the new axes."""
    steps = make_divide_steps(compute)
    if not steps:
        return compute
    program = reduce(lambda program, step: step.apply(program), steps, make_initial_program(op))
    nest = next(n for n in program.nests if n.compute is compute)

    def substitute_axes(load: ex.Load) -> ex.Expr:
        return ex.Load(load.tensor, tuple(map(_form_to_expression, to_affine_index(load, nest.index_forms))))

    axes = tuple(Axis(x.name, x.extent, x.is_reduction) for x in nest.loops)
    return replace(compute, axes=axes, body=ex.replace_loads(compute.body, substitute_axes))


def derive_divide_steps(op: Operator, compute: Compute) -> tuple[Divide, ...]:
    """The `divide` steps of a compute that `divide_compute` returned; none for a compute of the operator."""
    original = next(c for c in op.computes if c.output.name == compute.output.name)
    return () if original is compute else make_divide_steps(original)


def find_groups(op: Operator, compute: Compute) -> frozenset[str]:
    """Outer axes of `divide` steps that index every read: groups of channels, heads that share keys."""
    outer = (f"{step.axis}.0" for step in derive_divide_steps(op, compute))
    loads = ex.find_loads(compute.body)
    return frozenset(name for name in outer if all(name in ex.find_variables(x) for x in loads))


def derive_short_groups(op: Operator, compute: Compute) -> frozenset[str]:
    """Groups with so few terms in a sum that one 32-byte sector of memory holds terms of several groups."""
    sums = {a.name for a in compute.reduction_axes if a.extent <= TILING.max_short_terms}
    loads = ex.find_loads(compute.body)
    pairs = (match_digits(compute, index) for load in loads for index in load.index)
    return find_groups(op, compute) & {pair[0] for pair in pairs if pair and pair[1] in sums}


def _form_to_expression(form: AffineForm) -> ex.Expr:
    """The expression of an affine form: 16*o.0 + o.1."""
    terms = [_atom_to_expression(a) if c == 1 else _atom_to_expression(a) * c for a, c in form.terms]
    if form.const or not terms:
        terms.append(ex.Const(form.const))
    return reduce(lambda a, b: a + b, terms)


def _atom_to_expression(atom: Atom) -> ex.Expr:
    if isinstance(atom, str):
        return ex.Var(atom)
    return ex.Binary(atom.op, _form_to_expression(atom.inner), ex.Const(atom.divisor))
