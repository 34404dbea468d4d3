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


def draw_operator(choose: Choose, kinds: Sequence[Callable[[Choose], Operator]] = ()) -> Operator:
    """A random small operator, of any kind or of `kinds`; extents are mostly odd, so that tails are
    common."""
    make: Callable[[Choose], Operator] = choose(kinds or OPERATORS)
    return make(choose)


def _extents(choose: Choose, count: int) -> list[int]:
    return [choose((1, 2, 3, 5, 7, 8, 12, 13)) for _ in range(count)]


def _dtype(choose: Choose) -> str:
    return choose(("float32", "float32", "float16"))


def _matmul(choose: Choose) -> Operator:
    flip = (True, False)
    return o.matmul(
        *_extents(choose, 3), dtype=_dtype(choose), transpose_a=choose(flip), transpose_b=choose(flip)
    )


def _batch_matmul(choose: Choose) -> Operator:
    return o.batch_matmul(choose((1, 2, 3)), *_extents(choose, 3), dtype=_dtype(choose))


def _matvec(choose: Choose) -> Operator:
    return o.matvec(*_extents(choose, 2), dtype=_dtype(choose))


def _einsum(choose: Choose) -> Operator:
    a, b, c, d = _extents(choose, 4)
    text, *shapes = choose(
        [
            ("ab,bc->ac", (a, b), (b, c)),
            ("ab,cb->ca", (a, b), (c, b)),
            ("a,b->ab", (a,), (b,)),
            ("aab,bc->c", (a, a, b), (b, c)),
            ("abc,cd->dba", (a, b, c), (c, d)),
            ("ab,ab->", (a, b), (a, b)),
        ]
    )
    return o.einsum(text, *shapes)


def _einsum_of_one_or_with_batches(choose: Choose) -> Operator:
    a, b, c, d = _extents(choose, 4)
    text, *shapes = choose(
        [
            ("cab,cbd->cad", (c, a, b), (c, b, d)),
            ("aa,ab->ab", (a, a), (a, b)),
            ("ab->ba", (a, b)),
            ("aab->a", (a, a, b)),
        ]
    )
    return o.einsum(text, *shapes)


def _conv2d(choose: Choose) -> Operator:
    groups = choose((1, 1, 2, 4))
    kernel = choose((1, 2, 3))
    return o.conv2d(
        choose((1, 2)),
        4,
        choose((5, 6, 7)),
        choose((5, 8)),
        out_channels=choose((4, 8)),
        kernel=(kernel, choose((1, 3))),
        stride=choose((1, 2)),
        padding=choose((0, 1, 2)),
        dilation=choose((1, 2)),
        groups=groups,
    )


def _conv_of_any_rank(choose: Choose) -> Operator:
    make, image, layouts = choose(
        [
            (o.conv1d, (9,), ("NCW", "NWC")),
            (o.conv2d, (5, 6), ("NHWC",)),
            (o.conv3d, (4, 3, 5), ("NCDHW", "NDHWC")),
        ]
    )
    return make(
        choose((1, 2)),
        4,
        *image,
        out_channels=4,
        kernel=choose((1, 2, 3)),
        stride=choose((1, 2)),
        padding=choose((0, 1)),
        groups=choose((1, 2, 4)),
        layout=choose(layouts),
    )


def _conv_transpose(choose: Choose) -> Operator:
    make, image = choose([(o.conv_transpose1d, (7,)), (o.conv_transpose2d, (3, 4))])
    return make(
        choose((1, 2)),
        4,
        *image,
        out_channels=4,
        kernel=choose((2, 3)),
        stride=choose((1, 2, 2, 3)),
        padding=choose((0, 1)),
        dilation=choose((1, 1, 2)),
        groups=choose((1, 2)),
    )


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
    return o.compute(
        "stencil", axes={"i": m, "j": n}, inputs={"x": (m, n)}, body=choose(bodies), dtype=_dtype(choose)
    )


def _reduction(choose: Choose) -> Operator:
    m, n, k = _extents(choose, 3)
    bodies = [
        lambda x, i, k: x[i, k],
        lambda x, i, k: x[i, k] * x[i, k] + 1,
        lambda x, i, k: x[2 * i - 1, k] - x[i, k + 1],
        lambda x, i, k: ex.exp(x[i, k]),
    ]
    combine = choose(("sum", "max", "min"))
    return o.compute(
        "reduction",
        axes={"i": m},
        reduce={"k": k},
        inputs={"x": (m, n)},
        body=choose(bodies),
        combine=combine,
    )


def _reduce(choose: Choose) -> Operator:
    shape = tuple(_extents(choose, 3))
    axes = choose([0, 1, -1, (0, 2), (1, 2), None])
    combine = choose(("sum", "max", "min", "mean"))
    return o.reduce(shape, axes, combine, keepdims=choose((True, False)), dtype=_dtype(choose))


