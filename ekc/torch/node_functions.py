"""Functions of PyTorch for the kinds of node of `ekc.models.graph`.

`apply_node` works on tensors, and on the proxies of `torch.fx`, which record the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from ekc.errors import InvalidInput
from ekc.models.functions import FUNCTIONS
from ekc.models.graph import Node, Value
from ekc.models.torch_reader.reading import ValueName

KEPT = "kept"
"""Attribute of an opaque node that `keep_node` made: the node itself."""
View = tuple[str, Any]
"""A view of a `LayerInput`: its kind and its argument."""


def find_torch_dtype(name: str) -> torch.dtype:
    """The type of PyTorch with the name of a NumPy type. Raises `InvalidInput` where there is none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise InvalidInput(f"PyTorch has no element type {name}; the nearest is torch.float32")
    return found


def apply_view(x: Any, view: View) -> Any:
    """A tensor seen through one view."""
    match view:
        case ("reshape", shape):
            return x.reshape(tuple(shape))
        case ("permute", order):
            return x.permute(tuple(order))
        case ("expand", shape):
            return x.expand(tuple(shape))
        case ("cast", dtype):
            return x.to(find_torch_dtype(str(dtype)))
    raise InvalidInput(f"view: no kind {view[0]!r}; kinds are reshape, permute, expand, cast")


def apply_node(node: Node, values: Mapping[str, Value], inputs: Sequence[Any]) -> Any:
    """The output of a node, computed by PyTorch. `values` are those of the graph, `inputs` the tensors.

    Raises `InvalidInput` for a node that PyTorch has no function for.
    """
    if node.kind == "opaque":
        return _call_opaque(node, values, inputs)
    if node.kind == "elementwise":
        return _apply_function(node, inputs)
    return _FUNCTIONS[node.kind](node, values, *inputs)


def keep_node(node: Node, reason: str) -> Node:
    """The node as an opaque one: no layer covers it, and PyTorch computes it as before."""
    return replace(node, kind="opaque", attributes={"target": node.target, "reason": reason, KEPT: node})


def _call_opaque(node: Node, values: Mapping[str, Value], inputs: Sequence[Any]) -> Any:
    """Call the framework's operator as the module did, with these tensors."""
    if KEPT in node.attributes:
        return apply_node(node.attributes[KEPT], values, inputs)
    if "call" not in node.attributes:
        raise InvalidInput(f"{node.name}: {node.target} is no operator of PyTorch")
    target, args, kwargs = node.attributes["call"]
    # Fusion may have renamed the inputs; their order is that of the names in the call.
    names = dict.fromkeys(leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, ValueName))
    tensors = dict(zip(names, inputs, strict=True))
    args, kwargs = pytree.tree_map(
        lambda leaf: tensors[leaf] if isinstance(leaf, ValueName) else leaf, (args, kwargs)
    )
    result, index = target(*args, **kwargs), node.attributes.get("index")
    return result if index is None else result[index]


def _mask_causal(x: Any, offset: int) -> Any:
    return torch.where(torch.ones_like(x, dtype=torch.bool).tril(offset), x, float("-inf"))


