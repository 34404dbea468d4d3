"""Normalizations, softmax, attention, pooling, reductions and resizing of ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ekc.models.node_writer import NotExpressible, extend_padding
from ekc.models.onnx_reader import onnx
from ekc.models.onnx_reader.operation import Array, Operation
from ekc.models.onnx_reader.products import derive_padding, get_sizes


def read_batch_norm(op: Operation) -> None:
    """BatchNormalization in inference."""
    if op.get("training_mode", 0):
        raise NotExpressible("batch normalization in training")
    op.finish("batch_norm", [op.input(index) for index in range(5)], eps=op.get("epsilon", 1e-5))


def read_norm(op: Operation) -> None:
    """LayerNormalization, RMSNormalization, and SimplifiedLayerNormalization of ONNX Runtime, which is an RMS
    norm. Weights that broadcast over the normalized dimensions are expanded."""
    kind = "layer_norm" if op.proto.op_type == "LayerNormalization" else "rms_norm"
    if op.is_used(1) or op.is_used(2):
        raise NotExpressible(
            "a layer norm that returns its mean or deviation"
            if kind == "layer_norm"
            else "an RMS norm that returns its deviation"
        )
    axis = op.axis(-1)
    weights = [_expand_weight(op, index, op.shape()[axis:]) for index in (1, 2) if op.has(index)]
    op.finish(kind, [op.input(0), *weights], dimensions=op.rank() - axis, eps=op.get("epsilon", 1e-5))


def _expand_weight(op: Operation, index: int, shape: tuple[int, ...]) -> str:
    weight, own = op.input(index), op.shape(index)
    if own == shape:
        return weight
    trimmed = own[len(own) - len(shape) :] if len(own) > len(shape) else own
    if np.prod(own) != np.prod(trimmed):
        raise NotExpressible("a weight that differs from row to row")
    weight = op.reshape(weight, trimmed)
    return op.expand(weight, shape)


def read_group_norm(op: Operation) -> None:
    """GroupNormalization; InstanceNormalization, with a group for each channel. GroupNormalization of opset
    18 to 20, with weights for groups, is refused by onnx.checker."""
    names = [op.input(index) for index in range(3)]
    groups = int(op.get("num_groups", op.shape()[1]))
    op.finish("group_norm", names, groups=groups, eps=op.get("epsilon", 1e-5))


def read_softmax(op: Operation) -> None:
    """Softmax over one axis."""
    op.finish("softmax", [op.input(0)], axis=op.axis(-1))


def read_attention(op: Operation) -> None:
    """Attention of the standard domain; with a cache, keys and values are joined first."""
    limits = [op.get(name, -1) for name in ("left_window_size", "right_window_size")]
    if op.get("softcap", 0.0) or op.is_used(3) or op.has(6) or limits != [-1, -1]:
        raise NotExpressible("attention with a soft cap, a window, lengths or its scores as an output")
    if op.get("softmax_precision", 1) == onnx.TensorProto.DOUBLE:
        raise NotExpressible("attention with a softmax in float64")
    if op.has(4) and op.get("is_causal", 0):
        raise NotExpressible("causal attention with a cache")
    heads = (int(op.get("q_num_heads", 0)), *[int(op.get("kv_num_heads", 0))] * 2)
    q, k, v = (_split_heads(op, index, heads[index]) for index in range(3))
    k, v = (_join_cache(op, value, index) for value, index in ((k, 0), (v, 1)))
    shapes = [op.state.find_shape(value) for value in (q, k, v)]
    names = [q, k, v]
    if op.has(3):
        if op.shape(3)[-1] != shapes[1][-2]:
            raise NotExpressible("an attention mask that is shorter than the keys")
        names.append(op.input(3))
    scale = op.get("scale")
    attributes: dict[str, Any] = {
        "scale": shapes[0][-1] ** -0.5 if scale is None else float(scale),
        "is_causal": bool(op.get("is_causal", 0)),
    }
    if op.rank() == 4:
        op.finish("attention", names, **attributes)
        return
    value = op.emit("attention", names, (*shapes[0][:-1], shapes[2][-1]), **attributes)
    op.finish_as(op.permute(value, (0, 2, 1, 3)))


def _split_heads(op: Operation, index: int, heads: int) -> str:
    """[n, s, h * d] as [n, h, s, d]."""
    if op.rank(index) == 4:
        return op.input(index)
    n, s, width = op.shape(index)
    return op.permute(op.reshape(op.input(index), (n, s, heads, width // heads)), (0, 2, 1, 3))


def _join_cache(op: Operation, value: str, index: int) -> str:
    """Keys (0) or values (1) behind those of the cache; they are outputs too."""
    joined, output = value, 1 + index
    if op.has(4 + index):
        past = op.input(4 + index)
        n, h, old, d = op.state.find_shape(past)
        new = op.state.find_shape(value)[2]
        joined = op.emit("concat", [past, value], (n, h, old + new, d), axis=2)
    if op.is_used(output):
        op.alias(joined, output)
    return joined


REDUCTIONS = {
    **{"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min"},
    **{"ReduceProd": "prod", "ReduceL1": "sum", "ReduceL2": "sum", "ReduceSumSquare": "sum"},
    "ReduceLogSum": "sum",
}
"""Operator -> how it combines elements."""
FUNCTIONS_BEFORE = {"ReduceL1": "abs", "ReduceL2": "square", "ReduceSumSquare": "square"}
FUNCTIONS_AFTER = {"ReduceL2": "sqrt", "ReduceLogSum": "log"}


def read_pool(op: Operation) -> None:
    """MaxPool and AveragePool. The end of `ceil_mode` is padding."""
    if op.is_used(1):
        raise NotExpressible("a pool that returns the indices of its maxima")
    kernel = tuple(int(k) for k in op.get("kernel_shape"))
    stride, dilation = (get_sizes(op, name, len(kernel)) for name in ("strides", "dilations"))
    padding = derive_padding(op, kernel, stride, dilation)
    window = (kernel, stride, dilation)
    extended = extend_padding(padding, op.shape()[2:], op.output_shape()[2:], window)
    attributes: dict[str, Any] = {"kernel": kernel, "stride": stride, "dilation": dilation}
    value = op.input(0)
    if op.proto.op_type == "MaxPool":
        op.finish("max_pool", [value], padding=extended, **attributes)
        return
    counts = bool(op.get("count_include_pad", 0))
    if counts and extended != padding:
        # The padding counts, and what `ceil_mode` adds behind it does not.
        value = op.pad(value, ((0, 0), (0, 0), *padding), 0.0)
        ends = zip(extended, padding, strict=True)
        extended = tuple((0, end - after) for (_, end), (_, after) in ends)
        counts = False
    op.finish("avg_pool", [value], padding=extended, counts_padding=counts, **attributes)


def read_global_pool(op: Operation) -> None:
    """GlobalAveragePool and GlobalMaxPool: reductions of the spatial dimensions."""
    combine = "mean" if op.proto.op_type == "GlobalAveragePool" else "max"
    axes = tuple(range(2, op.rank()))
    op.finish("reduce", [op.input(0)], combine=combine, axes=axes, keepdims=True)


def read_reduce(op: Operation) -> None:
    """Reductions; those of squares, magnitudes and logarithms have a function before or behind."""
    before, after = (table.get(op.proto.op_type) for table in (FUNCTIONS_BEFORE, FUNCTIONS_AFTER))
    combine = REDUCTIONS[op.proto.op_type]
    if combine == "mean" and not op.is_float():
        raise NotExpressible("the mean of integers")
    axes, keepdims = _derive_reduced_axes(op), bool(op.get("keepdims", 1))
    value = op.input(0)
    value = op.call(before, value) if before else value
    if axes:
        value = op.reduce(combine, value, axes, keepdims)
    op.alias(op.call(after, value) if after else value)


def _derive_reduced_axes(op: Operation) -> tuple[int, ...]:
    given, keeps_all = op.get("axes"), op.get("noop_with_empty_axes", 0)
    if op.has(1):
        given = op.require_constant(1, "an axis").reshape(-1)
    if given is None or not len(given):
        return () if keeps_all else tuple(range(op.rank()))
    return tuple(sorted(int(axis) % op.rank() for axis in given))


def read_log_sum_exp(op: Operation) -> None:
    """ReduceLogSumExp: max + log(sum(exp(x - max)))."""
    axes, keepdims = _derive_reduced_axes(op), bool(op.get("keepdims", 1))
    if not axes:
        raise NotExpressible("a logarithm of sums over no axis")
    top = op.reduce("max", op.input(0), axes, True)
    powers = op.call("exp", op.call("sub", op.input(0), top))
    total = op.reduce("sum", powers, axes, True)
    value = op.call("add", op.call("log", total), top)
    op.finish_as(value if keepdims else op.reshape(value, op.output_shape()))


def read_resize(op: Operation) -> None:
    """Resize by nearest neighbour: a whole factor, a slice, or a gather."""
    mode = op.get("mode", "nearest")
    place = op.get("coordinate_transformation_mode", "half_pixel")
    rounding = op.get("nearest_mode", "round_prefer_floor")
    rows = [_compute_resize_rows(op, axis, place, rounding) for axis in range(op.rank())]
    if mode != "nearest" and op.shape() != op.output_shape():
        raise NotExpressible(f"resize of mode {mode}")
    op.alias(op.resize(op.input(0), rows))


COORDINATES: dict[str, Callable[[Array, float, int, int], Array]] = {
    "half_pixel": lambda i, scale, size, out: (i + 0.5) / scale - 0.5,
    "half_pixel_symmetric": lambda i, scale, size, out: (
        size / 2 * (1 - out / (scale * size)) + (i + 0.5) / scale - 0.5
    ),
    "pytorch_half_pixel": lambda i, scale, size, out: (i + 0.5) / scale - 0.5 if out > 1 else np.zeros(1),
    "align_corners": lambda i, scale, size, out: i * (size - 1) / (out - 1) if out > 1 else np.zeros(1),
    "asymmetric": lambda i, scale, size, out: i / scale,
}
"""Where the rows i of a result of `out` rows lie in an axis of `size` rows."""
ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    **{"floor": np.floor, "ceil": np.ceil},
}


def _compute_resize_rows(op: Operation, axis: int, place: str, rounding: str) -> np.ndarray[Any, Any]:
    """The row that each row of the result has its elements from, along an axis."""
    size, out = op.shape()[axis], op.output_shape()[axis]
    scale = _find_scale(op, axis, size, out)
    op.reserve(4 * out)
    i = np.arange(out)
    if out == size and scale == 1:
        return i
    if place not in COORDINATES:
        raise NotExpressible(f"resize with coordinates {place}")
    if rounding not in ROUNDINGS:
        raise NotExpressible(f"resize with nearest_mode {rounding}")
    x = ROUNDINGS[rounding](COORDINATES[place](i, scale, size, out))
    rows: np.ndarray[Any, Any] = np.clip(x, 0, size - 1).astype(np.int64)
    return rows


def _find_scale(op: Operation, axis: int, size: int, out: int) -> float:
    axes = [int(a) % op.rank() for a in op.get("axes", range(op.rank()))]
    if axis not in axes:
        return 1.0
    if op.has(2) and (scales := op.require_constant(2, "a scale")).size:
        return float(scales[axes.index(axis)])
    if op.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NotExpressible("resize that keeps the aspect ratio")
    return out / size


HANDLERS: dict[str, Callable[[Operation], Any]] = {
    **{"BatchNormalization": read_batch_norm, "LayerNormalization": read_norm},
    **{"RMSNormalization": read_norm, "GroupNormalization": read_group_norm},
    **{"InstanceNormalization": read_group_norm, "Softmax": read_softmax, "Attention": read_attention},
    **dict.fromkeys(("MaxPool", "AveragePool"), read_pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), read_global_pool),
    **dict.fromkeys(REDUCTIONS, read_reduce),
    **{"ReduceLogSumExp": read_log_sum_exp, "Resize": read_resize},
}
