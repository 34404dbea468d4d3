"""Elementwise operators of ONNX, and its quantised ones: conversions are elementwise, products of integers
have no kind."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from ekc.models.functions import FUNCTIONS
from ekc.models.node_writer import NotExpressible
from ekc.models.onnx_reader import onnx
from ekc.models.onnx_reader.operation import Operation, shorten_decimal

SAME_FUNCTIONS: dict[str, tuple[str, dict[str, tuple[str, float]]]] = {
    **{function.onnx: (function.name, {}) for function in FUNCTIONS.values() if function.onnx},
    "LeakyRelu": ("leaky_relu", {"slope": ("alpha", 0.01)}),
    "Elu": ("elu", {"alpha": ("alpha", 1.0)}),
}
"""Operator -> the function with the same inputs, and the attribute and default of each of its parameters."""


def read_same_function(op: Operation) -> None:
    """An operator that a function says with the same inputs."""
    function, sources = SAME_FUNCTIONS[op.proto.op_type]
    names = [op.input(index) for index in range(len(op.proto.input))]
    parameters = {name: op.get(*source) for name, source in sources.items()}
    op.finish("elementwise", names, function=function, **parameters)


def read_mod(op: Operation) -> None:
    """Remainder with the sign of the divisor."""
    if op.get("fmod", 0):
        raise NotExpressible("remainder with the sign of the dividend (fmod)")
    op.finish("elementwise", [op.input(0), op.input(1)], function="remainder")


def read_pow(op: Operation) -> None:
    """Power; a constant exponent of 2, 1/2 or -1 is a function of its own."""
    exponent = op.constant(1)
    if exponent is not None and exponent.size == 1 and op.is_float() and exponent.ndim <= op.rank():
        simple = {2.0: "square", 0.5: "sqrt", -1.0: "reciprocal"}.get(float(exponent.reshape(())))
        if simple is not None:
            op.finish("elementwise", [op.input(0)], function=simple)
            return
    op.finish("elementwise", [op.input(0), op.cast(op.input(1), op.dtype(0))], function="power")


FUNCTIONS_OF_MANY = {"Sum": "add", "Mean": "add", "Min": "minimum", "Max": "maximum"}
"""Operators of one input or more, and the function that combines two."""


def read_many(op: Operation) -> None:
    """Sum, Mean, Min and Max."""
    value, *others = (op.input(index) for index in range(len(op.proto.input)))
    for other in others:
        value = op.call(FUNCTIONS_OF_MANY[op.proto.op_type], value, other)
    if others and op.proto.op_type == "Mean":
        value = op.call("mul", value, op.add_scalar(1 / len(op.proto.input), op.dtype()))
    op.alias(value)


def shorten_bound(number: Any) -> float | int:
    """A bound as it was written: 1e-12 for the float32 nearest to it."""
    return int(number) if isinstance(number, np.integer) else shorten_decimal(number)


def read_clip(op: Operation) -> None:
    """Clip: a clamp where its bounds are constant, else minimum and maximum."""
    bounds: list[float | int | None] = []
    for index in (1, 2):
        data = op.constant(index)
        if data is None and op.has(index):
            break
        bounds.append(None if data is None else shorten_bound(data.reshape(())[()]))
    value = op.input(0)
    if bounds == [0, None]:
        value = op.call("relu", value)
    elif len(bounds) == 2 and bounds != [None, None]:
        value = op.call("clamp", value, minimum=bounds[0], maximum=bounds[1])
    elif bounds != [None, None]:
        value = op.call("maximum", value, op.input(1)) if op.has(1) else value
        value = op.call("minimum", value, op.input(2)) if op.has(2) else value
    op.alias(value)


def read_prelu(op: Operation) -> None:
    """PRelu: relu(x) + slope * min(x, 0). Before opset 7 a vector of slopes is one for each channel."""
    slope = op.input(1)
    if op.state.written_opset < 7 and op.rank(1) == 1 and op.rank() > 1 and op.shape(1) != (1,):
        slope = op.reshape(slope, (*op.shape(1), *(1,) * (op.rank() - 2)))
    below = op.call("minimum", op.input(0), op.add_scalar(0, op.dtype()))
    scaled = op.call("mul", below, slope)
    op.finish("elementwise", [op.call("relu", op.input(0)), scaled], function="add")


def read_gelu(op: Operation) -> None:
    """Gelu, exact or by tanh."""
    by_tanh = op.get("approximate", "none") == "tanh"
    op.finish("elementwise", [op.input(0)], function="gelu_tanh" if by_tanh else "gelu")


def read_tan(op: Operation) -> None:
    """Tan: sine over cosine."""
    op.finish("elementwise", [op.call("sin", op.input(0)), op.call("cos", op.input(0))], function="div")


def read_is_nan(op: Operation) -> None:
    """IsNaN: a number that differs from itself."""
    op.finish("elementwise", [op.input(0), op.input(0)], function="not_equal")


def read_is_inf(op: Operation) -> None:
    """IsInf, of both signs or one."""
    positive, negative = op.get("detect_positive", 1), op.get("detect_negative", 1)
    if not positive and not negative:
        raise NotExpressible("IsInf of neither sign")
    value = op.call("abs", op.input(0)) if positive and negative else op.input(0)
    bound = op.add_scalar(np.inf if positive else -np.inf, op.dtype())
    op.finish("elementwise", [value, bound], function="equal")


def read_cast(op: Operation) -> None:
    """Cast and CastLike. A cast to 8-bit floats saturates unless the file says otherwise."""
    if op.dtype() == op.state.find_dtype(op.output):
        op.alias(op.input(0))
        return
    string = onnx.TensorProto.STRING
    if string in (op.state.types[n].tensor_type.elem_type for n in (op.input(0), op.output)):
        raise NotExpressible("tensors of text")
    value, target, saturates = op.input(0), op.state.find_dtype(op.output), op.get("saturate", 1)
    if target.name == "float8_e8m0fnu":
        raise NotExpressible("a cast to float8_e8m0fnu")
    if target.name.startswith("float8") and saturates:
        largest = float(ml_dtypes.finfo(target).max)  # type: ignore[no-untyped-call]
        value = op.call("clamp", value, minimum=-largest, maximum=largest)
    op.finish("cast", [value])


def read_identity(op: Operation) -> None:
    """Identity, and operators that do nothing in inference."""
    op.alias(op.input(0))


def read_dropout(op: Operation) -> None:
    """Dropout: nothing in inference."""
    training = op.constant(2)
    if op.has(2) and (training is None or bool(training.reshape(()))):
        raise NotExpressible("dropout in training")
    op.alias(op.input(0))
    if op.is_used(1):
        op.reserve(prod(op.shape()), 1)
        op.state.set_constant(op.proto.output[1], np.ones(op.shape(), bool))


def read_trilu(op: Operation) -> None:
    """Trilu: a constant mask."""
    k = int(op.require_constant(1, "the diagonal").reshape(())) if op.has(1) else 0
    op.reserve(prod(op.shape()[-2:]), 4)
    keep = np.tril(np.ones(op.shape()[-2:], bool), k - 1 if op.get("upper", 1) else k)
    mask = op.add_constant(~keep if op.get("upper", 1) else keep)
    op.finish("elementwise", [mask, op.input(0), op.add_scalar(0, op.dtype())], function="where")


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
    **dict.fromkeys(SAME_FUNCTIONS, read_same_function),
    **{"Mod": read_mod, "Pow": read_pow, "Clip": read_clip, "Tan": read_tan},
    **dict.fromkeys(FUNCTIONS_OF_MANY, read_many),
    **{"PRelu": read_prelu, "Gelu": read_gelu, "IsNaN": read_is_nan, "IsInf": read_is_inf},
    **{"Cast": read_cast, "CastLike": read_cast, "Identity": read_identity, "Dropout": read_dropout},
    "Trilu": read_trilu,
    **dict.fromkeys(QUANTISED, read_quantised),
    **{"QuantizeLinear": read_quantize, "DequantizeLinear": read_dequantize},
}