def _normalisation(choose: Choose) -> Operator:
    shape = choose([tuple(_extents(choose, 2)), (choose((5, 12)),), (2, 3, choose((7, 8)))])
    make = choose((o.softmax, o.softmax, o.layer_norm, o.rms_norm))
    if make is o.softmax:
        return make(shape, choose(range(len(shape))), dtype=_dtype(choose))
    return make(shape, dtype=_dtype(choose))


def _batch_matmul_transposed(choose: Choose) -> Operator:
    flips = {"transpose_a": choose((True, False)), "transpose_b": choose((True, False))}
    return o.batch_matmul(choose((1, 2, 3)), *_extents(choose, 3), dtype=_dtype(choose), **flips)


def _conv_of_any_padding(choose: Choose) -> Operator:
    make = choose((o.conv2d, o.conv_transpose2d))
    return make(
        1,
        3,
        choose((5, 6)),
        choose((4, 7)),
        out_channels=4,
        kernel=(choose((2, 3)), choose((1, 4))),
        stride=choose((1, 2)),
        padding=choose(("same", ((1, 0), (0, 2)), ((0, 1),))),
    )


def _einsum_of_three(choose: Choose) -> Operator:
    a, b, c, d = _extents(choose, 4)
    text, *shapes = choose(
        [
            ("ab,bc,cd", (a, b), (b, c), (c, d)),
            ("...ab,bc,...cd->...ad", (2, a, b), (b, c), (1, c, d)),
            ("ab,a,b->ba", (a, b), (a,), (b,)),
            ("ca,ab,cb->c", (c, a), (a, b), (c, b)),
        ]
    )
    return o.einsum(text, *shapes, dtype=_dtype(choose))


def _normalisation_along_axes(choose: Choose) -> Operator:
    shape, axes = tuple(_extents(choose, 3)), choose([0, 1, (0, 2), (1, 2), None])
    make = choose((o.layer_norm, o.rms_norm))
    return make(shape, axes=axes, dtype=_dtype(choose))


def _product(choose: Choose) -> Operator:
    shape, axes = tuple(_extents(choose, 3)), choose([0, 1, -1, (0, 2), (1, 2), None])
    return o.reduce(shape, axes, "prod", keepdims=choose((True, False)), dtype=_dtype(choose))


def _where(choose: Choose) -> Operator:
    m, n = _extents(choose, 2)
    bodies = [
        lambda x, i, k: ex.where(ex.less(x[i, k], 0), x[i, k] * 0.5, x[i, k]),
        lambda x, i, k: ex.where(ex.equal(i, k), x[i, k], 0),
        lambda x, i, k: ex.where(ex.less(x[i, k], x[i, k - 1]), k, 1),
    ]
    counts = {"acc_dtype": "int32", "out_dtype": "int32"}
    body = choose(bodies)
    return o.compute(
        "choice",
        axes={"i": m},
        reduce={"k": n},
        inputs={"x": (m, n)},
        body=body,
        combine=choose(("sum", "max", "min")),
        dtype=_dtype(choose),
        **(counts if body is bodies[2] else {}),
    )


def _band(choose: Choose) -> Operator:
    n, width = choose((5, 9, 16)), choose((3, 4))
    return o.compute(
        "band",
        axes={"i": n, "j": n},
        reduce={"b": width},
        inputs={"A": (n, width), "B": (n, n)},
        body=lambda A, B, i, j, b: A[i, b] * B[i + b - width // 2, j],
    )


def _chain(choose: Choose) -> Operator:
    m, n, k = _extents(choose, 3)
    first = o.compute(
        "first",
        axes={"p": m, "q": k},
        inputs={"X": (m, k)},
        body=choose([lambda X, p, q: ex.relu(X[p, q]), lambda X, p, q: X[p, q - 1] + p + 1]),
        output="T",
    )
    return first.then(
        "C",
        axes={"i": m, "j": n},
        reduce={"k": k},
        inputs={"B": (k, n)},
        body=choose(
            [lambda T, B, i, j, k: T[i, k] * B[k, j], lambda T, B, i, j, k: T[i - 1, k] * B[k, j] + T[i, k]]
        ),
        combine=choose(("sum", "max")),
    )


def _epilogue(choose: Choose) -> Operator:
    m, n, k = _extents(choose, 3)
    op = o.matmul(m, n, k, dtype=_dtype(choose))
    return op.then(
        "D",
        axes={"p": m, "q": n},
        inputs={"bias": (n,)},
        body=lambda C, bias, p, q: ex.relu(C[p, q] + bias[q]),
    )


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
    _epilogue,
    _with_epilogues,
    _with_epilogues,
)
"""The kinds that distances between analysis and compiler were measured on."""
OPERATORS: tuple[Callable[[Choose], Operator], ...] = (
    *FIRST,
    _einsum_of_one_or_with_batches,
    _conv_of_any_rank,
    _conv_transpose,
    _reduce,
    _normalisation,
    _batch_matmul_transposed,
    _conv_of_any_padding,
    _einsum_of_three,
    _normalisation_along_axes,
    _product,
    _where,
)