def _format_padding(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """(before, after) of each of the last dimensions as `torch.nn.functional.pad` takes them: last first."""
    return [extent for pair in reversed(pairs) for extent in pair]


def _pad_asymmetric(x: Any, pairs: Sequence[tuple[int, int]], value: float) -> tuple[Any, tuple[int, ...]]:
    """The tensor and the padding that is left to the function: both sides alike, or none."""
    if all(before == after for before, after in pairs):
        return x, tuple(before for before, _ in pairs)
    return F.pad(x, _format_padding(pairs), value=value), (0,) * len(pairs)


def _convolve(node: Node, values: Mapping[str, Value], x: Any, weight: Any, bias: Any = None) -> Any:
    own = node.attributes
    function = (torch.conv1d, torch.conv2d, torch.conv3d)[len(own["stride"]) - 1]
    x, padding = _pad_asymmetric(x, own["padding"], 0.0)
    return function(x, weight, bias, tuple(own["stride"]), padding, tuple(own["dilation"]), own["groups"])


def _convolve_transposed(
    node: Node, values: Mapping[str, Value], x: Any, weight: Any, bias: Any = None
) -> Any:
    own = node.attributes
    functions = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
    if any(before != after for before, after in own["padding"]):
        raise InvalidInput(
            f"{node.name}: a transposed convolution with padding {own['padding']}; "
            "PyTorch has the same on both sides only"
        )
    padding = tuple(before for before, _ in own["padding"])
    return functions[len(own["stride"]) - 1](
        x,
        weight,
        bias,
        tuple(own["stride"]),
        padding,
        tuple(own["output_padding"]),
        own["groups"],
        tuple(own["dilation"]),
    )


def _attend(node: Node, values: Mapping[str, Value], q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    own = node.attributes
    heads, shared = values[node.inputs[0]].shape[-3], values[node.inputs[1]].shape[-3]
    options = {"attn_mask": mask, "is_causal": own["is_causal"], "scale": own["scale"]}
    if heads != shared:
        options["enable_gqa"] = True
    return F.scaled_dot_product_attention(q, k, v, **options)


def _softmax(node: Node, values: Mapping[str, Value], x: Any) -> Any:
    axis = node.attributes["axis"]
    found = torch.softmax(x, axis)
    if not node.attributes.get("zeros_masked_rows"):
        return found
    return found.masked_fill((x == float("-inf")).all(axis, keepdim=True), 0.0)


def _normalize_layer(
    node: Node, values: Mapping[str, Value], x: Any, weight: Any = None, bias: Any = None
) -> Any:
    shape = values[node.inputs[0]].shape[-node.attributes["dimensions"] :]
    return F.layer_norm(x, shape, weight, bias, node.attributes["eps"])


def _normalize_rms(node: Node, values: Mapping[str, Value], x: Any, weight: Any = None) -> Any:
    shape = values[node.inputs[0]].shape[-node.attributes["dimensions"] :]
    return F.rms_norm(x, shape, weight, node.attributes["eps"])


def _normalize_batch(
    node: Node, values: Mapping[str, Value], x: Any, weight: Any, bias: Any, mean: Any, variance: Any
) -> Any:
    return F.batch_norm(x, mean, variance, weight, bias, eps=node.attributes["eps"])


def _normalize_group(
    node: Node, values: Mapping[str, Value], x: Any, weight: Any = None, bias: Any = None
) -> Any:
    return F.group_norm(x, node.attributes["groups"], weight, bias, node.attributes["eps"])


def _reduce(node: Node, values: Mapping[str, Value], x: Any) -> Any:
    axes, keepdims = tuple(node.attributes["axes"]), bool(node.attributes["keepdims"])
    combine = node.attributes["combine"]
    if combine == "prod":
        for axis in sorted(axes, reverse=True):
            x = torch.prod(x, axis, keepdim=keepdims)
        return x
    functions = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}
    return functions[combine](x, axes, keepdim=keepdims)


def _pool_max(node: Node, values: Mapping[str, Value], x: Any) -> Any:
    own = node.attributes
    functions = (torch.max_pool1d, torch.max_pool2d, torch.max_pool3d)
    pairs = own["padding"]
    if any(2 * max(pair) > extent for pair, extent in zip(pairs, own["kernel"], strict=True)):
        x, padding = F.pad(x, _format_padding(pairs), value=float("-inf")), (0,) * len(pairs)
    else:
        x, padding = _pad_asymmetric(x, pairs, float("-inf"))
    kernel, stride, dilation = (tuple(own[name]) for name in ("kernel", "stride", "dilation"))
    return functions[len(kernel) - 1](x, kernel, stride, padding, dilation)


def _pool_avg(node: Node, values: Mapping[str, Value], x: Any) -> Any:
    own = node.attributes
    if any(extent != 1 for extent in own["dilation"]):
        raise InvalidInput(f"{node.name}: an average over a dilated window; PyTorch has none")
    function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(own["kernel"]) - 1]
    kernel, stride, pairs = tuple(own["kernel"]), tuple(own["stride"]), own["padding"]
    is_plain = all(a == b and 2 * a <= extent for (a, b), extent in zip(pairs, kernel, strict=True))
    if is_plain:
        padding = tuple(before for before, _ in pairs)
        return function(x, kernel, stride, padding, count_include_pad=bool(own["counts_padding"]))
    padded = function(F.pad(x, _format_padding(pairs)), kernel, stride)
    if own["counts_padding"]:
        return padded
    return padded / function(F.pad(torch.ones_like(x), _format_padding(pairs)), kernel, stride)


