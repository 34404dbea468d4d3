"""How far index arithmetic goes: C works a sum out term by term, and an int must hold each partial sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekc.ir.affine import AffineForm, Extent, QuasiAffine, find_atom_range

_INT_MAX = 2**31 - 1


def overflows_int(form: AffineForm, extents: Mapping[str, Extent]) -> bool:
    """Whether an int cannot hold the form, a term of it or a partial sum."""
    return _is_outside_int(_compute_range(form, extents))


def offset_overflows_int(
    index: Sequence[AffineForm], strides: Sequence[int], extents: Mapping[str, Extent]
) -> bool:
    """The same of `(form) * stride + (form) * stride`: an index may stray far from a small tensor."""
    low = high = 0
    for form, stride in zip(index, strides, strict=True):
        least, most = (end * stride for end in _compute_range(form, extents))
        low, high = low + least, high + most
    return _is_outside_int((low, high))


def has_wide_division(form: AffineForm, extents: Mapping[str, Extent]) -> bool:
    """Whether a quotient or remainder in the form is taken of more than an int holds."""
    inside = [atom.inner for atom, _ in form.terms if isinstance(atom, QuasiAffine)]
    return any(overflows_int(x, extents) or has_wide_division(x, extents) for x in inside)


def _compute_range(form: AffineForm, extents: Mapping[str, Extent]) -> tuple[int, int]:
    """The least and the greatest of 0, the terms and the partial sums."""
    low = high = least = most = 0
    for atom, coefficient in form.terms:
        ends = [int(coefficient) * int(end) for end in find_atom_range(atom, extents)]
        low, high = low + min(ends), high + max(ends)
        least, most = min(least, low, *ends), max(most, high, *ends)
    return min(least, low + int(form.const)), max(most, high + int(form.const))


def _is_outside_int(ends: tuple[int, int]) -> bool:
    return ends[0] < -_INT_MAX - 1 or ends[1] > _INT_MAX
