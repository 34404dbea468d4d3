"""Simplification of quotients and remainders in indices, once `divide` has cut their axis.

A grouped convolution reads X[o // 16 * 128 + c]. A tile of `o` may contain parts of two groups, and then
needs no box of X. With o = o.0*16 + o.1 the read is X[o.0*128 + c], and a tile of o.1 needs one box. A
transposed convolution of stride 2 reads X[(p + 1) // 2 - r]. With p = p.0*2 + p.1 that is X[p.0 + (p.1 + 1)
// 2 - r], whose quotient has two values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ekc.ir import expr as ex
from ekc.ir.affine import AffineForm, Atom, Extent, QuasiAffine, find_range, to_affine
from ekc.ir.compute import Compute


def compute_quotient_period(compute: Compute, axis: str) -> int:
    """The least common period of all quotients and remainders of an axis alone, in steps; 1 without any."""
    own = (e for e in _iterate_quotients(compute) if ex.find_variables(e) == {axis})
    return math.lcm(*(_find_form_period(to_affine(e, {}))[0] for e in own))


def _find_form_period(form: AffineForm) -> tuple[int, int]:
    """(period, increase) of a one-variable form: x // 4 -> (4, 1), x % 4 -> (4, 0), x // 4 % 3 -> (12, 0)."""
    each = [(_find_atom_period(atom), int(c)) for atom, c in form.terms]
    steps = math.lcm(*(own for (own, _), _ in each))
    return steps, sum(steps // own * further * c for (own, further), c in each)


def _find_atom_period(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, str):
        return 1, 1
    steps, further = _find_form_period(atom.inner)
    often = atom.divisor // math.gcd(further, atom.divisor)
    return steps * often, further * often // atom.divisor if atom.op == "//" else 0


def simplify_quotients(
    compute: Compute,
    cut_axes: frozenset[str],
    axis_forms: Mapping[str, AffineForm],
    extents: Mapping[str, Extent],
) -> dict[str, AffineForm]:
    """The simplified forms of the quotients and remainders of divided axes, by their text.

    (16*o.0 + o.1) // 16 -> o.0, for o.1 < 16. Forms and extents must be numbers, not vectors.
    """
    forms = dict(axis_forms)
    for e in _iterate_quotients(compute):
        if ex.find_variables(e) & cut_axes:
            forms[str(e)] = _simplify_quotient(e, to_affine(e.a, forms), extents)
    return {text: form for text, form in forms.items() if text not in axis_forms}


def _simplify_quotient(e: ex.Binary, inner: AffineForm, extents: Mapping[str, Extent]) -> AffineForm:
    """The form of a quotient or remainder, where multiples of the divisor leave both."""
    by = _read_divisor(e)
    multiple = AffineForm(tuple((a, c // by) for a, c in inner.terms if c % by == 0), inner.const // by)
    rest = AffineForm(tuple((a, c) for a, c in inner.terms if c % by), inner.const % by)
    low, high = find_range(rest, extents)
    inside = low >= 0 and high < by
    if e.op == "%":
        return rest if inside else _make_quasi_form(e, rest)
    return multiple if inside else multiple + _make_quasi_form(e, rest)


def _make_quasi_form(e: ex.Binary, rest: AffineForm) -> AffineForm:
    tag = f"{e} of {' '.join(sorted(rest.find_variables()))}"
    return AffineForm(((QuasiAffine(e.op, rest, _read_divisor(e), tag), 1),))


def _iterate_quotients(compute: Compute) -> Iterator[ex.Binary]:
    """Every quotient and remainder in an index of a read, inner ones first."""
    for load in ex.find_loads(compute.body):
        for index in load.index:
            yield from _iterate_nested_quotients(index)


def _iterate_nested_quotients(e: ex.Expr) -> Iterator[ex.Binary]:
    for child in ex.children(e):
        yield from _iterate_nested_quotients(child)
    if isinstance(e, ex.Binary) and e.op in ("//", "%") and ex.find_variables(e):
        yield e


def _read_divisor(e: ex.Binary) -> int:
    assert isinstance(e.b, ex.Const)
    return int(e.b.value)
