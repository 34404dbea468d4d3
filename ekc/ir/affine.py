"""Index arithmetic: sums of coefficient times loop variable, whose coefficients may be vectors.

Splitting replaces a variable by a sum; fusing replaces it by a quotient and a remainder of the
fused variable (a `QuasiAffine` atom). Coefficients and extents are Python integers for one Program and
int64 vectors for a population, and no branch here looks at their values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ekc.ir.expr import Binary, Const, Expr, Var

Extent = Any
"""Type of an extent: an int, or an int64 vector with one entry per Program of a population."""


@dataclass(frozen=True, eq=False)
class QuasiAffine:
    """`inner // divisor` or `inner % divisor`, made by fuse or written by the user.

    Two are equal when their tags are: a tag spells the expression in loop names, so equality needs
    no look at coefficients, which may be vectors.
    """

    op: str
    inner: AffineForm
    divisor: Extent
    tag: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QuasiAffine) and self.tag == other.tag

    def __hash__(self) -> int:
        return hash(self.tag)

    def find_variables(self) -> frozenset[str]:
        """The loop variables that the atom depends on."""
        return self.inner.find_variables()


Atom = str | QuasiAffine


@dataclass(frozen=True, eq=False)
class AffineForm:
    """const + sum of coefficient * atom, in a fixed order (outer loops first within an axis)."""

    terms: tuple[tuple[Atom, Extent], ...] = ()
    const: Extent = 0

    def __add__(self, other: AffineForm) -> AffineForm:
        mine = dict(self.terms)
        for atom, coefficient in other.terms:
            mine[atom] = mine[atom] + coefficient if atom in mine else coefficient
        return AffineForm(tuple(mine.items()), self.const + other.const)

    def scale(self, factor: Extent) -> AffineForm:
        """The form with every coefficient multiplied by `factor`."""
        return AffineForm(tuple([(a, c * factor) for a, c in self.terms]), self.const * factor)

    def shift(self, offset: Extent) -> AffineForm:
        """The form plus a number."""
        return AffineForm(self.terms, self.const + offset)

    def __sub__(self, other: AffineForm) -> AffineForm:
        difference = sum_scaled_forms((self, other), (1, -1))
        return AffineForm(tuple([t for t in difference.terms if is_any(t[1] != 0)]), difference.const)

    @cached_property
    def _variables(self) -> frozenset[str]:
        plain = [atom for atom, _ in self.terms if isinstance(atom, str)]
        return frozenset(plain).union(*(atom.find_variables() for atom, _ in self._divisions))

    @cached_property
    def _divisions(self) -> tuple[tuple[QuasiAffine, Extent], ...]:
        """The terms that are quotients or remainders."""
        return tuple([(atom, c) for atom, c in self.terms if isinstance(atom, QuasiAffine)])

    def find_variables(self) -> frozenset[str]:
        """Every loop variable in it, also those inside quotients and remainders."""
        return self._variables

    def substitute(self, values: Mapping[str, AffineForm]) -> AffineForm:
        """Each named variable replaced by a form."""
        if not self.find_variables() & values.keys():
            return self
        forms = [
            values[atom]
            if isinstance(atom, str) and atom in values
            else make_variable(_substitute_atom(atom, values))
            for atom, _ in self.terms
        ]
        return sum_scaled_forms(forms, [c for _, c in self.terms]).shift(self.const)

    def select_inside(self, names: Collection[str]) -> AffineForm:
        """The terms whose variables all lie in `names`, without the constant."""
        inside = frozenset(names)
        kept = [
            t
            for t in self.terms
            if (t[0] in inside if isinstance(t[0], str) else t[0].find_variables() <= inside)
        ]
        return AffineForm(tuple(kept))

    def select_outside(self, names: Collection[str]) -> AffineForm:
        """The terms that use no variable of `names`, and the constant."""
        inside = frozenset(names)
        kept = [
            t
            for t in self.terms
            if (t[0] not in inside if isinstance(t[0], str) else inside.isdisjoint(t[0].find_variables()))
        ]
        return AffineForm(tuple(kept), self.const)

    def select_crossing(self, names: Collection[str]) -> AffineForm:
        """The quotients and remainders that use variables both inside and outside `names`."""
        inside = frozenset(names)
        own = [(t, t[0].find_variables()) for t in self._divisions]
        return AffineForm(tuple([t for t, used in own if not used <= inside and used & inside]))


def _substitute_atom(atom: Atom, values: Mapping[str, AffineForm]) -> Atom:
    touched = sorted(find_atom_variables(atom) & values.keys())
    if isinstance(atom, str) or not touched:
        return atom
    tag = f"{atom.tag}[{' '.join(touched)}]"
    return QuasiAffine(atom.op, atom.inner.substitute(values), atom.divisor, tag)


def make_variable(atom: Atom) -> AffineForm:
    """The form that is one loop variable, or one quotient or remainder."""
    return AffineForm(((atom, 1),))


def sum_scaled_forms(forms: Sequence[AffineForm], factors: Sequence[Extent]) -> AffineForm:
    """The sum of forms, each multiplied by its factor."""
    terms: dict[Atom, Extent] = {}
    const: Extent = 0
    for form, factor in zip(forms, factors, strict=True):
        const = const + form.const * factor
        for atom, coefficient in form.terms:
            step = coefficient * factor
            terms[atom] = terms[atom] + step if atom in terms else step
    return AffineForm(tuple(terms.items()), const)


def find_atom_variables(atom: Atom) -> frozenset[str]:
    """The loop variables of one atom."""
    return frozenset((atom,)) if isinstance(atom, str) else atom.find_variables()


def compute_atom_range(atom: Atom, extents: Mapping[str, Extent]) -> tuple[Extent, Extent]:
    """Smallest and largest value of an atom (both inclusive); each variable runs over [0, extent)."""
    if isinstance(atom, str):
        return 0, extents[atom] - 1
    low, high = find_range(atom.inner, extents)
    if atom.op == "//":
        return low // atom.divisor, high // atom.divisor
    inside = (low >= 0) & (high < atom.divisor)
    return choose(inside, low, 0), choose(inside, high, atom.divisor - 1)


def find_range(form: AffineForm, extents: Mapping[str, Extent]) -> tuple[Extent, Extent]:
    """Smallest and largest value of a form (both inclusive)."""
    low = high = form.const
    for atom, coefficient in form.terms:
        first, last = compute_atom_range(atom, extents)
        a, b = coefficient * first, coefficient * last
        low, high = low + min_extent(a, b), high + max_extent(a, b)
    return low, high


_NUMBER_TYPES = frozenset((int, float, np.int64, np.float64))
"""Types of the numbers of a single Program, for which Python is faster than a call of NumPy."""


def is_any(mask: Any) -> Any:
    """Whether a condition holds for any member; a plain condition holds or not."""
    return mask if isinstance(mask, (bool, np.bool_)) else np.any(mask)


def min_extent(a: Extent, b: Extent) -> Extent:
    """Elementwise minimum that keeps Python integers Python integers."""
    return min(a, b) if type(a) in _NUMBER_TYPES and type(b) in _NUMBER_TYPES else np.minimum(a, b)


def max_extent(a: Extent, b: Extent) -> Extent:
    """Elementwise maximum that keeps Python integers Python integers."""
    return max(a, b) if type(a) in _NUMBER_TYPES and type(b) in _NUMBER_TYPES else np.maximum(a, b)


def choose(condition: Any, a: Any, b: Any) -> Any:
    """`a` where a condition holds and `b` elsewhere; one of the two, as it is, for a plain condition."""
    if isinstance(condition, (bool, np.bool_)):
        return a if condition else b
    return np.where(condition, a, b)


def ceil_div(a: Extent, b: Extent) -> Extent:
    """a / b rounded up."""
    return -(-a // b)


def compute_carry_period(atom: QuasiAffine, name: str) -> Extent:
    """The number of steps of a variable after which a quotient changes, or a remainder starts again."""
    within, before = find_enclosing_quasi(atom.inner, name), 1
    if within is None:
        step = abs(dict(atom.inner.terms).get(name, 1))
        return atom.divisor // max_extent(step, 1)
    if within.op == "//":
        before = compute_carry_period(within, name)
    return min_extent(before * atom.divisor, compute_carry_period(within, name))


def find_enclosing_quasi(form: AffineForm, name: str) -> QuasiAffine | None:
    """The quotient or remainder of a form that has a variable; None where the form itself has it."""
    if name in dict(form.terms):
        return None
    return next((a for a, _ in form.terms if isinstance(a, QuasiAffine) and name in a.find_variables()), None)


def compute_displacement(form: AffineForm, name: str, steps: Extent) -> Extent:
    """The change of a form when one variable goes from 0 to `steps` and the others stay 0."""
    total: Extent = 0
    for atom, coefficient in form.terms:
        if isinstance(atom, QuasiAffine):
            inner = compute_displacement(atom.inner, name, steps)
            total = total + coefficient * (inner // atom.divisor if atom.op == "//" else inner % atom.divisor)
        elif atom == name:
            total = total + coefficient * steps
    return total


class NotAffineError(ValueError):
    """An index is not a sum of integer multiples of axes (quotients and remainders by constants allowed)."""


def to_affine(e: Expr, axis_forms: Mapping[str, AffineForm]) -> AffineForm:
    """An index expression as an `AffineForm` over loops.

    `axis_forms` gives each axis in terms of loops. It may also give quotients and remainders, by their text.
    """
    if isinstance(e, Const) and isinstance(e.value, int):
        return AffineForm((), e.value)
    if isinstance(e, Var):
        return axis_forms.get(e.name, make_variable(e.name))
    if isinstance(e, Binary) and e.op in ("+", "-"):
        a, b = to_affine(e.a, axis_forms), to_affine(e.b, axis_forms)
        return a + b if e.op == "+" else a - b
    if isinstance(e, Binary) and e.op == "*":
        for number, other in ((e.a, e.b), (e.b, e.a)):
            if isinstance(number, Const) and isinstance(number.value, int):
                return to_affine(other, axis_forms).scale(number.value)
    if (
        isinstance(e, Binary)
        and e.op in ("//", "%")
        and isinstance(e.b, Const)
        and isinstance(e.b.value, int)
    ):
        return axis_forms.get(str(e)) or _make_quasi(e, to_affine(e.a, {}), e.b.value).substitute(axis_forms)
    raise NotAffineError(f"{e} is not a sum of integer multiples of axes")


def _make_quasi(e: Binary, inner: AffineForm, divisor: int) -> AffineForm:
    if divisor < 1:
        raise NotAffineError(f"{e} divides by {divisor}, the least divisor is 1")
    if not inner.terms:
        return AffineForm((), inner.const // divisor if e.op == "//" else inner.const % divisor)
    return AffineForm(((QuasiAffine(e.op, inner, divisor, str(e)), 1),))


def evaluate_form(form: AffineForm, values: Mapping[str, Any]) -> Any:
    """The value of a form, a number or an array, given each loop variable."""
    total: Any = form.const
    for atom, coefficient in form.terms:
        total = total + coefficient * evaluate_atom(atom, values)
    return total


def evaluate_atom(atom: Atom, values: Mapping[str, Any]) -> Any:
    """The value of an atom, a number or an array, given each loop variable."""
    if isinstance(atom, str):
        return values[atom]
    inner = evaluate_form(atom.inner, values)
    return inner // atom.divisor if atom.op == "//" else inner % atom.divisor


def split_digits(number: Any, extents: Mapping[Any, int]) -> dict[Any, Any]:
    """The digits of a mixed-radix number, or of an array of these, by name; the fastest is first."""
    digits = {}
    for name, extent in extents.items():
        digits[name] = number % extent
        number = number // extent
    return digits
