"""A graph evaluated in NumPy: to fold constants, and to hold readers and fusion against.

Elements of 16 bits and fewer are computed in float32. Every result is rounded to the type of its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ekc.errors import InvalidInput
from ekc.models.functions import FUNCTIONS, Array
from ekc.models.graph import Graph, Node, Value


def evaluate(graph: Graph, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The outputs of a graph for arrays in the order of `graph.inputs`.

    Raises `InvalidInput` for a wrong number or shape of arrays, a constant whose elements the graph does not
    have, and a node of kind opaque.
    """
    arrays = start_evaluation(graph, inputs)
    for node in graph.nodes:
        arrays[node.output] = evaluate_node(node, read_values(graph, node.inputs, arrays), graph.values)
    return tuple(read_values(graph, graph.outputs, arrays))


def start_evaluation(graph: Graph, inputs: Sequence[Array]) -> dict[str, Array]:
    """The inputs by name, their shapes checked."""
    if len(inputs) != len(graph.inputs):
        raise InvalidInput(f"{graph.name}: takes {len(graph.inputs)} arrays, got {len(inputs)}")
    arrays = {}
    for name, array in zip(graph.inputs, inputs, strict=True):
        value, given = graph.values[name], np.asarray(array)
        if given.shape != value.shape:
            raise InvalidInput(f"{graph.name}: {name} has shape {given.shape}, needed {value.shape}")
        arrays[name] = given.astype(value.dtype)
    return arrays


def read_values(graph: Graph, names: Iterable[str], arrays: Mapping[str, Array]) -> list[Array]:
    """The arrays of some values: computed before, or constants."""
    found = []
    for name in names:
        data = arrays[name] if name in arrays else graph.values[name].data
        if data is None:
            raise InvalidInput(f"{graph.name}: the elements of {name} are not in the model")
        found.append(data)
    return found


def evaluate_node(node: Node, arrays: Sequence[Array], values: Mapping[str, Value]) -> Array:
    """The output of one node for the arrays of its inputs."""
    if node.kind not in _EVALUATORS:
        raise InvalidInput(f"{node.name}: {node.target} cannot be evaluated; the graph has no kind for it")
    output = values[node.output]
    with np.errstate(all="ignore"):
        result = _EVALUATORS[node.kind](node, _widen(arrays), output)
        if result.dtype.kind in "fV" and output.dtype.kind in "iu":
            result = np.trunc(result)
        result = np.asarray(result).astype(output.dtype, copy=False)
    if result.shape != output.shape:
        raise InvalidInput(f"{node.name}: {node.target} has shape {result.shape}, needed {output.shape}")
    return result


def _widen(arrays: Sequence[Array]) -> list[Array]:
    """Floats of fewer than 32 bits as float32, in which a kernel computes; also numbers of float64, where
    another operand is a float of at most 32 bits. Other arrays stay as they are."""
    small = [a.dtype.kind in "fV" and a.dtype.itemsize <= 4 for a in arrays]
    number = [any(small) and not a.shape and a.dtype == np.float64 for a in arrays]
    return [
        a.astype(np.float32, copy=False) if is_small or is_number else a
        for a, is_small, is_number in zip(arrays, small, number, strict=True)
    ]


def _evaluate_elementwise(node: Node, arrays: list[Array], output: Value) -> Any:
    if node.attributes["function"] == "div" and output.dtype.kind in "iu":
        return _divide_integers(*arrays)
    return FUNCTIONS[node.attributes["function"]].evaluate(arrays, node.attributes)


def _divide_integers(a: Array, b: Array) -> Any:
    """The quotient rounded towards zero, exact for integers beyond the precision of a float."""
    down = np.floor_divide(a, b)
    return down + ((down < 0) & (down * b != a))


def slide_windows(
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    *,
    fill: float = 0,
) -> Any:
    """The windows of x [n, c, ...], as [n, c, outputs..., taps...]."""
    rank = len(kernel)
    padded = np.pad(x, [(0, 0), (0, 0), *padding], constant_values=fill) if any(map(any, padding)) else x
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    windows = sliding_window_view(padded, spans, axis=tuple(range(2, 2 + rank)))
    steps = (*(slice(None, None, s) for s in stride), *(slice(None, None, d) for d in dilation))
    return windows[(slice(None), slice(None), *steps)]


