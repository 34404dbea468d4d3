"""Readers of convolutions, matrix products and attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ekc.errors import InvalidInput
from ekc.models.node_writer import NotExpressible
from ekc.models.torch_reader.reading import Handler, OperatorCall, ValueName

_FACTORS = (
    *("input", "weight", "bias", "self", "other", "tensor", "vec"),
    *("mat", "mat1", "mat2", "batch1", "batch2"),
)
"""Arguments of convolutions and products that PyTorch takes in one type only."""


def check_types(call: OperatorCall) -> None:
    """Refuse factors of several types: `torch.export` takes some that PyTorch refuses."""
    given = {
        name: call.torch_dtypes[x]
        for name in _FACTORS
        if name in call and isinstance(x := call[name], ValueName) and x in call.torch_dtypes
    }
    if len(set(given.values())) > 1:
        listed = ", ".join(f"{name} is {str(dtype).removeprefix('torch.')}" for name, dtype in given.items())
        raise InvalidInput(
            f"{call.name} ({call.target}): {listed}, and PyTorch takes one type; give example inputs of the "
            "type of the module's weights"
        )


def spread(entries: Any, count: int) -> tuple[int, ...]:
    """One entry for each of `count` dimensions: a number or a list of one holds for all."""
    listed = list(entries) if isinstance(entries, list | tuple) else [entries]
    return tuple(int(e) for e in (listed * count if len(listed) == 1 else listed))


def pad_convolution(
    padding: Any, kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """(before, after) of each spatial dimension, also of "same" and "valid"."""
    if padding == "valid":
        return ((0, 0),) * len(kernel)
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple((t // 2, t - t // 2) for t in totals)
    return tuple((p, p) for p in spread(padding, len(kernel)))


def read_convolution(call: OperatorCall) -> ValueName:
    """`conv1d` to `conv3d`, `convolution` and the transposed ones. Inputs without a batch get one."""
    check_types(call)
    weight, transposed = call["weight"], "transpose" in call.operator or call.get("transposed", False)
    kernel = call.get_shape(weight)[2:]
    rank = len(kernel)
    x, result = call["input"], call.result_shape
    if len(call.get_shape(x)) == rank + 1:
        x, result = call.reshape(x, (1, *call.get_shape(x))), (1, *result)
    dilation = spread(call["dilation"], rank)
    attributes: dict[str, Any] = {
        "stride": spread(call["stride"], rank),
        "padding": pad_convolution(call["padding"], kernel, dilation),
        "dilation": dilation,
        "groups": int(call["groups"]),
    }
    if not transposed:
        call.skip("output_padding")
    else:
        attributes["output_padding"] = spread(call["output_padding"], rank)
    inputs = [v for v in (x, weight, call.get("bias")) if v is not None]
    made = call.emit("conv_transpose" if transposed else "conv", inputs, result, **attributes)
    return call.reshape(made, call.result_shape)


def multiply(call: OperatorCall, a: ValueName, b: ValueName) -> ValueName:
    """A matrix product as `torch.matmul`, in the type of the result."""
    return call.multiply(call.cast(a, call.result_dtype), call.cast(b, call.result_dtype))


def read_linear(call: OperatorCall) -> ValueName:
    """`linear`: the weight, stored (out, in), is transposed."""
    check_types(call)
    weight = call["weight"]
    if len(call.get_shape(weight)) == 2:
        weight = call.permute(weight, (1, 0))
    made = multiply(call, call["input"], weight)
    return call.apply("add", made, call["bias"]) if call.get("bias") else made


def read_matmul(call: OperatorCall) -> ValueName:
    """`matmul`, `mm`, `bmm`, `mv` and `dot`."""
    check_types(call)
    a = call["self"]
    b = next(call[name] for name in ("other", "mat2", "vec", "tensor") if name in call)
    return multiply(call, a, b)


def read_matmul_and_add(call: OperatorCall) -> ValueName:
    """`addmm`, `baddbmm` and `addmv`: beta * self + alpha * product."""
    check_types(call)
    names = (("mat1", "mat2"), ("batch1", "batch2"), ("mat", "vec"))
    a, b = next((call[x], call[y]) for x, y in names if x in call)
    made = multiply(call, a, b)
    if call["alpha"] != 1:
        made = call.apply("mul", made, call["alpha"])
    if call["beta"] == 0:
        call.skip("self")
        return made
    added = call["self"] if call["beta"] == 1 else call.apply("mul", call["self"], call["beta"])
    return call.apply("add", made, added)


def read_attention(call: OperatorCall) -> ValueName:
    """`scaled_dot_product_attention`. Key and value heads that were repeated for the query heads are read
    once. A mask is added to the scores; False in one of type bool takes an element out."""
    q, k, v, mask = call["query"], call["key"], call["value"], call.get("attn_mask")
    if call.get("dropout_p", 0.0):
        raise NotExpressible("attention with dropout")
    scale = call.get("scale", 1.0 / np.sqrt(call.get_shape(q)[-1]))
    mask, is_causal = simplify_mask(call, mask, bool(call.get("is_causal", False)))
    if len(call.get_shape(q)) == 2 or len(call.get_shape(q)) == 3:
        q, k, v = (call.reshape(x, (*call.get_shape(x)[:-2], 1, *call.get_shape(x)[-2:])) for x in (q, k, v))
        if mask and len(call.get_shape(mask)) > 2:
            mask = call.reshape(mask, (*call.get_shape(mask)[:-2], 1, *call.get_shape(mask)[-2:]))
    q, k, v = broadcast_heads(call, q, k, v)
    shared = find_shared_heads(call, k), find_shared_heads(call, v)
    if shared[0] and shared[1] and call.get_shape(shared[0])[-3] == call.get_shape(shared[1])[-3]:
        k, v = shared
    inputs = [q, k, v] + ([mask] if mask else [])
    shape = (*call.get_shape(q)[:-1], call.get_shape(v)[-1])
    made = call.emit("attention", inputs, shape, scale=float(scale), is_causal=is_causal)
    return call.reshape(made, call.result_shape)


def broadcast_heads(
    call: OperatorCall, q: ValueName, k: ValueName, v: ValueName
) -> tuple[ValueName, ValueName, ValueName]:
    """Query, key and value [..., heads, length, size] with equal dimensions before the heads. Key and value
    have as many heads as each other, and each of them serves as many query heads as the next."""
    outer = np.broadcast_shapes(*(call.get_shape(x)[:-3] for x in (q, k, v)))
    own, shared, other = (call.get_shape(x)[-3] for x in (q, k, v))
    if call.get("enable_gqa", False):
        if shared != other:
            raise NotExpressible(f"attention with {shared} key heads and {other} value heads")
    else:
        own = max(own, shared, other)
        shared = other = 1 if shared == other == 1 else own
    heads = zip((q, k, v), (own, shared, other), strict=True)
    q, k, v = (call.expand(x, (*outer, count, *call.get_shape(x)[-2:])) for x, count in heads)
    return q, k, v


def simplify_mask(
    call: OperatorCall, mask: ValueName | None, is_causal: bool
) -> tuple[ValueName | None, bool]:
    """The mask and whether attention is causal: a constant mask of True alone is none, and one of the lower
    triangle is causal."""
    tensor = call.reading.tensors.get(mask) if mask else None
    if tensor is None or tensor.is_meta or str(tensor.dtype) != "torch.bool" or not tensor.numel():
        return mask, is_causal
    if bool(tensor.all()):
        return None, is_causal
    if not is_causal and bool((tensor == tensor.new_ones(tensor.shape).tril()).all()) and tensor.ndim > 1:
        rows, columns = tensor.shape[-2:]
        if (rows, columns) == (call.get_shape(call["query"])[-2], call.get_shape(call["key"])[-2]):
            return None, True
    return mask, is_causal


def find_shared_heads(call: OperatorCall, value: ValueName) -> ValueName | None:
    """The heads before each was repeated for several query heads: [b, h, t, d] -> [b, h, r, t, d] by
    expand -> [b, h * r, t, d]."""
    nodes = call.reading.producers
    chain = []
    current: str = value
    while (node := nodes.get(current)) is not None and node.kind in ("reshape", "expand", "copy"):
        chain.append(node)
        current = node.inputs[0]
        if node.kind == "expand":
            break
    if not chain or chain[-1].kind != "expand":
        return None
    before, after = call.get_shape(chain[-1].inputs[0]), call.get_shape(chain[-1].output)
    grew = [i for i, (x, y) in enumerate(zip(before, after, strict=False)) if x != y]
    rank = len(call.get_shape(value))
    if len(before) != len(after) or len(after) != rank + 1 or grew != [rank - 2]:
        return None
    heads = (*before[: rank - 2], *before[rank - 1 :])
    joined = (*after[: rank - 3], after[rank - 3] * after[rank - 2], *after[rank - 1 :])
    if joined != call.get_shape(value):
        return None
    source = nodes.get(chain[-1].inputs[0])
    if source is not None and source.kind == "reshape" and call.get_shape(source.inputs[0]) == heads:
        return ValueName(source.inputs[0])
    return call.reshape(ValueName(chain[-1].inputs[0]), heads)


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), read_convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), read_convolution),
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot"), read_matmul),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), read_matmul_and_add),
    "linear": read_linear,
    "scaled_dot_product_attention": read_attention,
}