def _slice(node: Node, values: Mapping[str, Value], x: Any) -> Any:
    own = node.attributes
    if own["step"] < 1:
        raise InvalidInput(f"{node.name}: a slice with step {own['step']}; PyTorch has steps from 1")
    return x[(slice(None),) * own["axis"] + (slice(own["start"], own["stop"], own["step"]),)]


def _pad(node: Node, values: Mapping[str, Value], x: Any) -> Any:
    return F.pad(x, _format_padding(node.attributes["padding"]), value=node.attributes["value"])


def _resize(node: Node, values: Mapping[str, Value], x: Any) -> Any:
    factors, value = node.attributes["factors"], values[node.inputs[0]]
    if 3 <= len(factors) <= 5 and factors[0] == factors[1] == 1 and value.dtype.kind not in "biu":
        return F.interpolate(x, scale_factor=tuple(map(float, factors[2:])), mode="nearest")
    for axis, factor in enumerate(factors):
        if factor != 1:
            x = torch.repeat_interleave(x, int(factor), axis)
    return x


def _gather(node: Node, values: Mapping[str, Value], x: Any, indices: Any) -> Any:
    # Not `F.embedding`, which refuses indices that count from the end.
    return x[(slice(None),) * node.attributes["axis"] + (indices,)]


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "conv": _convolve,
    "conv_transpose": _convolve_transposed,
    "matmul": lambda node, values, a, b: torch.matmul(a, b),
    "attention": _attend,
    "softmax": _softmax,
    "layer_norm": _normalize_layer,
    "rms_norm": _normalize_rms,
    "batch_norm": _normalize_batch,
    "group_norm": _normalize_group,
    "reduce": _reduce,
    "max_pool": _pool_max,
    "avg_pool": _pool_avg,
    "cast": lambda node, values, x: x.to(find_torch_dtype(values[node.output].dtype.name)),
    "reshape": lambda node, values, x: x.reshape(values[node.output].shape),
    "permute": lambda node, values, x: x.permute(tuple(node.attributes["order"])),
    "expand": lambda node, values, x: x.expand(values[node.output].shape),
    "slice": _slice,
    "concat": lambda node, values, *xs: torch.cat(xs, node.attributes["axis"]),
    "gather": _gather,
    "pad": _pad,
    "resize": _resize,
    "copy": lambda node, values, x: x.clone(memory_format=torch.contiguous_format),
}
"""Kind -> function of (node, values of the graph, inputs)."""

_OWN_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "causal_mask": _mask_causal,
}


def _apply_function(node: Node, inputs: Sequence[Any]) -> Any:
    """An elementwise node by the function of PyTorch with its name."""
    function = FUNCTIONS[node.attributes["function"]]
    call = (
        _OWN_FUNCTIONS.get(function.name)
        or getattr(torch, function.torch, None)
        or getattr(F, function.torch)
    )
    return call(*inputs, *function.list_parameters(node.attributes))
