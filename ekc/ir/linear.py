"""Index arithmetic: sums of coefficient times loop variable, whose coefficients may be vectors.

Splitting replaces a variable by a sum; fusing replaces it by a quotient and a remainder of the
fused variable (a `Quasi` atom). Coefficients and extents are Python integers for one Program and
int64 vectors for a population, and no branch here looks at their values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ekc.ir.expr import Binary, Const, Expr, Var

Extent = Any
"""An int, or an int64 vector with one entry per Program of a population."""


@dataclass(frozen=True, eq=False)
class Quasi:
    """`inner // divisor` or `inner % divisor`, made by fuse or written by the user.

    Two are equal when their tags are: a tag spells the expression in loop names, so equality needs
    no look at coefficients, which may be vectors.
    """

    op: str
    inner: Linear
    divisor: Extent
    tag: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quasi) and self.tag == other.tag

    def __hash__(self) -> int:
        return hash(self.tag)

    def variables(self) -> frozenset[str]:
        """The loop variables it depends on."""
        return self.inner.variables()


Atom = str | Quasi


@dataclass(frozen=True, eq=False)
class Linear:
    """const + sum of coefficient * atom, in a fixed order (outer loops first within an axis)."""

    terms: tuple[tuple[Atom, Extent], ...] = ()
    const: Extent = 0

    def __add__(self, other: Linear) -> Linear:
        mine = dict(self.terms)
        for atom, coefficient in other.terms:
            mine[atom] = mine[atom] + coefficient if atom in mine else coefficient
        return Linear(tuple(mine.items()), self.const + other.const)

    def scaled(self, factor: Extent) -> Linear:
        """Every coefficient times `factor`."""
        return Linear(tuple((a, c * factor) for a, c in self.terms), self.const * factor)

    def shifted(self, offset: Extent) -> Linear:
        """The form plus a number."""
        return Linear(self.terms, self.const + offset)

    def __sub__(self, other: Linear) -> Linear:
        difference = self + other.scaled(-1)
        return Linear(tuple((a, c) for a, c in difference.terms if np.any(c != 0)), difference.const)

    def variables(self) -> frozenset[str]:
        """Every loop variable in it, also those inside quotients and remainders."""
        names: set[str] = set()
        for atom, _ in self.terms:
            names |= {atom} if isinstance(atom, str) else atom.variables()
        return frozenset(names)

    def substitute(self, values: Mapping[str, Linear]) -> Linear:
        """Each named variable replaced by a form."""
        out = Linear((), self.const)
        for atom, coefficient in self.terms:
            if isinstance(atom, Quasi):
                out = out + Linear(((_substituted(atom, values), coefficient),))
            else:
                out = out + values.get(atom, variable(atom)).scaled(coefficient)
        return out

    def only(self, names: Collection[str]) -> Linear:
        """The terms whose variables all lie in `names`, without the constant."""
        return Linear(tuple((a, c) for a, c in self.terms if atom_variables(a) <= set(names)))

    def without(self, names: Collection[str]) -> Linear:
        """The terms that use no variable of `names`, and the constant."""
        keep = tuple((a, c) for a, c in self.terms if not atom_variables(a) & set(names))
        return Linear(keep, self.const)

    def only_cut(self, names: Collection[str]) -> Linear:
        """The quotients and remainders that use variables both inside and outside `names`."""
        inside = set(names)
        return Linear(
            tuple((a, c) for a, c in self.terms if atom_variables(a) & inside and atom_variables(a) - inside)
        )


def _substituted(atom: Quasi, values: Mapping[str, Linear]) -> Quasi:
    touched = sorted(atom.variables() & set(values))
    if not touched:
        return atom
    return Quasi(atom.op, atom.inner.substitute(values), atom.divisor, f"{atom.tag}[{' '.join(touched)}]")


def variable(name: str) -> Linear:
    """The form that is one loop variable."""
    return Linear(((name, 1),))


def atom_variables(atom: Atom) -> frozenset[str]:
    """The loop variables of one atom."""
    return frozenset((atom,)) if isinstance(atom, str) else atom.variables()


def atom_range(atom: Atom, extents: Mapping[str, Extent]) -> tuple[Extent, Extent]:
    """Smallest and largest value of an atom (both inclusive); each variable runs over [0, extent)."""
    if isinstance(atom, str):
        return 0, extents[atom] - 1
    low, high = span(atom.inner, extents)
    if atom.op == "//":
        return low // atom.divisor, high // atom.divisor
    inside = (low >= 0) & (high < atom.divisor)
    if isinstance(inside, bool):
        return (low, high) if inside else (0, atom.divisor - 1)
    return np.where(inside, low, 0), np.where(inside, high, atom.divisor - 1)


def span(form: Linear, extents: Mapping[str, Extent]) -> tuple[Extent, Extent]:
    """Smallest and largest value of a form (both inclusive)."""
    low = high = form.const
    for atom, coefficient in form.terms:
        first, last = atom_range(atom, extents)
        a, b = coefficient * first, coefficient * last
        low, high = low + smaller(a, b), high + larger(a, b)
    return low, high


def smaller(a: Extent, b: Extent) -> Extent:
    """Elementwise minimum that keeps Python integers Python integers."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else np.minimum(a, b)


