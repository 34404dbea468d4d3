"""Readers of elementwise operators, comparisons and casts."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

import ml_dtypes
import numpy as np

from ekc.models.functions import FUNCTIONS
from ekc.models.node_writer import NotExpressible
from ekc.models.torch_reader import torch
from ekc.models.torch_reader.reading import (
    Handler,
    Operand,
    OperatorCall,
    ValueName,
    is_floating,
)

TORCH_FUNCTIONS = {function.torch: function for function in FUNCTIONS.values() if function.torch}
"""Functions by their name in PyTorch."""


def read_function(call: OperatorCall) -> ValueName:
    """A function of one tensor, or of two tensors or numbers of the type of the result."""
    function = TORCH_FUNCTIONS[call.operator]
    if function.inputs == 1:
        return call.apply(function.name, call["self"])
    left, right = call["self"], call["other"]
    if call.get("alpha", 1) != 1:
        right = call.apply("mul", right, call["alpha"])
    if (
        function.name == "mul"
        and isinstance(left, ValueName)
        and not isinstance(right, ValueName)
        and right == 1
    ):
        return call.cast(left, call.result_dtype)
    return call.apply(function.name, left, right)


def read_comparison(call: OperatorCall) -> ValueName:
    """A comparison: both sides are cast to their common type."""
    sides = (call["self"], call["other"])
    common = derive_common_dtype(call, sides)
    values = [call.convert(round_number(side, common), common) for side in sides]
    return call.connect(TORCH_FUNCTIONS[call.operator].name, values, np.dtype(bool))


def round_number(operand: Operand, dtype: np.dtype[Any]) -> Operand:
    """A number as the type of the tensors holds it, where a function jumps: `x == 0.1` and `x % 0.1` of
    float32 take the float32 nearest to 0.1. Numbers beyond the range of the type stay."""
    if isinstance(operand, ValueName) or not is_floating(dtype):
        return operand
    with np.errstate(over="ignore"):
        rounded = float(np.asarray(operand, np.float64).astype(dtype))
    return rounded if np.isfinite(rounded) else operand


def read_remainder(call: OperatorCall) -> ValueName:
    """`remainder` with the sign of the divisor."""
    sides = [round_number(call[name], call.result_dtype) for name in ("self", "other")]
    return call.apply("remainder", *sides)


def derive_common_dtype(call: OperatorCall, operands: tuple[Operand, ...]) -> np.dtype[Any]:
    """The type that PyTorch compares in. Numbers and tensors without dimensions do not widen."""
    empty = [
        torch.empty(call.get_shape(x), dtype=call.torch_dtypes[x], device="meta")
        if isinstance(x, ValueName)
        else x
        for x in operands
    ]
    common = torch.result_type(*empty)
    return call.reading.find_dtype(call.name, torch.empty((), dtype=common, device="meta"))


def read_logical(call: OperatorCall) -> ValueName:
    """Logical operators; tensors that are not bool are compared with 0."""
    names = [name for name in ("self", "other") if name in call]
    if "logical" not in call.operator and call.result_dtype != np.dtype(bool):
        raise NotExpressible(f"bitwise operation on {call.result_dtype}")
    values = []
    for name in names:
        value = (
            call.convert(call[name], np.dtype(bool)) if not isinstance(call[name], ValueName) else call[name]
        )
        if call.get_dtype(value) != np.dtype(bool):
            zero = call.reading.add_number(0, call.get_dtype(value))
            value = call.connect("not_equal", (value, zero), np.dtype(bool))
        values.append(value)
    name = call.operator.strip("_").rpartition("_")[2]
    return call.connect(f"logical_{name}", values, np.dtype(bool))


def clamp(call: OperatorCall, value: Operand, minimum: Any, maximum: Any) -> ValueName:
    """Limits of a value: numbers, tensors or None."""
    if isinstance(minimum, ValueName) or isinstance(maximum, ValueName):
        made = value if minimum is None else call.apply("maximum", value, minimum)
        made = made if maximum is None else call.apply("minimum", made, maximum)
        return call.convert(made, call.result_dtype)
    bounds = [None if x is None else float(x) for x in (minimum, maximum)]
    return call.apply("clamp", value, minimum=bounds[0], maximum=bounds[1])


def read_clamp(call: OperatorCall) -> ValueName:
    """`clamp` and its halves, and `hardtanh`."""
    low = call.get("min", call.get("min_val"))
    return clamp(call, call["self"], low, call.get("max", call.get("max_val")))


def read_elu(call: OperatorCall) -> ValueName:
    """`elu`, `celu`, `selu`: scale * x for positive x, else scale * alpha * (exp(input_scale * x) - 1)."""
    x, alpha, scale, inner = call["self"], float(call["alpha"]), call["scale"], call["input_scale"]
    if inner == 1:
        made = call.apply("elu", x, alpha=alpha)
    else:
        curve = call.apply("sub", call.apply("exp", call.apply("mul", x, inner)), 1.0)
        zero = call.reading.add_number(0.0, call.get_dtype(x))
        positive = call.connect("greater", (x, zero), np.dtype(bool))
        made = choose(call, positive, x, call.apply("mul", curve, alpha))
    return made if scale == 1 else call.apply("mul", made, scale)


def read_rsub(call: OperatorCall) -> ValueName:
    """other - alpha * self."""
    left = call["self"] if call.get("alpha", 1) == 1 else call.apply("mul", call["self"], call["alpha"])
    return call.apply("sub", call["other"], left)


def read_division(call: OperatorCall) -> ValueName:
    """`div` with its rounding, and `floor_divide`."""
    mode = "floor" if call.operator == "floor_divide" else call.get("rounding_mode")
    if mode is None:
        return call.apply("div", call["self"], call["other"])
    if mode != "floor" or not is_floating(call.result_dtype):
        raise NotExpressible(f"division of {call.result_dtype} rounded by {mode!r}")
    return divide_down(call, call["self"], call["other"])


def divide_down(call: OperatorCall, a: Operand, b: Operand) -> ValueName:
    """The quotient rounded down as in Python: 1.0 // 0.1 is 9.0, though 1.0 / 0.1 rounds to 10.0. It is
    (a - a % b) / b, which is whole but for rounding. Where a % b equals b, as for -1 % inf, it is -1.
    Division by 0 is that of a / b."""
    b = round_number(b, np.dtype(np.float32))
    if not isinstance(b, ValueName) and b == 0:
        return call.apply("div", a, b)
    remainder = call.apply("remainder", a, b)
    made = call.apply("round", call.apply("div", call.apply("sub", a, remainder), b))
    if not isinstance(b, ValueName) and np.isfinite(b):
        return made
    divisor = call.convert(b, call.result_dtype)
    made = choose(call, call.connect("equal", [remainder, divisor], np.dtype(bool)), -1.0, made)
    if not isinstance(b, ValueName):
        return made
    zero = call.reading.add_number(0.0, call.result_dtype)
    is_zero = call.connect("equal", [divisor, zero], np.dtype(bool))
    return choose(call, is_zero, call.apply("div", a, b), made)


POWERS: Mapping[float, str] = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}


def read_power(call: OperatorCall) -> ValueName:
    """`pow`: the common exponents by functions of their own."""
    base, exponent = call["self"], call["exponent"]
    if isinstance(base, ValueName) and not isinstance(exponent, ValueName):
        value = call.cast(base, call.result_dtype)
        if exponent == 1:
            return value
        if exponent == 2 or (exponent in POWERS and is_floating(call.result_dtype)):
            return call.apply(POWERS[float(exponent)], value)
    return call.apply("power", base, exponent)


def read_where(call: OperatorCall) -> ValueName:
    """`where` of a condition."""
    if "other" not in call:
        raise NotExpressible("where with only a condition: its shape depends on data")
    return choose(call, call["condition"], call["self"], call["other"])


def choose(call: OperatorCall, condition: ValueName, chosen: Operand, other: Operand) -> ValueName:
    """`chosen` where the condition holds, else `other`."""
    sides = [call.convert(side, call.result_dtype) for side in (chosen, other)]
    return call.connect("where", (condition, *sides), call.result_dtype)


def read_lerp(call: OperatorCall) -> ValueName:
    """self + weight * (end - self)."""
    difference = call.apply("sub", call["end"], call["self"])
    return call.apply("add", call["self"], call.apply("mul", difference, call["weight"]))


def read_steps(call: OperatorCall) -> ValueName:
    """Functions of one tensor after each other, each with its numbers."""
    value: ValueName = call["self"]
    for function, *numbers in STEPS[call.operator]:
        value = call.apply(function, value, *numbers)
    return value


def read_cast(call: OperatorCall) -> ValueName:
    """`to`, `_to_copy` and `type_as`: a cast, or nothing where the type stays."""
    value = next(call[name] for name in ("self", "input") if name in call)
    target = str(call.first_result.dtype).removeprefix("torch.")
    if target == "float8_e8m0fnu" and call.get_dtype(value) != call.result_dtype:
        raise NotExpressible("a cast to float8_e8m0fnu")
    if target.startswith("float8") and saturates(call.first_result.dtype):
        largest = float(ml_dtypes.finfo(call.result_dtype).max)  # type: ignore[no-untyped-call]
        value = call.apply("clamp", value, dtype=call.get_dtype(value), minimum=-largest, maximum=largest)
    is_double, was_double = (
        str(dtype) == "torch.float64" for dtype in (call.first_result.dtype, call.torch_dtypes.get(value))
    )
    if is_double and not was_double and call.reading.dtype is not None and not call.reading.has_float64:
        raise NotExpressible(f"a cast to float64 in a program that is read as {call.reading.dtype}")
    return call.cast(value, call.result_dtype)


def saturates(dtype: Any) -> bool:
    """Whether PyTorch casts numbers beyond the range of a type to its largest one, as 2.13 does for
    float8_e4m3fn."""
    return bool(torch.tensor(float("inf")).to(dtype).float().isfinite())


def read_fill(call: OperatorCall) -> ValueName:
    """A tensor of one number: the argument, else 1 or 0 by the name of the operator."""
    default = 1.0 if "ones" in call.operator else 0.0
    number = call.convert(call.get("value", call.get("fill_value", default)), call.result_dtype)
    return call.expand(call.cast(number, call.result_dtype), call.result_shape)


def read_dropout(call: OperatorCall) -> ValueName:
    """`dropout` in inference: its input."""
    if call.get("train", False) and call["p"] != 0:
        raise NotExpressible(f"dropout in training (p={call['p']:g}): random numbers")
    value: ValueName = call["input" if "input" in call else "self"]
    return value


STEPS: Mapping[str, tuple[tuple[Any, ...], ...]] = {
    "exp2": (("mul", log(2)), ("exp",)),
    "expm1": (("exp",), ("add", -1.0)),
    "log2": (("log",), ("mul", 1 / log(2))),
    "log10": (("log",), ("mul", 1 / log(10))),
    "log1p": (("add", 1.0), ("log",)),
}
"""Operator -> functions after each other, each with its numbers."""
FILLS = ("fill", "full_like", "new_full", "zeros_like", "new_zeros", "ones_like", "new_ones")
DROPOUT = ("dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(TORCH_FUNCTIONS, read_function),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), read_comparison),
    **dict.fromkeys(("logical_and", "logical_or", "logical_not", "__and__", "__or__"), read_logical),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_not"), read_logical),
    "remainder": read_remainder,
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "hardtanh"), read_clamp),
    **dict.fromkeys(("div", "true_divide", "floor_divide"), read_division),
    **dict.fromkeys(("to", "_to_copy", "type_as"), read_cast),
    "relu6": lambda call: clamp(call, call["self"], 0.0, 6.0),
    "leaky_relu": lambda call: call.apply("leaky_relu", call["self"], slope=float(call["negative_slope"])),
    "gelu": lambda call: call.apply("gelu" if call["approximate"] == "none" else "gelu_tanh", call["self"]),
    "elu": read_elu,
    "rsub": read_rsub,
    "pow": read_power,
    "where": read_where,
    "masked_fill": lambda call: choose(call, call["mask"], call["value"], call["self"]),
    "lerp": read_lerp,
    **dict.fromkeys(STEPS, read_steps),
    **dict.fromkeys(DROPOUT, read_dropout),
    **dict.fromkeys(FILLS, read_fill),
}
