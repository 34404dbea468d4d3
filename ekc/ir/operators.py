"""The operators that ekc brings along, each written as an expression, and `compute` for your own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.checks import identifier, whole
from ekc.ir.dtypes import DType, accumulator_and_result, dtype_of
from ekc.ir.operator import MAX_ELEMENTS, Axis, Compute, Operator, TensorSpec

_LETTERS = re.compile(r"([A-Za-z]+),([A-Za-z]+)->([A-Za-z]*)\Z")


@dataclass(frozen=True)
class Tensor:
    """A tensor inside the body of a compute: index it to read an element."""

    name: str

    def __getitem__(self, index: ex.Operand | tuple[ex.Operand, ...]) -> ex.Load:
        index = index if isinstance(index, tuple) else (index,)
        return ex.Load(self.name, tuple(ex.as_expr(i) for i in index))


def compute(
    name: str,
    *,
    axes: Mapping[str, int],
    inputs: Mapping[str, tuple[int, ...]],
    body: Callable[..., ex.Expr],
    reduce: Mapping[str, int] | None = None,
    combine: str = "sum",
    output: str = "C",
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """An operator of your own: output[axes] = combine over `reduce` of body.

    `body` is called with the tensors and axes it names as parameters. Reading outside a tensor
    gives 0. A banded matrix product, with 33 diagonals:

    >>> ekc.compute("band", axes={"i": 512, "j": 512}, reduce={"b": 33},
    ...             inputs={"A": (512, 33), "B": (512, 512)},
    ...             body=lambda A, B, i, j, b: A[i, b] * B[i + b - 16, j])

    Raises `InvalidInput` for extents outside 1 to 2**40, names that are no identifiers, indices
    that are not sums of integer multiples of axes.
    """
    element = dtype_of(dtype)
    stage = make_compute(
        output, body, axes, reduce or {}, list(inputs), combine, element, acc_dtype, out_dtype
    )
    specs = tuple(TensorSpec(n, _shape(n, s), element) for n, s in inputs.items())
    return Operator(identifier("operator", name), specs, (stage,))


def make_compute(
    output: str,
    body: Callable[..., ex.Expr],
    axes: Mapping[str, int],
    reduce: Mapping[str, int],
    tensors: list[str],
    combine: str,
    dtype: DType,
    acc_dtype: str | None,
    out_dtype: str | None,
) -> Compute:
    """One compute, its body called with tensors and axes by parameter name."""
    if not axes:
        raise InvalidInput(f"{output}: needs at least one spatial axis; use an axis of extent 1")
    for axis, extent in (*axes.items(), *reduce.items()):
        whole(f"extent of axis {identifier('axis', axis)}", extent, MAX_ELEMENTS)
        if axis in tensors or axis == output:
            raise InvalidInput(f"axis: {axis!r} is the name of a tensor too; try {axis.lower() + '_'!r}")
    all_axes = tuple(Axis(a, int(e)) for a, e in axes.items()) + tuple(
        Axis(a, int(e), True) for a, e in reduce.items()
    )
    known: dict[str, Any] = {t: Tensor(t) for t in tensors} | {a.name: ex.Var(a.name) for a in all_axes}
    wanted = list(inspect.signature(body).parameters)
    for parameter in wanted:
        if parameter not in known:
            raise InvalidInput(
                f"body: parameter {parameter!r} is neither a tensor nor an axis ({', '.join(known)})"
            )
    acc, out = accumulator_and_result(dtype, acc_dtype, out_dtype)
    spec = TensorSpec(output, tuple(int(e) for e in axes.values()), out)
    value = body(**{p: known[p] for p in wanted})
    if not isinstance(value, (ex.Expr, int, float)):
        raise InvalidInput(f"body: returned {value!r}, needed an expression of {', '.join(known)}")
    return Compute(spec, all_axes, ex.as_expr(value), combine, acc)


def append_compute(
    op: Operator,
    output: str,
    body: Callable[..., ex.Expr],
    axes: Mapping[str, int],
    reduce: Mapping[str, int],
    inputs: Mapping[str, tuple[int, ...]],
    combine: str,
    dtype: str | None,
    acc_dtype: str | None,
    out_dtype: str | None,
) -> Operator:
    """`op` and one more compute; see `Operator.then`."""
    element = dtype_of(dtype or op.inputs[0].dtype.result)
    extra = tuple(TensorSpec(n, _shape(n, s), element) for n, s in inputs.items())
    names = [*op.tensors, *(t.name for t in extra)]
    last = make_compute(output, body, axes, reduce, names, combine, element, acc_dtype, out_dtype)
    return Operator(f"{op.name}_{output}", (*op.inputs, *extra), (*op.computes, last))


def matmul(
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "float32",
    transpose_a: bool = False,
    transpose_b: bool = False,
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """C[m, n] = A[m, k] @ B[k, n]; A is stored [k, m] with `transpose_a`, B [n, k] with `transpose_b`."""
    return compute(
        "matmul",
        axes={"i": m, "j": n},
        reduce={"k": k},
        inputs={"A": (k, m) if transpose_a else (m, k), "B": (n, k) if transpose_b else (k, n)},
        body=lambda A, B, i, j, k: (
            (A[k, i] if transpose_a else A[i, k]) * (B[j, k] if transpose_b else B[k, j])
        ),
        dtype=dtype,
        acc_dtype=acc_dtype,
        out_dtype=out_dtype,
    )


def batch_matmul(
    b: int,
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """C[b, m, n] = A[b, m, k] @ B[b, k, n] for each b."""
    return compute(
        "batch_matmul",
        axes={"b": b, "i": m, "j": n},
        reduce={"k": k},
        inputs={"A": (b, m, k), "B": (b, k, n)},
        body=lambda A, B, b, i, j, k: A[b, i, k] * B[b, k, j],
        dtype=dtype,
        acc_dtype=acc_dtype,
        out_dtype=out_dtype,
    )


def matvec(
    m: int,
    k: int,
    *,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """y[m] = A[m, k] @ x[k]."""
    return compute(
        "matvec",
        axes={"i": m},
        reduce={"k": k},
        inputs={"A": (m, k), "x": (k,)},
        body=lambda A, x, i, k: A[i, k] * x[k],
        output="y",
        dtype=dtype,
        acc_dtype=acc_dtype,
        out_dtype=out_dtype,
    )


def conv2d(
    n: int,
    c: int,
    h: int,
    w: int,
    *,
    out_channels: int,
    kernel: int | tuple[int, int] = 3,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """Y[n, o, p, q] = sum over c, r, s of X[n, c, p*stride + r*dilation - padding, ...] * W[o, c, r, s].

    Input NCHW, weights OIHW (I is c / groups), output NCHW, the only layout so far. `groups=c` is a
    depthwise convolution. Padding is 0 unless given.
    """
    if layout != "NCHW":
        raise InvalidInput(f"layout: {layout!r} is not supported; the nearest is 'NCHW'")
    (r, s), (sy, sx) = _pair("kernel", kernel), _pair("stride", stride)
    (dy, dx), (py, px) = _pair("dilation", dilation), _pair("padding", padding, least=0)
    for name, value in (
        ("n", n),
        ("c", c),
        ("h", h),
        ("w", w),
        ("out_channels", out_channels),
        ("groups", groups),
    ):
        whole(name, value, MAX_ELEMENTS)
    _groups_divide(groups, c, out_channels)
    p, q = _output_extent("h", h, r, sy, py, dy), _output_extent("w", w, s, sx, px, dx)
    per, share = out_channels // groups, c // groups

    def body(X: Tensor, W: Tensor, n: ex.Expr, o: ex.Expr, p: ex.Expr, q: ex.Expr, **red: ex.Expr) -> ex.Expr:
        c, r, s = red.get("c", ex.Const(0)), red["r"], red["s"]
        group = o if per == 1 else o // per
        channel = c if groups == 1 else group * share + c
        return X[n, channel, p * sy + r * dy - py, q * sx + s * dx - px] * W[o, c, r, s]

    body.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(x, inspect.Parameter.KEYWORD_ONLY)
            for x in ("X", "W", "n", "o", "p", "q", "c", "r", "s")
        ]
    )
    return compute(
        "conv2d",
        axes={"n": n, "o": out_channels, "p": p, "q": q},
        reduce={"c": share, "r": r, "s": s},
        inputs={"X": (n, c, h, w), "W": (out_channels, share, r, s)},
        body=body,
        output="Y",
        dtype=dtype,
        acc_dtype=acc_dtype,
        out_dtype=out_dtype,
    )


def einsum(
    subscripts: str,
    *shapes: tuple[int, ...],
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """A contraction of two operands: `einsum("mk,kn->mn", (m, k), (k, n))`; inputs are A and B, output C."""
    match = _LETTERS.match(subscripts.replace(" ", ""))
    if not match or len(shapes) != 2:
        raise InvalidInput(f"einsum: {subscripts!r} is not of the form 'ab,bc->ac' with two shapes")
    a, b, out = match.groups()
    for letter in sorted({*a, *b} & {"A", "B", "C"}):
        raise InvalidInput(f"einsum: {letter!r} is the name of a tensor; try {letter.lower()!r}")
    extents: dict[str, int] = {}
    for letters, shape in ((a, shapes[0]), (b, shapes[1])):
        if len(letters) != len(shape):
            raise InvalidInput(
                f"einsum: {letters!r} names {len(letters)} dimensions, the shape {shape} has {len(shape)}"
            )
        for letter, extent in zip(letters, shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                raise InvalidInput(
                    f"einsum: {letter!r} is {extents[letter]} in one operand and {extent} in the other"
                )
    if len(set(out)) != len(out) or not set(out) <= set(extents):
        raise InvalidInput(f"einsum: the output {out!r} must name letters of the operands, each once")
    reduce = {letter: e for letter, e in extents.items() if letter not in out}
    axes = {letter: extents[letter] for letter in out} or {"one": 1}
    operands = {"A": a, "B": b}

    def body(**names: Any) -> ex.Expr:
        first, second = (names[t][tuple(names[x] for x in letters)] for t, letters in operands.items())
        return first * second  # type: ignore[no-any-return]

    parameters = ["A", "B", *dict.fromkeys(a + b)]
    body.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(x, inspect.Parameter.KEYWORD_ONLY) for x in parameters]
    )
    inputs = {"A": tuple(shapes[0]), "B": tuple(shapes[1])}
    return compute(
        "einsum",
        axes=axes,
        reduce=reduce,
        inputs=inputs,
        body=body,
        dtype=dtype,
        acc_dtype=acc_dtype,
        out_dtype=out_dtype,
    )


def _shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if not isinstance(shape, (tuple, list)):
        raise InvalidInput(f"shape of {name}: {shape!r} is not a tuple of extents; try ({shape!r},)")
    return tuple(whole(f"extent of {name}", e, MAX_ELEMENTS) for e in shape)


def _pair(name: str, value: int | tuple[int, int], least: int = 1) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2:
        raise InvalidInput(f"{name}: {value!r} is neither one whole number nor a pair")
    return whole(name, pair[0], MAX_ELEMENTS, least), whole(name, pair[1], MAX_ELEMENTS, least)


def _groups_divide(groups: int, c: int, out_channels: int) -> None:
    for what, channels in (("c", c), ("out_channels", out_channels)):
        if channels % groups:
            near = next(
                g for g in range(min(groups, channels), 0, -1) if c % g == 0 and out_channels % g == 0
            )
            raise InvalidInput(
                f"groups: {groups} does not divide {what}={channels}; the nearest that does is {near}"
            )


def _output_extent(what: str, size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    reach = (kernel - 1) * dilation + 1
    if reach > size + 2 * padding:
        near = (reach - size + 1) // 2
        raise InvalidInput(
            f"kernel: spans {reach} elements, the padded {what} has {size + 2 * padding}; "
            f"the nearest legal padding is {near}"
        )
    return (size + 2 * padding - reach) // stride + 1