def larger(a: Extent, b: Extent) -> Extent:
    """Elementwise maximum that keeps Python integers Python integers."""
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else np.maximum(a, b)


def ceil_div(a: Extent, b: Extent) -> Extent:
    """a / b rounded up."""
    return -(-a // b)


def turns_over(atom: Quasi, name: str) -> Extent:
    """After how many steps of a variable a quotient moves on, or a remainder starts again."""
    within, before = deeper(atom.inner, name), 1
    if within is None:
        step = np.abs(np.asanyarray(dict(atom.inner.terms).get(name, 1)))
        return atom.divisor // larger(step, 1)
    if within.op == "//":
        before = turns_over(within, name)
    return smaller(before * atom.divisor, turns_over(within, name))


def deeper(form: Linear, name: str) -> Quasi | None:
    """The quotient or remainder in a form that a variable moves, if it does not move the form itself."""
    if name in dict(form.terms):
        return None
    return next((a for a, _ in form.terms if isinstance(a, Quasi) and name in a.variables()), None)


def moved_by(form: Linear, name: str, by: Extent) -> Extent:
    """How far a form moves from 0 when a variable moves `by` from 0, where the others rest."""
    total: Extent = 0
    for atom, coefficient in form.terms:
        if isinstance(atom, Quasi):
            inner = moved_by(atom.inner, name, by)
            total = total + coefficient * (inner // atom.divisor if atom.op == "//" else inner % atom.divisor)
        elif atom == name:
            total = total + coefficient * by
    return total


class NotLinear(ValueError):
    """An index is not a sum of integer multiples of axes (quotients and remainders by constants allowed)."""


def linearize(e: Expr, axes: Mapping[str, Linear]) -> Linear:
    """An index expression as a Linear over loops; `axes` gives each axis in terms of loops, and may give
    quotients and remainders too, by their text."""
    if isinstance(e, Const) and isinstance(e.value, int):
        return Linear((), e.value)
    if isinstance(e, Var):
        return axes.get(e.name, variable(e.name))
    if isinstance(e, Binary) and e.op in ("+", "-"):
        a, b = linearize(e.a, axes), linearize(e.b, axes)
        return a + b if e.op == "+" else a - b
    if isinstance(e, Binary) and e.op == "*":
        for number, other in ((e.a, e.b), (e.b, e.a)):
            if isinstance(number, Const) and isinstance(number.value, int):
                return linearize(other, axes).scaled(number.value)
    if (
        isinstance(e, Binary)
        and e.op in ("//", "%")
        and isinstance(e.b, Const)
        and isinstance(e.b.value, int)
    ):
        return axes.get(str(e)) or _quotient(e, linearize(e.a, {}), e.b.value).substitute(axes)
    raise NotLinear(f"{e} is not a sum of integer multiples of axes")


def _quotient(e: Binary, inner: Linear, divisor: int) -> Linear:
    if divisor < 1:
        raise NotLinear(f"{e} divides by {divisor}, the least divisor is 1")
    if not inner.terms:
        return Linear((), inner.const // divisor if e.op == "//" else inner.const % divisor)
    return Linear(((Quasi(e.op, inner, divisor, str(e)), 1),))


def value(form: Linear, env: Mapping[str, Any]) -> Any:
    """The number (or array) a form stands for, given each loop variable."""
    total: Any = form.const
    for atom, coefficient in form.terms:
        total = total + coefficient * atom_value(atom, env)
    return total


def atom_value(atom: Atom, env: Mapping[str, Any]) -> Any:
    """The number (or array) an atom stands for."""
    if isinstance(atom, str):
        return env[atom]
    inner = value(atom.inner, env)
    return inner // atom.divisor if atom.op == "//" else inner % atom.divisor
