"""Operators of PyTorch read into graphs: the graph in NumPy gives what PyTorch gives on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from tests.pytorch.reading import Function, check_module, list_opaque, make_input  # noqa: E402

X = make_input((2, 6, 4, 8))
Y = make_input((2, 6, 4, 8), seed=1)
POSITIVE = X.abs() + 0.1
MASK = X > 0.3
INDICES = torch.tensor([[2, 0], [5, 2]])
IMAGE = make_input((2, 6, 11, 12))

GROUPS: dict[str, tuple[tuple[Any, ...], list[Callable[..., Any]]]] = {
    "functions of one tensor": (
        (X,),
        [
            torch.relu,
            F.silu,
            torch.sigmoid,
            torch.tanh,
            torch.erf,
            torch.exp,
            lambda x: -x,
            F.gelu,
            lambda x: F.gelu(x, approximate="tanh"),
            F.hardswish,
            F.hardsigmoid,
            torch.reciprocal,
            torch.square,
            torch.abs,
            torch.sin,
            torch.cos,
            torch.floor,
            torch.ceil,
            torch.round,
            torch.sign,
            F.relu6,
            F.leaky_relu,
            F.elu,
            F.selu,
            torch.isnan,
            lambda x: x.max(-1)[0] + x.min(1, keepdim=True)[0].amax(-1),
            F.mish,
            F.softplus,
            lambda x: F.softplus(x, beta=2.0, threshold=1.0),
            F.softsign,
            F.tanhshrink,
            lambda x: F.hardtanh(x, -0.5, 0.25),
            lambda x: x.clamp(min=-0.2),
            lambda x: x.clamp(max=0.7),
            lambda x: x.clamp_min(0.0),
            lambda x: F.threshold(x, 0.1, -3.0),
            torch.exp2,
            torch.expm1,
            F.glu,
            lambda x: F.dropout(x, 0.5, training=False),
            lambda x: F.celu(x, 0.7),
        ],
    ),
    "functions of positive numbers": (
        (POSITIVE,),
        [
            torch.log,
            torch.sqrt,
            torch.rsqrt,
            torch.log2,
            torch.log10,
            torch.log1p,
            lambda x: x**2,
            lambda x: x**3,
            lambda x: x**0.5,
            lambda x: x**-0.5,
            lambda x: x**-1,
            lambda x: x**1.7,
            lambda x: 2.0**x,
            lambda x: x % 0.75,
        ],
    ),
    "functions of two tensors": (
        (X, Y),
        [
            torch.add,
            torch.sub,
            torch.mul,
            torch.div,
            torch.maximum,
            torch.minimum,
            torch.max,
            lambda x, y: torch.add(x, y, alpha=2),
            lambda x, y: torch.sub(x, y, alpha=0.5),
            lambda x, y: torch.rsub(x, y),
            lambda x, y: 1.0 - x,
            lambda x, y: x * 2 + 1,
            lambda x, y: x / 3,
            lambda x, y: x > y,
            lambda x, y: x >= 0,
            lambda x, y: (x < y) & (x != 0) | ~(y <= 1),
            lambda x, y: torch.eq(x, y),
            lambda x, y: torch.where(x > y, x, 0.0),
            lambda x, y: x.masked_fill(y > 0, float("-inf")),
            lambda x, y: torch.addcmul(x, x, y, value=0.5),
            lambda x, y: torch.addcdiv(x, x, y.abs() + 1),
            lambda x, y: torch.lerp(x, y, 0.3),
            lambda x, y: torch.div(x, y.abs() + 0.5, rounding_mode="floor"),
            lambda x, y: (x > 0).float() + (y > 0),
            lambda x, y: F.prelu(x, torch.full((6,), 0.2)),
            lambda x, y: torch.logical_and(x > 0, y),
            lambda x, y: x.clamp(min=y),
        ],
    ),
    "views": (
        (X, Y),
        [
            lambda x, y: x.view(2, 24, 8),
            lambda x, y: x.flatten(1),
            lambda x, y: x.permute(0, -1, 1, 2),
            lambda x, y: x.transpose(1, -1).reshape(2, -1),
            lambda x, y: x.mT.contiguous().view(-1),
            lambda x, y: x[0, 0].t(),
            lambda x, y: x.unsqueeze(-1).squeeze(-1)[:, None],
            lambda x, y: x[:, :1].expand(-1, 5, -1, -1),
            lambda x, y: x[:, 1:5:2, -3:],
            lambda x, y: x[:, 2, ..., -1],
            lambda x, y: x.chunk(4, 1)[2],
            lambda x, y: torch.cat(x.split([1, 2, 3], 1)[::-1], 1),
            lambda x, y: torch.stack(x.unbind(1), -1),
            lambda x, y: torch.stack([x, y], 1),
            lambda x, y: torch.cat([x, y], -1),
            lambda x, y: x.unflatten(1, (2, 3)).movedim(1, -1),
            lambda x, y: x.narrow(-1, 2, 3),
            lambda x, y: x.repeat(1, 2, 1, 3),
            lambda x, y: x.repeat_interleave(3, 1),
            lambda x, y: x.roll((1, -3), (2, 3)),
            lambda x, y: F.pad(x, (1, 2, 0, 3), value=2.0),
            lambda x, y: F.pad(x, (-1, 1)),
            lambda x, y: x.swapaxes(0, 1).clone(),
            lambda x, y: x[0, 0, 0].tile(2),
            lambda x, y: x.expand_as(y).detach(),
            lambda x, y: torch.select_scatter(x, y[:, 0], 1, 3),
            lambda x, y: torch.slice_scatter(x, y[:, :2], 1, 2, 4),
            lambda x, y: x.unfold(-1, 4, 4),
            lambda x, y: x.unfold(1, 3, 2),
        ],
    ),
    "reductions": (
        (X,),
        [
            lambda x: x.sum(),
            lambda x: x.sum(-1),
            lambda x: x.mean((2, 3)),
            lambda x: x.mean(1, keepdim=True),
            lambda x: x.amax(-1),
            lambda x: x.amin((0, 2)),
            lambda x: x.max(),
            lambda x: x.prod(-1),
            lambda x: x.var(-1),
            lambda x: x.var((1, 2), unbiased=False, keepdim=True),
            lambda x: x.std(-1),
            lambda x: torch.cat(torch.var_mean(x, -1), 0),
            lambda x: x.norm(dim=-1),
            lambda x: F.normalize(x, dim=1),
            lambda x: torch.softmax(x, -1),
            lambda x: F.softmax(x, 1),
            lambda x: F.log_softmax(x, -1),
            lambda x: torch.logsumexp(x, 1),
            lambda x: (x > 0).sum(-1),
            lambda x: x.half().softmax(-1, dtype=torch.float32),
        ],
    ),
    "pools and resizing": (
        (IMAGE,),
        [
            lambda x: F.max_pool2d(x, 3, 2, 1),
            lambda x: F.max_pool2d(x, 2),
            lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
            lambda x: F.max_pool2d(x, (2, 3), dilation=2),
            lambda x: F.avg_pool2d(x, 3, 2, 1),
            lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True, count_include_pad=False),
            lambda x: F.max_pool1d(x.flatten(2), 4),
            lambda x: F.avg_pool1d(x.flatten(2), 4),
            lambda x: F.avg_pool2d(x[0], 2),
            lambda x: F.adaptive_avg_pool2d(x, 1),
            lambda x: F.adaptive_avg_pool2d(x, (11, 3)),
            lambda x: F.adaptive_avg_pool2d(x, (None, 12)),
            lambda x: F.adaptive_avg_pool1d(x[:, :, 0], 4),
            lambda x: F.adaptive_max_pool2d(x, 1),
            lambda x: F.interpolate(x, scale_factor=2),
            lambda x: F.interpolate(x, size=(33, 12)),
            lambda x: F.pixel_shuffle(x[:, :4], 2),
            lambda x: F.interpolate(x[:, :, 0], scale_factor=3.0),
            lambda x: F.interpolate(x, size=(11, 4)),
            lambda x: F.interpolate(x, size=(22, 3)),
            lambda x: F.interpolate(x, scale_factor=(1.0, 0.25)),
            lambda x: F.interpolate(x, scale_factor=0.3),
            lambda x: F.interpolate(x[:, :, :1, :2], scale_factor=(2.5, 0.6)),
        ],
    ),
    "products": (
        (make_input((3, 4, 5)), make_input((3, 5, 6), seed=1)),
        [
            torch.matmul,
            torch.bmm,
            lambda a, b: a[0] @ b[0],
            lambda a, b: a @ b[0],
            lambda a, b: a[:, None] @ b[None],
            lambda a, b: a @ b[0, :, 0],
            lambda a, b: a[0, 0] @ b,
            lambda a, b: torch.dot(a[0, 0], b[0, :, 0]),
            lambda a, b: torch.mv(a[0], b[0, :, 0]),
            lambda a, b: torch.addmm(b[0, :4], a[0], b[0], beta=0.5, alpha=2.0),
            lambda a, b: torch.baddbmm(b[:, :4], a, b),
            lambda a, b: torch.baddbmm(b[:, :4], a, b, beta=0, alpha=0.25),
            lambda a, b: torch.einsum("bij,bjk->bik", a, b),
            lambda a, b: torch.einsum("bij,bjk", a, b),
            lambda a, b: torch.einsum("bij,cjk->ckbi", a, b),
            lambda a, b: torch.einsum("bij,bjk->jb", a, b),
            lambda a, b: torch.einsum("...j,...jk->...k", a[:, 0], b),
            lambda a, b: torch.einsum("i,j->ij", a[0, 0], b[0, 0]),
            lambda a, b: torch.einsum("bij->jb", a),
            lambda a, b: torch.outer(a[0, 0], b[0, 0]),
            lambda a, b: F.linear(a, b[0].t(), b[0, 0]),
            lambda a, b: F.linear(a[0, 0], b[0].t()),
            lambda a, b: torch.einsum("bij,bjk,bk->bi", a, b, b[:, 0]),
        ],
    ),
    "gathers": (
        (make_input((6, 5)), INDICES),
        [
            lambda x, i: F.embedding(i, x),
            lambda x, i: x[i],
            lambda x, i: x[:, i.flatten() % 5],
            lambda x, i: x.index_select(1, i[1] % 5),
            lambda x, i: x[i[0]] + torch.arange(5) * 2,
            lambda x, i: (i + torch.arange(2)).to(torch.float32) * 0.5,
        ],
    ),
}


@pytest.mark.parametrize("group", GROUPS)
def test_graphs_equal_pytorch(group: str) -> None:
    inputs, functions = GROUPS[group]
    check_module(Function(*functions), *inputs)


CONVOLUTIONS = {
    "padding": (torch.nn.Conv2d(6, 8, 3, padding=1), IMAGE),
    "stride, no bias": (torch.nn.Conv2d(6, 8, (3, 2), stride=2, bias=False), IMAGE),
    "depthwise": (torch.nn.Conv2d(6, 12, 3, groups=6, padding=(0, 1)), IMAGE),
    "dilation, same": (torch.nn.Conv2d(6, 4, 4, dilation=2, padding="same"), IMAGE),
    "without a batch": (torch.nn.Conv2d(6, 4, 3), IMAGE[0]),
    "one dimension": (torch.nn.Conv1d(6, 4, 3, padding="valid"), IMAGE[:, :, 0]),
    "three dimensions": (torch.nn.Conv3d(2, 4, 2, stride=(1, 2, 2)), IMAGE.reshape(2, 2, 3, 11, 12)),
    "transposed": (torch.nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1), IMAGE),
    "transposed, groups": (torch.nn.ConvTranspose1d(6, 4, 4, stride=2, groups=2), IMAGE[:, :, 0]),
}


def test_convolutions_equal_pytorch() -> None:
    for module, x in CONVOLUTIONS.values():
        check_module(module, x, tolerance=1e-4)


def test_norms_equal_pytorch() -> None:
    nn, x = torch.nn, IMAGE
    modules = (
        nn.BatchNorm2d(6),
        nn.BatchNorm2d(6, affine=False),
        nn.GroupNorm(3, 6),
        nn.GroupNorm(2, 6, affine=False),
        nn.InstanceNorm2d(6),
        nn.LayerNorm(12),
        nn.LayerNorm((11, 12), elementwise_affine=False),
        nn.LayerNorm(12, bias=False),
        nn.RMSNorm(12),
        nn.RMSNorm(12, eps=1e-6),
        nn.RMSNorm((11, 12), elementwise_affine=False),
    )
    for module in modules:
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                torch.nn.init.uniform_(tensor, 0.5, 1.5)
    check_module(Function(*(m.eval() for m in modules)), x)


def attend(**options: Any) -> Callable[..., Any]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


def test_attention_equals_pytorch() -> None:
    q, k, v = (make_input((2, 4, length, 8), seed=length) for length in (3, 5, 5))
    mask = make_input((2, 1, 3, 5), seed=9)
    shared = make_input((2, 2, 5, 8), seed=11)
    graph = check_module(
        Function(
            attend(),
            attend(is_causal=True),
            attend(scale=0.3),
            attend(attn_mask=mask),
            attend(attn_mask=mask > -1),
            lambda q, k, v: F.scaled_dot_product_attention(q[:, 0], k[:, 0], v[:, 0], attn_mask=mask[:, 0]),
            lambda q, k, v: F.scaled_dot_product_attention(q, shared, shared * v[:, :2], enable_gqa=True),
            lambda q, k, v: F.scaled_dot_product_attention(
                q, k[:, :2].repeat_interleave(2, 1), v[:, :2].repeat_interleave(2, 1)
            ),
        ),
        q,
        k,
        v,
    )
    attention = [node for node in graph.nodes if node.kind == "attention"]
    assert [graph.values[node.inputs[1]].shape[-3] for node in attention] == [4, 4, 4, 4, 4, 1, 2, 2]
    assert len(attention) == 8


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_floats_equal_pytorch(dtype: str) -> None:
    kind = getattr(torch, dtype)
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).to(kind)
    mixed = Function(
        module, lambda x: x.float() * 0.1 + x, lambda x: x * 0.1, lambda x: x + torch.tensor(0.3)
    )
    check_module(mixed, X.to(kind), tolerance=2e-2 if dtype == "bfloat16" else 2e-3)


def test_functions_of_the_arguments_without_a_kind_are_opaque() -> None:
    """Each is one node with its reason, and holds the call for those who execute it."""
    from ekc.models.torch_reader.read import read_torch

    cases = {
        "aten.cumsum.default": (lambda x: x.cumsum(-1), "a running sum, product or maximum: no kind of node"),
        "aten.sort.default": (lambda x: x.sort(-1)[0], "no kind of node"),
        "aten.upsample_bilinear2d.vec": (
            lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            "interpolation between elements: no kind of node",
        ),
        "aten.max.dim": (lambda x: x.max(-1)[1], "result 2 of 2: no kind of node"),
        "aten.adaptive_avg_pool2d.default": (
            lambda x: F.adaptive_avg_pool2d(x, 5),
            "adaptive pool from (11, 12) to (5, 5), which does not divide it",
        ),
        "aten.bernoulli.p": (lambda x: torch.bernoulli(x, 0.5), None),
    }
    graph = read_torch(Function(*(f for f, _ in cases.values())), IMAGE)
    found = {n.attributes["target"]: n for n in graph.nodes if n.kind == "opaque"}
    assert len(list_opaque(graph)) == len(cases)
    for target, (_, reason) in cases.items():
        assert reason is None or found[target].attributes["reason"] == reason
        function, args, _ = found[target].attributes["call"]
        assert callable(function)
        assert args[0] == graph.inputs[0]
    assert found["aten.max.dim"].attributes["index"] == 1


@pytest.mark.parametrize("scale", [1.1, 2.2, 3.3, (1.0, 0.7)])
def test_scales_that_repeat_rows_unevenly_are_listed(scale: Any) -> None:
    """4 rows by 2.2 are 8, but each row is not there twice."""
    from ekc.models.torch_reader.read import read_torch

    graph = read_torch(Function(lambda x: F.interpolate(x[:, :, :4], scale_factor=scale)), IMAGE)
    assert list_opaque(graph) == ["aten.upsample_nearest2d.vec"]
