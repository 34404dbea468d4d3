"""Quantised operators of ONNX: conversions are elementwise, products of integers have no kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ekc.models.onnx_reader.operation import NotExpressible, Operation

QUANTISED = (
    *("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"),
    *("QLinearAdd", "QLinearMul", "QGemm", "MatMulNBits", "DynamicQuantizeMatMul", "QAttention"),
)
INTEGERS = frozenset({"int8", "uint8", "int16", "uint16", "int32"})


def read_quantised(op: Operation) -> None:
    """A product of quantised tensors."""
    raise NotExpressible("quantised: sums of products of integers")


def read_quantize(op: Operation) -> None:
    """QuantizeLinear: divide, round, add the zero point, clamp, cast."""
    target = op.state.find_dtype(op.output)
    if target.name not in INTEGERS:
        raise NotExpressible(f"quantised: to {target.name}")
    value = op.cast(op.input(0), np.dtype(np.float32))
    value = op.call("round", op.call("div", value, _align(op, 1, "scales")))
    if op.has(2):
        value = op.call("add", value, _align(op, 2, "zero points"))
    limits = np.iinfo(target)
    value = op.call("clamp", value, minimum=float(limits.min), maximum=float(limits.max))
    op.finish("cast", [value])


def read_dequantize(op: Operation) -> None:
    """DequantizeLinear: cast, subtract the zero point, multiply by the scale."""
    if op.dtype().name not in INTEGERS:
        raise NotExpressible(f"quantised: from {op.dtype().name}")
    value = op.cast(op.input(0), np.dtype(np.float32))
    if op.has(2):
        value = op.call("sub", value, _align(op, 2, "zero points"))
    value = op.call("mul", value, _align(op, 1, "scales"))
    op.alias(op.cast(value, op.state.find_dtype(op.output)))


def _align(op: Operation, index: int, what: str) -> str:
    """Scales or zero points in float32, one for the tensor or one for each row of `axis`."""
    value, shape = op.cast(op.input(index), np.dtype(np.float32)), op.shape(index)
    axis = op.axis(1)
    if int(np.prod(shape)) == 1:
        return op.reshape(value, ())
    if len(shape) != 1 or shape[0] != op.shape()[axis]:
        raise NotExpressible(f"quantised: {what} of blocks")
    return op.reshape(value, [shape[0] if a == axis else 1 for a in range(op.rank())])


HANDLERS: dict[str, Callable[[Operation], Any]] = {
    **dict.fromkeys(QUANTISED, read_quantised),
    **{"QuantizeLinear": read_quantize, "DequantizeLinear": read_dequantize},
}
