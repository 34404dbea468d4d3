"""Axes that what is read divides, as the two that `divide` makes of each: how the rules see a launch.

Dimensions that two axes run along as the digits of a number: `k_part*128 + k`, where k has 128 values.

So a sum in parts reads (`ekc.ir.schedule.graph_rewrites`), and so does whoever writes parts of a dimension by hand.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from ekc.ir import expr as ex
from ekc.ir.affine import AffineForm, Atom, to_affine
from ekc.ir.compute import Axis, Compute
from ekc.ir.divisions import find_quotient_period
from ekc.ir.lowering.memory_access import to_affine_index
from ekc.ir.operator import Operator
from ekc.ir.program import make_initial_program
from ekc.ir.schedule import Divide


def match_digits(compute: Compute, index: ex.Expr) -> tuple[str, str] | None:
    """The outer and the inner axis of such an index; None for any other."""
    form = to_affine(index, {})
    if len(form.terms) != 2 or form.const != 0:
        return None
    outer, inner = sorted(form.terms, key=lambda term: -int(term[1]))
    if not isinstance(outer[0], str) or not isinstance(inner[0], str):
        return None
    whole = inner[1] == 1 and outer[1] == compute.find_axis(inner[0]).extent
    return (outer[0], inner[0]) if whole else None


def find_contiguous_axis(compute: Compute, index: ex.Expr) -> str | None:
    """The axis whose neighbours are those of a dimension: its only one, or its inner digit."""
    if isinstance(index, ex.Var):
        return index.name
    found = match_digits(compute, index)
    return found and found[1]


def find_part_axes(compute: Compute) -> frozenset[str]:
    """Spatial axes that every read has as the outer digit of a sum, and nowhere else: one part of it each."""
    sums = {a.name for a in compute.reduction_axes}
    found = frozenset(a.name for a in compute.spatial_axes)
    for load in ex.find_loads(compute.body):
        pairs = [match_digits(compute, index) for index in load.index]
        outer = [pair[0] for pair in pairs if pair and pair[1] in sums]
        once = {x for x in outer if sum(x in ex.find_variables(index) for index in load.index) == 1}
        found &= once
    return found if ex.find_loads(compute.body) else frozenset()


MAX_SHORT_TERMS = 8
"""Terms: of four bytes a sector, of two half of one."""


def make_divide_steps(compute: Compute) -> tuple[Divide, ...]:
    """A step for every axis that turns over within its extent."""
    turns = [(a, find_quotient_period(compute, a.name)) for a in compute.axes]
    return tuple(Divide(axis.name, by) for axis, by in turns if 1 < by < axis.extent)


def divide_compute(op: Operator, compute: Compute) -> Compute:
    """The compute over the loops that these steps make, as if they were its axes; itself where there are
    none. For reading alone: its output is no longer indexed by its axes."""
    steps = make_divide_steps(compute)
    if not steps:
        return compute
    program = reduce(lambda program, step: step.apply(program), steps, make_initial_program(op))
    nest = next(n for n in program.nests if n.compute is compute)

    def told(load: ex.Load) -> ex.Expr:
        return ex.Load(load.tensor, tuple(map(_form_to_expression, to_affine_index(load, nest.index_forms))))

    axes = tuple(Axis(x.name, x.extent, x.is_reduction) for x in nest.loops)
    return replace(compute, axes=axes, body=ex.replace_loads(compute.body, told))


def find_divide_steps(op: Operator, compute: Compute) -> tuple[Divide, ...]:
    """The steps that made a compute what it is; none for one of the operator's own."""
    own = next(c for c in op.computes if c.output.name == compute.output.name)
    return () if own is compute else make_divide_steps(own)


def find_groups(op: Operator, compute: Compute) -> frozenset[str]:
    """The outer pieces that every read moves along: groups of channels, heads that share keys."""
    outer = (f"{step.axis}.0" for step in find_divide_steps(op, compute))
    loads = ex.find_loads(compute.body)
    return frozenset(name for name in outer if all(name in ex.find_variables(x) for x in loads))


def find_short_groups(op: Operator, compute: Compute) -> frozenset[str]:
    """Groups whose sums have so few terms that a sector of memory holds neighbours of several."""
    sums = {a.name for a in compute.reduction_axes if a.extent <= MAX_SHORT_TERMS}
    every = (match_digits(compute, index) for load in ex.find_loads(compute.body) for index in load.index)
    return find_groups(op, compute) & {pair[0] for pair in every if pair and pair[1] in sums}


def _form_to_expression(form: AffineForm) -> ex.Expr:
    """A form as text would have it: 16*o.0 + o.1."""
    terms = [_atom_to_expression(a) if c == 1 else _atom_to_expression(a) * c for a, c in form.terms]
    if form.const or not terms:
        terms.append(ex.Const(form.const))
    return reduce(lambda a, b: a + b, terms)


def _atom_to_expression(atom: Atom) -> ex.Expr:
    if isinstance(atom, str):
        return ex.Var(atom)
    return ex.Binary(atom.op, _form_to_expression(atom.inner), ex.Const(atom.divisor))