def _evaluate_conv(node: Node, arrays: list[Array], output: Value) -> Any:
    x, weight, options = arrays[0], arrays[1], node.attributes
    rank, groups = x.ndim - 2, options["groups"]
    taps = weight.shape[2:]
    windows = slide_windows(x, taps, options["stride"], options["padding"], options["dilation"])
    n, places = x.shape[0], windows.shape[2 : 2 + rank]
    columns = windows.reshape(n, groups, x.shape[1] // groups, *places, *taps)
    columns = np.moveaxis(columns, 2, 2 + rank).reshape(n, groups, math.prod(places), -1)
    rows = weight.reshape(groups, weight.shape[0] // groups, -1)
    product = np.matmul(rows[None], columns.swapaxes(-1, -2))
    return _add_bias(product.reshape(n, weight.shape[0], *places), arrays)


def _add_bias(y: Array, arrays: list[Array]) -> Any:
    """y [n, c, ...] plus the third array, if there is one."""
    return y + arrays[2].reshape(-1, *(1,) * (y.ndim - 2)) if len(arrays) > 2 else y


def _evaluate_conv_transpose(node: Node, arrays: list[Array], output: Value) -> Any:
    x, weight, options = arrays[0], arrays[1], node.attributes
    groups, stride, dilation = options["groups"], options["stride"], options["dilation"]
    n, c, *extents = x.shape
    taps = weight.shape[2:]
    spans = [
        (e - 1) * s + (k - 1) * d + 1 for e, s, k, d in zip(extents, stride, taps, dilation, strict=True)
    ]
    extra = options.get("output_padding", (0,) * len(extents))
    full = np.zeros((n, output.shape[1], *(s + e for s, e in zip(spans, extra, strict=True))), x.dtype)
    grouped = x.reshape(n, groups, c // groups, -1)
    split = weight.reshape(groups, c // groups, weight.shape[1], *taps)
    for tap in np.ndindex(*taps):
        part = np.einsum("ngcp,gco->ngop", grouped, split[(..., *tap)]).reshape(n, -1, *extents)
        places = [
            slice(t * d, t * d + (e - 1) * s + 1, s)
            for t, d, e, s in zip(tap, dilation, extents, stride, strict=True)
        ]
        full[(slice(None), slice(None), *places)] += part
    crops = [slice(before, size - after) for (before, after), size in
             zip(options["padding"], full.shape[2:], strict=True)]  # fmt: skip
    return _add_bias(full[(slice(None), slice(None), *crops)], arrays)


def _evaluate_matmul(node: Node, arrays: list[Array], output: Value) -> Any:
    a, b = arrays
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        a, b = a.astype(np.int64), b.astype(np.int64)
    return np.matmul(a, b)


def _softmax(x: Array, axis: int, zeros_masked_rows: bool = False) -> Any:
    top = x.max(axis, keepdims=True, initial=-np.inf)
    e = np.exp(x - top)
    y = np.asarray(e / e.sum(axis, keepdims=True))
    return np.where(top == -np.inf, 0, y) if zeros_masked_rows else y


def _evaluate_attention(node: Node, arrays: list[Array], output: Value) -> Any:
    q, k, v, *mask = arrays
    options, shared = node.attributes, q.shape[-3] // k.shape[-3] if q.ndim > 2 else 1
    if shared > 1:
        k, v = (np.repeat(x, shared, axis=-3) for x in (k, v))
    scores = np.matmul(q, k.swapaxes(-1, -2)) * options["scale"]
    if options.get("is_causal"):
        rows, columns = np.indices(scores.shape[-2:], sparse=True)
        scores = np.where(columns > rows, -np.inf, scores)
    if mask:
        scores = np.where(mask[0], scores, -np.inf) if mask[0].dtype == bool else scores + mask[0]
    return np.matmul(_softmax(scores, -1, zeros_masked_rows=True), v)


def _evaluate_norm(node: Node, arrays: list[Array], output: Value) -> Any:
    """A layer norm; an RMS norm, which does not subtract the mean."""
    x, *more = arrays
    axes = tuple(range(x.ndim - node.attributes["dimensions"], x.ndim))
    off = x - x.mean(axes, keepdims=True) if node.kind == "layer_norm" else x
    return _scale_and_shift(_divide_by_root(off, axes, node.attributes["eps"]), more)


def _divide_by_root(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    return np.asarray(x / np.sqrt(np.square(x).mean(axes, keepdims=True) + eps))


def _scale_and_shift(y: Array, more: Sequence[Array]) -> Any:
    """y times the first of some arrays plus the second, as far as there are any."""
    y = y * more[0] if more else y
    return y + more[1] if len(more) > 1 else y


def _evaluate_batch_norm(node: Node, arrays: list[Array], output: Value) -> Any:
    x = arrays[0]
    weight, bias, mean, variance = (a.reshape(-1, *(1,) * (x.ndim - 2)) for a in arrays[1:])
    return (x - mean) / np.sqrt(variance + node.attributes["eps"]) * weight + bias


def _evaluate_group_norm(node: Node, arrays: list[Array], output: Value) -> Any:
    x, *more = arrays
    grouped = x.reshape(x.shape[0], node.attributes["groups"], -1)
    off = grouped - grouped.mean(-1, keepdims=True)
    y = _divide_by_root(off, (-1,), node.attributes["eps"])
    return _scale_and_shift(y.reshape(x.shape), [a.reshape(-1, *(1,) * (x.ndim - 2)) for a in more])


_COMBINES: Mapping[str, Callable[..., Any]] = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
}


def _evaluate_reduce(node: Node, arrays: list[Array], output: Value) -> Any:
    options = node.attributes
    x, combine = arrays[0], options["combine"]
    initial = {"initial": _find_limit(combine, x.dtype)} if combine in ("max", "min") else {}
    axes = tuple(options["axes"])
    return np.asarray(_COMBINES[combine](x, axis=axes, keepdims=options["keepdims"], **initial))


def _find_limit(combine: str, dtype: np.dtype[Any]) -> Any:
    """The maximum or minimum of no elements: the smallest or largest number of the type, as in ONNX."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return limits.min if combine == "max" else limits.max
    return dtype.type(-np.inf if combine == "max" else np.inf) if dtype.kind != "b" else combine == "min"


def _evaluate_pool(node: Node, arrays: list[Array], output: Value) -> Any:
    x, options = arrays[0], node.attributes
    sizes = {key: options[key] for key in ("kernel", "stride", "padding", "dilation")}
    taps = tuple(range(x.ndim, 2 * x.ndim - 2))
    if node.kind == "max_pool":
        return np.asarray(slide_windows(x, **sizes, fill=-np.inf).max(taps))
    total = slide_windows(x, **sizes).sum(taps)
    if options["counts_padding"]:
        return total / math.prod(options["kernel"])
    return total / slide_windows(np.ones_like(x), **sizes).sum(taps)


def _evaluate_slice(node: Node, arrays: list[Array], output: Value) -> Any:
    options = node.attributes
    cut = slice(options["start"], options["stop"], options["step"])
    return arrays[0][(slice(None),) * options["axis"] + (cut,)]


def _evaluate_resize(node: Node, arrays: list[Array], output: Value) -> Any:
    y = arrays[0]
    for axis, factor in enumerate(node.attributes["factors"]):
        y = np.repeat(y, factor, axis)
    return y


_Evaluator = Callable[[Node, list[Array], Value], Array]
_EVALUATORS: Mapping[str, _Evaluator] = {
    "conv": _evaluate_conv,
    "conv_transpose": _evaluate_conv_transpose,
    "matmul": _evaluate_matmul,
    "attention": _evaluate_attention,
    "softmax": lambda node, arrays, _: _softmax(arrays[0], **node.attributes),
    "layer_norm": _evaluate_norm,
    "rms_norm": _evaluate_norm,
    "batch_norm": _evaluate_batch_norm,
    "group_norm": _evaluate_group_norm,
    "reduce": _evaluate_reduce,
    "max_pool": _evaluate_pool,
    "avg_pool": _evaluate_pool,
    "elementwise": _evaluate_elementwise,
    "cast": lambda _, arrays, __: arrays[0],
    "reshape": lambda _, arrays, output: arrays[0].reshape(output.shape),
    "permute": lambda node, arrays, _: arrays[0].transpose(node.attributes["order"]),
    "expand": lambda _, arrays, output: np.broadcast_to(arrays[0], output.shape),
    "slice": _evaluate_slice,
    "concat": lambda node, arrays, _: np.concatenate(arrays, node.attributes["axis"]),
    "gather": lambda node, arrays, _: np.take(arrays[0], arrays[1], node.attributes["axis"]),
    "pad": lambda node, arrays, _: np.pad(
        arrays[0], node.attributes["padding"], constant_values=node.attributes["value"]
    ),
    "resize": _evaluate_resize,
    "copy": lambda _, arrays, __: arrays[0],
}
