"""Operators that ONNX Runtime writes into optimised files (domain com.microsoft)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ekc.models.node_writer import NotExpressible
from ekc.models.onnx_reader.elementwise import QUANTISED, read_gelu, read_quantised
from ekc.models.onnx_reader.operation import Operation
from ekc.models.onnx_reader.products import multiply_turned
from ekc.models.onnx_reader.reductions import read_norm

DOMAIN = "com.microsoft"


def infer_types(op: Operation) -> None:
    """Register the type of the output, where a reader below needs it and the file does not state it."""
    if op.proto.op_type not in HANDLERS or op.proto.op_type in QUANTISED or not op.has(0):
        return
    shape = op.shape()
    if op.proto.op_type == "FusedMatMul":
        left, right = (_order_matrix(op, index) for index in (0, 1))
        shape = (*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])
    op.state.set_type(op.output, shape, op.state.find_file_dtype(op.input(0)))


def _order_matrix(op: Operation, index: int) -> tuple[int, ...]:
    """Shape of an operand of a product, transposed where the node says so."""
    shape = op.shape(index)
    if len(shape) < 2:
        return (1, *shape) if index == 0 else (*shape, 1)
    return (*shape[:-2], shape[-1], shape[-2]) if op.get("trans" + "AB"[index], 0) else shape


def read_fused_matmul(op: Operation) -> None:
    """FusedMatMul: alpha * A * B, the last two dimensions transposed where it says so."""
    if op.get("transBatchA", 0) or op.get("transBatchB", 0) or min(op.rank(0), op.rank(1)) < 2:
        raise NotExpressible("a product of vectors or transposed batches")
    op.alias(multiply_turned(op))


def read_fast_gelu(op: Operation) -> None:
    """FastGelu and BiasGelu: a bias and gelu, by tanh or exact."""
    value = op.call("add", op.input(0), op.input(1)) if op.has(1) else op.input(0)
    by_tanh = op.proto.op_type == "FastGelu"
    op.finish("elementwise", [value], function="gelu_tanh" if by_tanh else "gelu")


def read_quick_gelu(op: Operation) -> None:
    """QuickGelu: x * sigmoid(alpha * x)."""
    scaled = op.call("mul", op.input(0), op.add_scalar(op.get("alpha", 1.702), op.dtype()))
    op.finish("elementwise", [op.input(0), op.call("sigmoid", scaled)], function="mul")


def read_skip_norm(op: Operation) -> None:
    """SkipLayerNormalization and SkipSimplifiedLayerNormalization: a sum and a norm."""
    if any(op.is_used(index) for index in (1, 2)):
        raise NotExpressible("a norm that returns its mean or deviation")
    is_rms = op.proto.op_type == "SkipSimplifiedLayerNormalization"
    bias = 3 if is_rms else 4
    value = op.call("add", op.input(0), op.input(1))
    if op.has(bias):
        value = op.call("add", value, op.input(bias))
    if op.is_used(3):
        op.state.aliases[op.proto.output[3]] = value
    eps = op.get("epsilon", 1e-12 if not is_rms else 1e-5)
    weights = [op.input(index) for index in range(2, bias) if op.has(index)]
    op.finish("rms_norm" if is_rms else "layer_norm", [value, *weights], dimensions=1, eps=eps)


HANDLERS: dict[str, Callable[[Operation], Any]] = {
    **dict.fromkeys(QUANTISED, read_quantised),
    **{"SimplifiedLayerNormalization": read_norm, "FusedMatMul": read_fused_matmul, "Gelu": read_gelu},
    **{"FastGelu": read_fast_gelu, "BiasGelu": read_fast_gelu, "QuickGelu": read_quick_gelu},
    **{
        "SkipLayerNormalization": read_skip_norm,
        "SkipSimplifiedLayerNormalization": read_skip_norm,
    },
}
