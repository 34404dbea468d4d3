"""Normalizations, softmax and attention of ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ekc.models.onnx_reader import import_onnx
from ekc.models.onnx_reader.operation import NotExpressible, Operation


def read_batch_norm(op: Operation) -> None:
    """BatchNormalization in inference."""
    if op.get("training_mode", 0):
        raise NotExpressible("batch normalization in training")
    op.finish("batch_norm", [op.input(index) for index in range(5)], eps=op.get("epsilon", 1e-5))


def read_layer_norm(op: Operation) -> None:
    """LayerNormalization; weights that broadcast over the normalized dimensions are expanded."""
    if op.is_used(1) or op.is_used(2):
        raise NotExpressible("a layer norm that returns its mean or deviation")
    axis = op.axis(-1)
    weights = [_expand_weight(op, index, op.shape()[axis:]) for index in (1, 2) if op.has(index)]
    eps = op.get("epsilon", 1e-5)
    op.finish("layer_norm", [op.input(0), *weights], dimensions=op.rank() - axis, eps=eps)


def read_rms_norm(op: Operation) -> None:
    """RMSNormalization, and SimplifiedLayerNormalization of ONNX Runtime."""
    if op.is_used(1):
        raise NotExpressible("an RMS norm that returns its deviation")
    axis = op.axis(-1)
    weight = _expand_weight(op, 1, op.shape()[axis:])
    eps = op.get("epsilon", 1e-5)
    op.finish("rms_norm", [op.input(0), weight], dimensions=op.rank() - axis, eps=eps)


def _expand_weight(op: Operation, index: int, shape: tuple[int, ...]) -> str:
    weight, own = op.input(index), op.shape(index)
    if own == shape:
        return weight
    trimmed = own[len(own) - len(shape) :] if len(own) > len(shape) else own
    if np.prod(own) != np.prod(trimmed):
        raise NotExpressible("a weight that differs from row to row")
    weight = op.reshape(weight, trimmed)
    return weight if trimmed == shape else op.add("expand", [weight], shape)


def read_group_norm(op: Operation) -> None:
    """GroupNormalization. That of opset 18 to 20, with weights for groups, is refused by onnx.checker."""
    names = [op.input(index) for index in range(3)]
    op.finish("group_norm", names, groups=int(op.get("num_groups")), eps=op.get("epsilon", 1e-5))


def read_instance_norm(op: Operation) -> None:
    """InstanceNormalization: a group for each channel."""
    names = [op.input(index) for index in range(3)]
    op.finish("group_norm", names, groups=op.shape()[1], eps=op.get("epsilon", 1e-5))


def read_softmax(op: Operation) -> None:
    """Softmax over one axis."""
    op.finish("softmax", [op.input(0)], axis=op.axis(-1))


def read_attention(op: Operation) -> None:
    """Attention of the standard domain; with a cache, keys and values are joined first."""
    limits = [op.get(name, -1) for name in ("left_window_size", "right_window_size")]
    if op.get("softcap", 0.0) or op.is_used(3) or op.has(6) or limits != [-1, -1]:
        raise NotExpressible("attention with a soft cap, a window, lengths or its scores as an output")
    if op.get("softmax_precision", 1) == import_onnx().TensorProto.DOUBLE:
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
    value = op.add("attention", names, (*shapes[0][:-1], shapes[2][-1]), **attributes)
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
        joined = op.add("concat", [past, value], (n, h, old + new, d), axis=2)
    if op.is_used(output):
        op.alias(joined, output)
    return joined


HANDLERS: dict[str, Callable[[Operation], Any]] = {
    **{"BatchNormalization": read_batch_norm, "LayerNormalization": read_layer_norm},
    **{"RMSNormalization": read_rms_norm, "GroupNormalization": read_group_norm},
    **{"InstanceNormalization": read_instance_norm, "Softmax": read_softmax, "Attention": read_attention},
}
