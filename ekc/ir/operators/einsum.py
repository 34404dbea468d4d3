"""Einstein sums of one operand or two."""

from __future__ import annotations

import re
from math import prod

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.arguments import check_text
from ekc.ir.operator import Operator
from ekc.ir.operators.building import Tensor, compute, shape_of

_FORM = re.compile(r"([A-Za-z]+(?:,[A-Za-z]+)?)->([A-Za-z]*)\Z")
_NAMES = ("A", "B")


def einsum(
    subscripts: str,
    *shapes: tuple[int, ...],
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """Any contraction of two operands, or any sum over one: `einsum("mk,kn->mn", (m, k), (k, n))`.

    The inputs are A and B, the output C. A letter that the output lacks is summed over, wherever it
    stands; one that an operand repeats walks its diagonal ("ii->i"); with none in common ("a,b->ab")
    it is an outer product. A full sum ("ij,ij->") has the shape (1,).
    Raises `InvalidInput` for another form, an extent that differs between two places of a letter, and
    output letters that are unknown or repeated.
    """
    check_text("einsum", subscripts, "'mk,kn->mn'")
    match = _FORM.match(subscripts.replace(" ", ""))
    if not match:
        raise InvalidInput(f"einsum: {subscripts!r} is not of the form 'ab,bc->ac' or 'ab->a'")
    operands, out = match[1].split(","), match[2]
    if len(operands) != len(shapes):
        raise InvalidInput(f"einsum: {subscripts!r} has {len(operands)} operands, {len(shapes)} shapes given")
    names = _NAMES[: len(operands)]
    for letter in sorted({*match[1]} & {*names, "C"}):
        raise InvalidInput(f"einsum: {letter!r} is the name of a tensor; try {letter.lower()!r}")
    inputs = {name: shape_of(name, shape) for name, shape in zip(names, shapes, strict=True)}
    extents = _extents(operands, tuple(inputs.values()))
    if len(set(out)) != len(out) or not set(out) <= set(extents):
        raise InvalidInput(f"einsum: the output {out!r} must name letters of the operands, each once")
    reads = [
        Tensor(name)[tuple(ex.Var(x) for x in letters)] for name, letters in zip(names, operands, strict=True)
    ]
    return compute(
        "einsum",
        axes={letter: extents[letter] for letter in out} or {"one": 1},
        reduce={letter: e for letter, e in extents.items() if letter not in out},
        inputs=inputs,
        body=lambda: prod(reads[1:], start=reads[0]),
        dtype=dtype,
        acc_dtype=acc_dtype,
        out_dtype=out_dtype,
    )


def _extents(operands: list[str], shapes: tuple[tuple[int, ...], ...]) -> dict[str, int]:
    """The extent of each letter, in order of appearance."""
    extents: dict[str, int] = {}
    for letters, shape in zip(operands, shapes, strict=True):
        if len(letters) != len(shape):
            raise InvalidInput(
                f"einsum: {letters!r} names {len(letters)} dimensions, the shape {shape} has {len(shape)}"
            )
        for letter, extent in zip(letters, shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                raise InvalidInput(
                    f"einsum: {letter!r} is {extents[letter]} in one place and {extent} in another"
                )
    return extents
