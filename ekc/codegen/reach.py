"""How far index arithmetic goes: C works a sum out term by term, and an int must hold each partial sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekc.ir.linear import Extent, Linear, Quasi, atom_range

_INT_MAX = 2**31 - 1


def leaves_int(form: Linear, extents: Mapping[str, Extent]) -> bool:
    """Whether an int cannot hold the form, a term of it or a partial sum."""
    return _outside(_reach(form, extents))


def offset_leaves_int(index: Sequence[Linear], strides: Sequence[int], extents: Mapping[str, Extent]) -> bool:
    """The same of `(form) * stride + (form) * stride`: an index may stray far from a small tensor."""
    low = high = 0
    for form, stride in zip(index, strides, strict=True):
        least, most = (end * stride for end in _reach(form, extents))
        low, high = low + least, high + most
    return _outside((low, high))


def divides_far(form: Linear, extents: Mapping[str, Extent]) -> bool:
    """Whether a quotient or remainder in the form is taken of more than an int holds."""
    inside = [atom.inner for atom, _ in form.terms if isinstance(atom, Quasi)]
    return any(leaves_int(x, extents) or divides_far(x, extents) for x in inside)


def _reach(form: Linear, extents: Mapping[str, Extent]) -> tuple[int, int]:
    """The least and the greatest of 0, the terms and the partial sums."""
    low = high = least = most = 0
    for atom, coefficient in form.terms:
        ends = [int(coefficient) * int(end) for end in atom_range(atom, extents)]
        low, high = low + min(ends), high + max(ends)
        least, most = min(least, low, *ends), max(most, high, *ends)
    return min(least, low + int(form.const)), max(most, high + int(form.const))


def _outside(ends: tuple[int, int]) -> bool:
    return ends[0] < -_INT_MAX - 1 or ends[1] > _INT_MAX
