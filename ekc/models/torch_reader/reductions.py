"""Readers of softmax, norms, reductions and pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ekc.models.node_writer import NotExpressible, extend_padding
from ekc.models.torch_reader import torch
from ekc.models.torch_reader.contractions import pad_convolution, spread
from ekc.models.torch_reader.reading import (
    Handler,
    OperatorCall,
    Outputs,
    ValueName,
    as_tensor,
)


def read_softmax(call: OperatorCall) -> ValueName:
    """`softmax`, in the type that is asked for; `_safe_softmax` gives 0 for a row of minus infinity alone."""
    x = as_tensor(call, call.cast(call["self"], call.result_dtype))
    own: dict[str, Any] = {"zeros_masked_rows": True} if call.operator == "_safe_softmax" else {}
    made = call.emit("softmax", (x,), call.get_shape(x), axis=call.axis(call["dim"], x), **own)
    return call.reshape(made, call.result_shape)


def read_batch_norm(call: OperatorCall) -> ValueName:
    """`batch_norm` in inference, with stored mean and variance."""
    x, mean, variance = call["input"], call.get("running_mean"), call.get("running_var")
    if call.get("training", False) or mean is None or variance is None:
        raise NotExpressible("batch norm by the statistics of the batch; ekc reads stored ones")
    shape = call.get_shape(x)[1]
    affine = [
        call.get(name) or call.constant(name, np.full(shape, number, call.result_dtype))
        for name, number in (("weight", 1.0), ("bias", 0.0))
    ]
    return call.emit("batch_norm", (x, *affine, mean, variance), call.result_shape, eps=float(call["eps"]))


def emit_norm(
    call: OperatorCall, kind: str, shape: Sequence[int], eps: float, **attributes: Any
) -> ValueName:
    """A norm of `input`; `weight` is 1 where there is only a bias."""
    weight, bias = call.get("weight"), call.get("bias")
    if weight is None and bias is not None:
        weight = call.constant("weight", np.ones(shape, call.result_dtype))
    inputs = [v for v in (call["input"], weight, bias) if v is not None]
    return call.emit(kind, inputs, call.result_shape, eps=float(eps), **attributes)


def read_layer_norm(call: OperatorCall) -> ValueName:
    """`layer_norm` and `native_layer_norm`."""
    shape = tuple(call["normalized_shape"])
    return emit_norm(call, "layer_norm", shape, call["eps"], dimensions=len(shape))


def read_rms_norm(call: OperatorCall) -> ValueName:
    """`rms_norm`; without eps PyTorch takes the machine epsilon of the type."""
    shape = tuple(call["normalized_shape"])
    eps = call.get("eps", torch.finfo(call.first_result.dtype).eps)
    return emit_norm(call, "rms_norm", shape, eps, dimensions=len(shape))


def read_group_norm(call: OperatorCall) -> ValueName:
    """`group_norm` and `native_group_norm`; `instance_norm` by the statistics of each input, with a group for
    each channel."""
    if not call.get("use_input_stats", True):
        raise NotExpressible("instance norm with stored mean and variance")
    channels = call.get_shape(call["input"])[1]
    groups = call.get("num_groups", call.get("group", channels))
    return emit_norm(call, "group_norm", (channels,), call["eps"], groups=int(groups))


def read_reduction(call: OperatorCall) -> ValueName:
    """`sum`, `mean`, `prod`, `amax` and `amin`; `max` and `min` of all elements, of an axis, or of two
    tensors. No node gives the index."""
    x, combine = call["self"], call.operator.removeprefix("a")
    if "other" in call:
        return call.apply(f"{combine}imum", x, call["other"])
    if combine in ("sum", "mean", "prod"):
        x = call.cast(x, call.result_dtype)
    return call.reduce(combine, x, call.axes(call.get("dim"), x), bool(call.get("keepdim", False)))


def read_variance(call: OperatorCall) -> Outputs:
    """`var` and `var_mean`: the mean of squared differences."""
    x = call["self"]
    axes = call.axes(call.get("dim"), x)
    correction = call.get("correction", float(call.get("unbiased", True)))
    count = int(np.prod([call.get_shape(x)[axis] for axis in axes]))
    if count <= correction:
        raise NotExpressible(f"variance of {count} elements with correction {correction}")
    mean = call.reduce("mean", x, axes, True)
    squares = call.apply("square", call.apply("sub", x, mean))
    made = call.reduce("mean", squares, axes, bool(call.get("keepdim", False)))
    if correction:
        made = call.apply("mul", made, count / (count - correction))
    if not isinstance(call.result, tuple | list):
        return made
    return (made, call.reshape(mean, tuple(call.result[1].shape)))


def read_pool(call: OperatorCall) -> ValueName:
    """`max_pool` and `avg_pool` of 1 to 3 dimensions."""
    kind = "max_pool" if "max_pool" in call.operator else "avg_pool"
    x, result = call["self"], call.result_shape
    rank = int(call.operator.partition("pool")[2][0])
    if len(call.get_shape(x)) == rank + 1:
        x, result = call.reshape(x, (1, *call.get_shape(x))), (1, *result)
    kernel = spread(call["kernel_size"], rank)
    stride = spread(call.get("stride") or kernel, rank)
    dilation = spread(call.get("dilation", 1), rank)
    padding = extend_padding(
        pad_convolution(call["padding"], kernel, dilation),
        *(call.get_shape(x)[2:], result[2:], (kernel, stride, dilation)),
    )
    attributes: dict[str, Any] = {
        "kernel": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
    }
    if kind == "avg_pool":
        attributes["counts_padding"] = bool(call.get("count_include_pad", True))
        if call.get("divisor_override") is not None:
            raise NotExpressible("avg_pool with a divisor of its own")
        if attributes["counts_padding"] and any(a > b for b, a in padding):
            raise NotExpressible(
                "an average pool with ceil_mode=True, where a window ends beyond the padding"
            )
    return call.reshape(call.emit(kind, (x,), result, **attributes), call.result_shape)


def read_adaptive_pool(call: OperatorCall) -> ValueName:
    """Adaptive pools: a reduction to one element, or a pool where the sizes divide."""
    kind, combine = ("max_pool", "max") if "max_pool" in call.operator else ("avg_pool", "mean")
    x, result = call["self"], call.result_shape
    rank = int(call.operator.partition("pool")[2][0])
    size, output = call.get_shape(x)[-rank:], result[-rank:]
    if all(e == 1 for e in output):
        made = call.reduce(combine, x, range(len(result) - rank, len(result)), True)
    elif size == output:
        made = x
    elif any(s % o for s, o in zip(size, output, strict=True)):
        raise NotExpressible(f"adaptive pool from {size} to {output}, which does not divide it")
    else:
        kernel = tuple(s // o for s, o in zip(size, output, strict=True))
        lead = result if len(result) == rank + 2 else (1, *result)
        attributes: dict[str, Any] = {
            "kernel": kernel,
            "stride": kernel,
            "padding": ((0, 0),) * rank,
            "dilation": (1,) * rank,
        }
        if kind == "avg_pool":
            attributes["counts_padding"] = True
        batched = call.reshape(x, (*lead[:-rank], *size))
        made = call.reshape(call.emit(kind, (batched,), lead, **attributes), result)
    return made


DIMENSIONS = ("1d", "2d", "3d")
HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("softmax", "_softmax", "_safe_softmax"), read_softmax),
    **dict.fromkeys(("batch_norm", "_native_batch_norm_legit_no_training"), read_batch_norm),
    **dict.fromkeys(("layer_norm", "native_layer_norm"), read_layer_norm),
    **dict.fromkeys(("rms_norm", "_fused_rms_norm"), read_rms_norm),
    **dict.fromkeys(("group_norm", "native_group_norm", "instance_norm"), read_group_norm),
    **dict.fromkeys(("var", "var_mean"), read_variance),
    **dict.fromkeys(("sum", "mean", "prod", "amax", "amin", "max", "min"), read_reduction),
    **{f"max_pool{d}{tail}": read_pool for d in DIMENSIONS for tail in ("", "_with_indices")},
    **{f"avg_pool{d}": read_pool for d in DIMENSIONS},
    **{f"{head}adaptive_avg_pool{d}": read_adaptive_pool for d in DIMENSIONS for head in ("", "_")},
    **{f"adaptive_max_pool{d}": read_adaptive_pool for d in DIMENSIONS},
}
