"""Random small operators of every kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc.ir.operator import Operator

Choose = Callable[[Sequence[Any]], Any]
"""Function that picks one element of a sequence."""
FLIP = (True, False)


def draw_operator(choose: Choose, kinds: Sequence[Callable[[Choose], Operator]] = ()) -> Operator:
    """A random small operator, of any kind or of `kinds`; extents are mostly odd, so that tails are
    common."""
    make: Callable[[Choose], Operator] = choose(kinds or OPERATORS)
    return make(choose)


def band(n: int, m: int, width: int) -> Operator:
    """A banded matrix product."""
    body = lambda A, B, i, j, b: A[i, b] * B[i + b - width // 2, j]  # noqa: E731
    axes, inputs = {"i": n, "j": m}, {"A": (n, width), "B": (n, m)}
    return o.compute("band", axes=axes, reduce={"b": width}, inputs=inputs, body=body)


def biased_matmul(m: int, n: int, k: int, dtype: str = "float32") -> Operator:
    """A product, then relu of it and a bias, in a compute of its own."""
    body = lambda C, bias, p, q: ex.relu(C[p, q] + bias[q])  # noqa: E731
    return o.matmul(m, n, k, dtype=dtype).then("D", axes={"p": m, "q": n}, inputs={"bias": (n,)}, body=body)


def _extents(choose: Choose, count: int) -> list[int]:
    return [choose((1, 2, 3, 5, 7, 8, 12, 13)) for _ in range(count)]


def _dtype(choose: Choose) -> str:
    return choose(("float32", "float32", "float16"))


def _matmul(choose: Choose) -> Operator:
    extents, dtype = _extents(choose, 3), _dtype(choose)
    return o.matmul(*extents, dtype=dtype, transpose_a=choose(FLIP), transpose_b=choose(FLIP))


def _batch_matmul(choose: Choose) -> Operator:
    return o.batch_matmul(choose((1, 2, 3)), *_extents(choose, 3), dtype=_dtype(choose))


def _batch_matmul_transposed(choose: Choose) -> Operator:
    flips = {"transpose_a": choose(FLIP), "transpose_b": choose(FLIP)}
    return o.batch_matmul(choose((1, 2, 3)), *_extents(choose, 3), dtype=_dtype(choose), **flips)


def _matvec(choose: Choose) -> Operator:
    return o.matvec(*_extents(choose, 2), dtype=_dtype(choose))


def _einsum_of(*texts: str, typed: bool = False) -> Callable[[Choose], Operator]:
    """Draws one of some einsums over the axes a, b, c and d; "..." is one more axis, 2 long or 1."""

    def draw(choose: Choose) -> Operator:
        extents = dict(zip("abcd", _extents(choose, 4), strict=True))
        text = choose(texts)
        operands = text.split("->")[0].split(",")
        dots = iter((2, 1))
        shapes = [
            tuple(next(dots) if x == "." else extents[x] for x in operand.replace("...", "."))
            for operand in operands
        ]
        return o.einsum(text, *shapes, **({"dtype": _dtype(choose)} if typed else {}))

    return draw


_einsum = _einsum_of("ab,bc->ac", "ab,cb->ca", "a,b->ab", "aab,bc->c", "abc,cd->dba", "ab,ab->")
_einsum_of_one_or_with_batches = _einsum_of("cab,cbd->cad", "aa,ab->ab", "ab->ba", "aab->a")
_einsum_of_three = _einsum_of("ab,bc,cd", "...ab,bc,...cd->...ad", "ab,a,b->ba", "ca,ab,cb->c", typed=True)


def _conv2d(choose: Choose) -> Operator:
    groups = choose((1, 1, 2, 4))
    kernel = choose((1, 2, 3))
    return o.conv2d(
        choose((1, 2)), 4, choose((5, 6, 7)), choose((5, 8)), out_channels=choose((4, 8)),
        kernel=(kernel, choose((1, 3))), stride=choose((1, 2)), padding=choose((0, 1, 2)),
        dilation=choose((1, 2)), groups=groups,
    )  # fmt: skip


def draw_conv_of_any_rank(choose: Choose) -> Operator:
    """A convolution of one, two or three image dimensions, in any layout."""
    make, image, layouts = choose(
        [
            (o.conv1d, (9,), ("NCW", "NWC")),
            (o.conv2d, (5, 6), ("NHWC",)),
            (o.conv3d, (4, 3, 5), ("NCDHW", "NDHWC")),
        ]
    )
    return make(
        choose((1, 2)), 4, *image, out_channels=4, kernel=choose((1, 2, 3)), stride=choose((1, 2)),
        padding=choose((0, 1)), groups=choose((1, 2, 4)), layout=choose(layouts),
    )  # fmt: skip


def draw_conv_transpose(choose: Choose) -> Operator:
    """A transposed convolution of one or two image dimensions."""
    make, image = choose([(o.conv_transpose1d, (7,)), (o.conv_transpose2d, (3, 4))])
    return make(
        choose((1, 2)), 4, *image, out_channels=4, kernel=choose((2, 3)), stride=choose((1, 2, 2, 3)),
        padding=choose((0, 1)), dilation=choose((1, 1, 2)), groups=choose((1, 2)),
    )  # fmt: skip


def _conv_of_any_padding(choose: Choose) -> Operator:
    make = choose((o.conv2d, o.conv_transpose2d))
    return make(
        1, 3, choose((5, 6)), choose((4, 7)), out_channels=4, kernel=(choose((2, 3)), choose((1, 4))),
        stride=choose((1, 2)), padding=choose(("same", ((1, 0), (0, 2)), ((0, 1),))),
    )  # fmt: skip


def _stencil(choose: Choose) -> Operator:
    m, n = _extents(choose, 2)
    bodies = [
        lambda x, i, j: x[i, j - 1] + x[i, j] + x[i, j + 1],
        lambda x, i, j: ex.maximum(x[i - 1, j], x[i + 1, j + 2]) * 0.5,
        lambda x, i, j: ex.tanh(x[i, j]) + j,
        lambda x, i, j: x[i // 2, j % 3] - x[i, j],
        lambda x, i, j: x[m - 1 - i, 2 * j],
        lambda x, i, j: x[(i - 1) // 2, (i + j) % 4],
    ]
    body, dtype = choose(bodies), _dtype(choose)
    return o.compute("stencil", axes={"i": m, "j": n}, inputs={"x": (m, n)}, body=body, dtype=dtype)


def _reduction(choose: Choose) -> Operator:
    m, n, k = _extents(choose, 3)
    bodies = [
        lambda x, i, k: x[i, k],
        lambda x, i, k: x[i, k] * x[i, k] + 1,
        lambda x, i, k: x[2 * i - 1, k] - x[i, k + 1],
        lambda x, i, k: ex.exp(x[i, k]),
    ]
    combine, body = choose(("sum", "max", "min")), choose(bodies)
    return o.compute(
        "reduction", axes={"i": m}, reduce={"k": k}, inputs={"x": (m, n)}, body=body, combine=combine
    )


def _reduce(choose: Choose) -> Operator:
    shape, axes = tuple(_extents(choose, 3)), choose([0, 1, -1, (0, 2), (1, 2), None])
    combine = choose(("sum", "max", "min", "mean"))
    return o.reduce(shape, axes, combine, keepdims=choose(FLIP), dtype=_dtype(choose))


def _product(choose: Choose) -> Operator:
    shape, axes = tuple(_extents(choose, 3)), choose([0, 1, -1, (0, 2), (1, 2), None])
    return o.reduce(shape, axes, "prod", keepdims=choose(FLIP), dtype=_dtype(choose))


def _normalisation(choose: Choose) -> Operator:
    shape = choose([tuple(_extents(choose, 2)), (choose((5, 12)),), (2, 3, choose((7, 8)))])
    make = choose((o.softmax, o.softmax, o.layer_norm, o.rms_norm))
    if make is o.softmax:
        return make(shape, choose(range(len(shape))), dtype=_dtype(choose))
    return make(shape, dtype=_dtype(choose))


def _normalisation_along_axes(choose: Choose) -> Operator:
    shape, axes = tuple(_extents(choose, 3)), choose([0, 1, (0, 2), (1, 2), None])
    make = choose((o.layer_norm, o.rms_norm))
    return make(shape, axes=axes, dtype=_dtype(choose))


def _where(choose: Choose) -> Operator:
    m, n = _extents(choose, 2)
    bodies = [
        lambda x, i, k: ex.where(ex.less(x[i, k], 0), x[i, k] * 0.5, x[i, k]),
        lambda x, i, k: ex.where(ex.equal(i, k), x[i, k], 0),
        lambda x, i, k: ex.where(ex.less(x[i, k], x[i, k - 1]), k, 1),
    ]
    body = choose(bodies)
    kind = {"combine": choose(("sum", "max", "min")), "dtype": _dtype(choose)}
    if body is bodies[2]:
        kind |= {"acc_dtype": "int32", "out_dtype": "int32"}
    return o.compute("choice", axes={"i": m}, reduce={"k": n}, inputs={"x": (m, n)}, body=body, **kind)


def _band(choose: Choose) -> Operator:
    n, width = choose((5, 9, 16)), choose((3, 4))
    return band(n, n, width)


def _chain(choose: Choose) -> Operator:
    m, n, k = _extents(choose, 3)
    body = choose([lambda X, p, q: ex.relu(X[p, q]), lambda X, p, q: X[p, q - 1] + p + 1])
    first = o.compute("first", axes={"p": m, "q": k}, inputs={"X": (m, k)}, body=body, output="T")
    body = choose(
        [lambda T, B, i, j, k: T[i, k] * B[k, j], lambda T, B, i, j, k: T[i - 1, k] * B[k, j] + T[i, k]]
    )
    axes, combine = {"i": m, "j": n}, choose(("sum", "max"))
    return first.then("C", axes=axes, reduce={"k": k}, inputs={"B": (k, n)}, body=body, combine=combine)


def _biased_matmul(choose: Choose) -> Operator:
    return biased_matmul(*_extents(choose, 3), _dtype(choose))


def _with_epilogues(choose: Choose) -> Operator:
    """Any of the other operators with one or two epilogues."""
    op: Operator = choose((_matmul, _matvec, _conv2d, _stencil, _reduction, _band, _chain))(choose)
    for number in range(choose((1, 1, 2))):
        shape = op.outputs[0].shape
        shapes = {
            f"{name}{number}": choose(
                (
                    shape,
                    shape[-1:],
                    (*(1 for _ in shape[:-1]), shape[-1]),
                    (shape[0],) + (1,) * (len(shape) - 1),
                )
            )
            for name in ("u", "v")
        }
        op = op.epilogue(
            _of_two(choose(BODIES), f"u{number}", f"v{number}"),
            out_dtype=choose((None, "float32", "float16")),
            **shapes,
        )
    return op


def _of_two(body: Callable[..., ex.Expr], u: str, v: str) -> Callable[..., ex.Expr]:
    """The body with `u` and `v` as the names of its second and third parameter."""

    def called(c: ex.Expr, **inputs: ex.Expr) -> ex.Expr:
        return body(c, inputs[u], inputs[v])

    names = [inspect.Parameter("c", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    names += [inspect.Parameter(x, inspect.Parameter.KEYWORD_ONLY) for x in (u, v)]
    called.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
    return called


BODIES: tuple[Callable[..., ex.Expr], ...] = (
    lambda c, u, v: ex.relu(c * u + v),
    lambda c, u, v: ex.gelu(c + u) + v,
    lambda c, u, v: ex.silu(u) * ex.tanh(c) + v * 0.5,
    lambda c, u, v: ex.gelu(u, "tanh") - ex.sigmoid(c + v),
    lambda c, u, v: ex.minimum(ex.maximum(c, u - 1), v + 1),
)
"""Epilogues (bias, activation, gate, residual, clip) that do not make an error of their argument much
larger."""


FIRST: tuple[Callable[[Choose], Operator], ...] = (
    _matmul,
    _batch_matmul,
    _matvec,
    _einsum,
    _conv2d,
    _stencil,
    _reduction,
    _band,
    _chain,
    _biased_matmul,
    _with_epilogues,
    _with_epilogues,
)
"""The kinds that distances between analysis and compiler were measured on."""
OPERATORS: tuple[Callable[[Choose], Operator], ...] = (
    *FIRST,
    _einsum_of_one_or_with_batches,
    draw_conv_of_any_rank,
    draw_conv_transpose,
    _reduce,
    _normalisation,
    _batch_matmul_transposed,
    _conv_of_any_padding,
    _einsum_of_three,
    _normalisation_along_axes,
    _product,
    _where,
)
