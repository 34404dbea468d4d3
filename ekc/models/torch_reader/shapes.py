"""Readers of operators that move elements: views, slices, joins, gathers, padding and resizing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ekc.models.node_writer import NotExpressible
from ekc.models.torch_reader.reading import (
    Handler,
    OperatorCall,
    Outputs,
    ValueName,
    as_tensor,
)


def read_reshape(call: OperatorCall) -> ValueName:
    """Operators whose result has the same elements in the same order."""
    return call.reshape(call["self"], call.result_shape)


def read_permute(call: OperatorCall) -> ValueName:
    """`permute`."""
    return call.permute(call["self"], [call.axis(d, call["self"]) for d in call["dims"]])


def read_transpose(call: OperatorCall) -> ValueName:
    """`transpose` and `swapaxes` of two dimensions, and `t`."""
    x = call["self"]
    rank = len(call.get_shape(x))
    first, second = call.get("dim0", call.get("axis0", 0)), call.get("dim1", call.get("axis1", 1))
    order = list(range(rank))
    if rank > 1:
        i, j = call.axis(first, x), call.axis(second, x)
        order[i], order[j] = order[j], order[i]
    return call.permute(x, order)


def read_expand(call: OperatorCall) -> ValueName:
    """`expand` and `expand_as`."""
    return call.expand(call["self"], call.result_shape)


def read_slice(call: OperatorCall) -> ValueName:
    """`slice`."""
    x = call["self"]
    axis = call.axis(call["dim"], x)
    start, stop, _ = slice(call.get("start"), call.get("end")).indices(call.get_shape(x)[axis])
    return call.slice(x, axis, start, max(start, stop), call["step"])


def read_select(call: OperatorCall) -> ValueName:
    """`select`: one index of a dimension, which disappears."""
    x = call["self"]
    axis = call.axis(call["dim"], x)
    index = int(call["index"]) % call.get_shape(x)[axis]
    return call.reshape(call.slice(x, axis, index, index + 1), call.result_shape)


def read_split(call: OperatorCall) -> Outputs:
    """`split`, `split_with_sizes`, `chunk` and `unbind`: a slice for each result."""
    x = call["self"]
    axis = call.axis(call["dim"], x)
    drops = call.operator == "unbind"
    parts, start = [], 0
    for result in call.result:
        shape = tuple(int(e) for e in result.shape)
        size = 1 if drops else shape[axis]
        parts.append(call.reshape(call.slice(x, axis, start, start + size), shape))
        start += size
    return tuple(parts)


def read_cat(call: OperatorCall) -> ValueName:
    """`cat`; a tensor of shape (0,) is skipped, as in PyTorch."""
    values = [call.cast(v, call.result_dtype) for v in call["tensors"]]
    return call.concat(values, int(call["dim"]) % max(1, len(call.result_shape)))


def read_stack(call: OperatorCall) -> ValueName:
    """`stack`: each tensor gets the new dimension."""
    axis = int(call["dim"]) % len(call.result_shape)
    parts = []
    for value in call["tensors"]:
        shape = call.get_shape(value)
        parts.append(call.reshape(call.cast(value, call.result_dtype), (*shape[:axis], 1, *shape[axis:])))
    return call.concat(parts, axis)


def read_repeat(call: OperatorCall) -> ValueName:
    """`repeat` and `tile`: a dimension of the repeats before each, broadcast, then joined."""
    x = call["self"]
    counts = list(call.get("repeats", call.get("dims")))
    rank = max(len(counts), len(call.get_shape(x)))
    counts = [1] * (rank - len(counts)) + counts
    shape = (1,) * (rank - len(call.get_shape(x))) + call.get_shape(x)
    pairs = list(zip(counts, shape, strict=True))
    apart = call.reshape(x, [e for _, size in pairs for e in (1, size)])
    wide = call.expand(apart, [e for count, size in pairs for e in (count, size)])
    return call.reshape(wide, call.result_shape)


def read_roll(call: OperatorCall) -> ValueName:
    """`roll`: the end of a dimension comes before its begin."""
    x, axes = call["self"], call.get("dims", [])
    made = x if axes else call.reshape(x, (int(np.prod(call.get_shape(x))),))
    shifts = call["shifts"] if isinstance(call["shifts"], list | tuple) else [call["shifts"]]
    for shift, axis in zip(shifts, axes or [0], strict=True):
        i = call.axis(axis, made)
        size = call.get_shape(made)[i]
        cut = -shift % size if size else 0
        if cut:
            made = call.concat([call.slice(made, i, cut, size), call.slice(made, i, 0, cut)], i)
    return call.reshape(made, call.result_shape)


def read_unfold(call: OperatorCall) -> ValueName:
    """`unfold` of a tensor: windows of a dimension, their elements in a new last dimension."""
    x, size, step = call["self"], int(call["size"]), int(call["step"])
    axis = call.axis(call["dimension"], x)
    shape = call.get_shape(x)
    count = (shape[axis] - size) // step + 1
    apart = (*shape[:axis], count, size, *shape[axis + 1 :])
    if size == step:
        made = call.reshape(call.slice(x, axis, 0, count * size), apart)
    else:
        places = call.constant("places", np.arange(count)[:, None] * step + np.arange(size)[None])
        made = call.emit("gather", (x, places), apart, axis=axis)
    order = [i for i in range(len(apart)) if i != axis + 1]
    return call.permute(made, [*order, axis + 1])


def read_scatter(call: OperatorCall) -> ValueName:
    """`select_scatter` and `slice_scatter` with step 1: the parts before and after `src` stay."""
    x: ValueName = call["self"]
    source = call["src"]
    axis = call.axis(call["dim"], x)
    size = call.get_shape(x)[axis]
    if call.get("step", 1) != 1:
        raise NotExpressible("a slice with a step that is written to")
    start, stop, _ = slice(call.get("start"), call.get("end")).indices(size)
    if "index" in call:
        start = int(call["index"]) % size
        stop = start + 1
    stop = max(start, stop)
    shape = (*call.get_shape(x)[:axis], stop - start, *call.get_shape(x)[axis + 1 :])
    middle = call.expand(call.reshape(call.cast(source, call.result_dtype), shape), shape)
    return call.concat([call.slice(x, axis, 0, start), middle, call.slice(x, axis, stop, size)], axis)


def read_embedding(call: OperatorCall) -> ValueName:
    """`embedding`: rows of the weight. Its other arguments are for gradients."""
    return call.emit("gather", (call["weight"], call["indices"]), call.result_shape, axis=0)


def read_index_select(call: OperatorCall) -> ValueName:
    """`index_select`, of a scalar too: that has one element."""
    x, index = as_tensor(call, call["self"]), as_tensor(call, call["index"])
    axis = call.axis(call["dim"], x)
    shape = (*call.get_shape(x)[:axis], *call.get_shape(index), *call.get_shape(x)[axis + 1 :])
    return call.reshape(call.emit("gather", (x, index), shape, axis=axis), call.result_shape)


def read_index(call: OperatorCall) -> ValueName:
    """`x[indices]` with one tensor of integers."""
    given = [(axis, index) for axis, index in enumerate(call["indices"]) if index is not None]
    if len(given) != 1:
        raise NotExpressible(f"indexing by {len(given)} tensors at once; ekc reads one")
    axis, index = given[0]
    if call.get_dtype(index) == np.dtype(bool):
        raise NotExpressible("indexing by a mask: its shape depends on data")
    return call.emit("gather", (call["self"], index), call.result_shape, axis=axis)


def read_pad(call: OperatorCall) -> ValueName:
    """`constant_pad_nd` and `pad`; the entries begin at the last dimension. Negative ones take away."""
    if call.get("mode", "constant") != "constant":
        raise NotExpressible(f"padding by {call['mode']!r}; ekc pads with a number")
    x: ValueName = call["self"]
    entries = [int(entry) for entry in call["pad"]]
    pairs = list(zip(entries[::2], entries[1::2], strict=True))[::-1]
    untouched = [(0, 0)] * (len(call.get_shape(x)) - len(pairs))
    return call.pad(x, [*untouched, *pairs], float(call.get("value", 0.0)))


def read_nearest(call: OperatorCall) -> ValueName:
    """Sizes changed by the nearest neighbour: whole factors up are a resize, whole factors down slices."""
    x = call.get("self", call.get("input"))
    lengths = zip(call.get_shape(x), call.result_shape, [1.0, 1.0, *list_scales(call)], strict=True)
    return call.resize(x, [compute_nearest_rows(*length) for length in lengths])


def list_scales(call: OperatorCall) -> list[float | None]:
    """The scale of each spatial dimension; None where the sizes give it."""
    rank = len(call.result_shape) - 2
    names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[rank]
    return list(call.get("scale_factors", [call.get(name) for name in names]))


def compute_nearest_rows(before: int, after: int, scale: float | None) -> np.ndarray[Any, Any]:
    """The row that each row of the result is, in the float32 arithmetic of PyTorch."""
    step = np.float32(1 / scale) if scale else np.float32(before) / np.float32(after)
    rows: np.ndarray[Any, Any] = np.floor(np.arange(after, dtype=np.float32) * step).astype(np.int64)
    return rows.clip(max=before - 1)


def read_copy(call: OperatorCall) -> ValueName:
    """`copy`: the other tensor in the type and shape of the first."""
    return call.expand(call.cast(call["src"], call.result_dtype), call.result_shape)


def read_clone(call: OperatorCall) -> Outputs:
    """`clone` and `contiguous`: a copy where the order in memory changes, else the value itself."""
    x: ValueName = call["self"]
    asked: Any = call.get("memory_format")
    if asked is None or "contiguous_format" not in str(asked) or not changes_order(call, x):
        return x
    return call.emit("copy", (x,), call.result_shape)


def changes_order(call: OperatorCall, value: ValueName) -> bool:
    """Whether the value is a permuted, expanded or sliced view of what a node wrote."""
    nodes = call.reading.producers
    current: str = value
    while (node := nodes.get(current)) is not None and node.kind in ("reshape", "permute", "expand", "slice"):
        if node.kind in ("permute", "expand", "slice"):
            return True
        current = node.inputs[0]
    return False


SAME_ORDER = "view reshape _unsafe_view flatten unsqueeze squeeze unflatten reshape_as view_as"
VIEWS = frozenset(
    (SAME_ORDER + " permute transpose swapaxes swapdims t expand expand_as broadcast_to slice select").split()
)
"""Operators that name the same elements differently."""
IDENTITIES = frozenset(
    ("alias", "detach", "lift", "lift_fresh", "lift_fresh_copy", "positive", "resolve_conj", "resolve_neg")
)
KEEP_ELEMENTS = VIEWS | IDENTITIES
HANDLERS: Mapping[str, Handler] = {
    **{name: lambda call: call["self"] for name in IDENTITIES},
    **dict.fromkeys(SAME_ORDER.split(), read_reshape),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims", "t"), read_transpose),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), read_expand),
    **dict.fromkeys(
        ("split", "split_with_sizes", "chunk", "unbind", "unsafe_split", "unsafe_chunk"), read_split
    ),
    **dict.fromkeys(("repeat", "tile"), read_repeat),
    **dict.fromkeys(("select_scatter", "slice_scatter"), read_scatter),
    **dict.fromkeys(("constant_pad_nd", "pad"), read_pad),
    **dict.fromkeys(("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"), read_nearest),
    **dict.fromkeys(("clone", "contiguous"), read_clone),
    "copy": read_copy,
    "permute": read_permute,
    "slice": read_slice,
    "select": read_select,
    "cat": read_cat,
    "stack": read_stack,
    "roll": read_roll,
    "unfold": read_unfold,
    "embedding": read_embedding,
    "index_select": read_index_select,
    "index": read_index,
}
