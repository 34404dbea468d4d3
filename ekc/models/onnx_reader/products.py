"""Convolutions, matrix products and einsum of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ekc.models.node_writer import NotExpressible, Padding
from ekc.models.onnx_reader.operation import Operation


def derive_padding(
    op: Operation, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Padding:
    """(before, after) of each spatial dimension, from `pads` or `auto_pad`."""
    spatial, auto = len(kernel), op.get("auto_pad", "NOTSET")
    pads = [int(p) for p in op.get("pads", [0] * 2 * spatial)]
    if auto == "NOTSET":
        return tuple(zip(pads[:spatial], pads[spatial:], strict=True))
    if auto == "VALID":
        return ((0, 0),) * spatial
    padding = []
    for size, k, s, d in zip(op.shape()[2:], kernel, stride, dilation, strict=True):
        total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
        less, more = total // 2, total - total // 2
        padding.append((less, more) if auto == "SAME_UPPER" else (more, less))
    return tuple(padding)


def get_sizes(op: Operation, name: str, spatial: int) -> tuple[int, ...]:
    """An attribute of one number for each spatial dimension; 1 where it is left out."""
    return tuple(int(v) for v in op.get(name, [1] * spatial))


def read_conv(op: Operation) -> None:
    """Conv."""
    kernel = op.shape(1)[2:]
    stride, dilation = (get_sizes(op, name, len(kernel)) for name in ("strides", "dilations"))
    op.finish(
        "conv",
        [op.input(index) for index in range(3) if op.has(index)],
        stride=stride,
        padding=derive_padding(op, kernel, stride, dilation),
        dilation=dilation,
        groups=int(op.get("group", 1)),
    )


def read_conv_transpose(op: Operation) -> None:
    """ConvTranspose; `output_shape` and `auto_pad` become padding."""
    kernel = op.shape(1)[2:]
    spatial = len(kernel)
    stride, dilation = (get_sizes(op, name, spatial) for name in ("strides", "dilations"))
    extra = [int(v) for v in op.get("output_padding", [0] * spatial)]
    auto = op.get("auto_pad", "NOTSET")
    if op.get("output_shape") is None and auto in ("NOTSET", "VALID"):
        padding = derive_padding(op, kernel, stride, dilation)
    else:
        padding = ()
        for axis, out in enumerate(op.output_shape()[2:]):
            full = stride[axis] * (op.shape()[2 + axis] - 1) + extra[axis]
            total = full + (kernel[axis] - 1) * dilation[axis] + 1 - out
            if total < 0:
                extra[axis] -= total
                total = 0
            less, more = total // 2, total - total // 2
            padding += ((less, more) if auto == "SAME_UPPER" else (more, less),)
    op.finish(
        "conv_transpose",
        [op.input(index) for index in range(3) if op.has(index)],
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=int(op.get("group", 1)),
        output_padding=tuple(extra),
    )


def read_matmul(op: Operation) -> None:
    """MatMul."""
    op.alias(op.multiply(op.input(0), op.input(1)))


def multiply_turned(op: Operation) -> str:
    """alpha * A * B, the last two dimensions of A and B transposed where the node says so."""
    values = []
    for index, letter in enumerate("AB"):
        order = list(range(op.rank(index)))
        if op.get(f"trans{letter}", 0):
            order[-2:] = order[:-3:-1]
        values.append(op.permute(op.input(index), order))
    value, alpha = op.multiply(*values), op.get("alpha", 1.0)
    return value if alpha == 1 else op.call("mul", value, op.add_scalar(alpha, op.dtype()))


def read_gemm(op: Operation) -> None:
    """Gemm: alpha * A * B + beta * C, A and B transposed where it says so."""
    value, beta = multiply_turned(op), op.get("beta", 1.0)
    c = op.input(2) if op.has(2) else None
    if c is None or beta == 0:
        op.alias(value)
        return
    if beta != 1:
        c = op.call("mul", c, op.add_scalar(beta, op.dtype()))
    op.finish("elementwise", [value, c], function="add")


def read_einsum(op: Operation) -> None:
    """Einsum of one or two operands: sums, permutes and a matrix product."""
    terms, result = parse_equation(op)
    if len(terms) > 2:
        raise NotExpressible(f"einsum of {len(terms)} operands")
    sizes: dict[str, int] = {}
    for index, term in enumerate(terms):
        if len(set(term)) < len(term):
            raise NotExpressible("einsum over a diagonal")
        for letter, size in zip(term, op.shape(index), strict=True):
            if sizes.setdefault(letter, size) != size:
                raise NotExpressible("einsum that broadcasts a dimension of size 1")
    values = []
    for index, term in enumerate(terms):
        others = set(result).union(*(t for i, t in enumerate(terms) if i != index))
        values.append(_sum_letters(op, op.input(index), term, others))
    if len(values) == 1:
        ((value, term),) = values
        op.finish_as(op.permute(value, [term.index(letter) for letter in result]))
        return
    (a, left), (b, right) = values
    groups = {
        "batch": [x for x in result if x in left and x in right],
        "rows": [x for x in left if x not in right],
        "columns": [x for x in right if x not in left],
        "inner": [x for x in left if x in right and x not in result],
    }
    product = _contract(op, (a, left), (b, right), groups, sizes)
    order = groups["batch"] + groups["rows"] + groups["columns"]
    product = op.reshape(product, [sizes[letter] for letter in order])
    op.finish_as(op.permute(product, [order.index(letter) for letter in result]))


def _contract(
    op: Operation,
    left: tuple[str, str],
    right: tuple[str, str],
    groups: dict[str, list[str]],
    sizes: dict[str, int],
) -> str:
    """The matrix product of two operands, its dimensions grouped as batch, rows and columns."""

    def arrange(operand: tuple[str, str], order: tuple[str, str]) -> str:
        value, term = operand
        letters = groups["batch"] + groups[order[0]] + groups[order[1]]
        shape = [sizes[x] for x in groups["batch"]]
        shape += [prod(sizes[x] for x in groups[name]) for name in order]
        return op.reshape(op.permute(value, [term.index(x) for x in letters]), shape)

    return op.multiply(arrange(left, ("rows", "inner")), arrange(right, ("inner", "columns")))


def _sum_letters(op: Operation, value: str, term: str, kept: set[str]) -> tuple[str, str]:
    """Sum over the letters that no other operand and not the result has."""
    axes = tuple(axis for axis, letter in enumerate(term) if letter not in kept)
    if not axes:
        return value, term
    return op.reduce("sum", value, axes, False), "".join(letter for letter in term if letter in kept)


def parse_equation(op: Operation) -> tuple[list[str], str]:
    """The letters of each operand and of the result; an ellipsis becomes capital letters of its own."""
    equation = op.get("equation", "").replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    used = set(equation)
    free = [chr(code) for code in range(ord("A"), ord("Z") + 1) if chr(code) not in used]
    ranks = [op.rank(index) - len(term.replace("...", "")) for index, term in enumerate(terms)]
    widest = max([rank for rank, term in zip(ranks, terms, strict=True) if "..." in term], default=0)
    names = "".join(free[:widest])
    if not arrow:
        letters = sorted(x for x in used - set(",.->") if left.count(x) == 1)
        result = ("..." if "..." in left else "") + "".join(letters)
    expanded = [term.replace("...", names[widest - rank :]) for term, rank in zip(terms, ranks, strict=True)]
    return expanded, result.replace("...", names)


HANDLERS: dict[str, Callable[[Operation], Any]] = {
    **{"Conv": read_conv, "ConvTranspose": read_conv_transpose, "MatMul": read_matmul},
    **{"Gemm": read_gemm, "Einsum": read_einsum},
}
