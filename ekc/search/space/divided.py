"""Axes that what is read divides, as the two that `divide` makes of each: how the rules see a launch."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from ekc.ir import expr as ex
from ekc.ir.footprint import index_of
from ekc.ir.linear import Atom, Linear
from ekc.ir.operator import Axis, Compute, Operator
from ekc.ir.program import initial
from ekc.ir.quotients import turns_at
from ekc.ir.steps import Divide
from ekc.search.space.digits import digits

SHORT = 8
"""Terms: of four bytes a sector, of two half of one."""


def dividing(compute: Compute) -> tuple[Divide, ...]:
    """A step for every axis that turns over within its extent."""
    turns = [(a, turns_at(compute, a.name)) for a in compute.axes]
    return tuple(Divide(axis.name, by) for axis, by in turns if 1 < by < axis.extent)


def divided(op: Operator, compute: Compute) -> Compute:
    """The compute over the loops that these steps make, as if they were its axes; itself where there are
    none. For reading alone: its output is no longer indexed by its axes."""
    steps = dividing(compute)
    if not steps:
        return compute
    program = reduce(lambda program, step: step.apply(program), steps, initial(op))
    nest = next(n for n in program.nests if n.compute is compute)

    def told(load: ex.Load) -> ex.Expr:
        return ex.Load(load.tensor, tuple(map(_expression, index_of(load, nest.forms))))

    axes = tuple(Axis(x.name, x.extent, x.reduction) for x in nest.loops)
    return replace(compute, axes=axes, body=ex.with_loads(compute.body, told))


def divided_by(op: Operator, compute: Compute) -> tuple[Divide, ...]:
    """The steps that made a compute what it is; none for one of the operator's own."""
    own = next(c for c in op.computes if c.output.name == compute.output.name)
    return () if own is compute else dividing(own)


def groups(op: Operator, compute: Compute) -> frozenset[str]:
    """The outer pieces that every read moves along: groups of channels, heads that share keys."""
    outer = (f"{step.axis}.0" for step in divided_by(op, compute))
    loads = ex.loads(compute.body)
    return frozenset(name for name in outer if all(name in ex.variables(x) for x in loads))


def short_groups(op: Operator, compute: Compute) -> frozenset[str]:
    """Groups whose sums have so few terms that a sector of memory holds neighbours of several."""
    sums = {a.name for a in compute.reduction if a.extent <= SHORT}
    every = (digits(compute, index) for load in ex.loads(compute.body) for index in load.index)
    return groups(op, compute) & {pair[0] for pair in every if pair and pair[1] in sums}


def _expression(form: Linear) -> ex.Expr:
    """A form as text would have it: 16*o.0 + o.1."""
    terms = [_atom(a) if c == 1 else _atom(a) * c for a, c in form.terms]
    if form.const or not terms:
        terms.append(ex.Const(form.const))
    return reduce(lambda a, b: a + b, terms)


def _atom(atom: Atom) -> ex.Expr:
    if isinstance(atom, str):
        return ex.Var(atom)
    return ex.Binary(atom.op, _expression(atom.inner), ex.Const(atom.divisor))
