"""Blocks of networks as graphs, written by hand."""

from __future__ import annotations

from ekc.models.graph import Graph
from tests.models.sketch import Sketch


def residual_block(**options: bool) -> Graph:
    """Two convolutions with batch norm, a projected shortcut, a pool and a classifier."""
    s = Sketch("residual", **options)
    x = s.input(1, 3, 8, 8)
    y = s.apply("relu", s.batch_norm(s.conv(x, 4, padding=1)))
    main = s.batch_norm(s.conv(y, 4, padding=1))
    shortcut = s.batch_norm(s.conv(x, 4, 1))
    joined = s.apply("relu", s.apply("add", main, shortcut))
    pooled = s.pool("max_pool", joined, 3, 2, 1)
    return s.build(s.linear(s.reshape(s.reduce(pooled, "mean", 2, 3), 1, 4), 10))


def mlp_block() -> Graph:
    """A norm, two products with gelu between them, a residual that is written first."""
    s = Sketch("mlp")
    x = s.input(1, 6, 16)
    hidden = s.apply("gelu", s.linear(s.layer_norm(x), 32))
    return s.build(s.apply("add", x, s.linear(hidden, 16)))


def gated_mlp() -> Graph:
    """silu(gate) * up, and a product with a residual."""
    s = Sketch("gated", dtype="float16")
    x = s.input(1, 6, 16)
    gate, up = s.linear(x, 24, False), s.linear(x, 24, False)
    return s.build(s.apply("add", x, s.linear(s.apply("mul", s.apply("silu", gate), up), 16, False)))


def attention_block(heads: int, shared: int, *, mask: str = "", dtype: str = "float32", d: int = 4) -> Graph:
    """Attention of `heads` query heads; `shared` of them have one key-value head."""
    s = Sketch("attention", dtype)
    x = s.input(1, 6, 16)

    def project(count: int) -> str:
        return s.permute(s.reshape(s.linear(x, count * d), 1, 6, count, d), 0, 2, 1, 3)

    q, k, v = project(heads), project(heads // shared), project(heads // shared)
    given = None
    if mask == "sum":
        given = s.input(1, 1, 6, 6)
    elif mask == "truth":
        given = s.constant([[row >= column for column in range(6)] for row in range(6)])
    y = s.attention(q, k, v, given, mask == "causal")
    y = s.linear(s.reshape(s.permute(y, 0, 2, 1, 3), 1, 6, heads * d), 16)
    return s.build(s.apply("add", y, x))


def squeeze_excite_block() -> Graph:
    """A depthwise convolution, weights of its channels, and a projection."""
    s = Sketch("squeeze")
    x = s.input(1, 8, 5, 5)
    y = s.apply("hardswish", s.batch_norm(s.conv(x, 8, padding=1, groups=8)))
    small = s.apply("relu", s.conv(s.reduce(y, "mean", 2, 3), 2, 1, bias=True))
    weights = s.apply("hardsigmoid", s.conv(small, 8, 1, bias=True))
    return s.build(s.conv(s.apply("mul", weights, y), 4, 1))


def unet_block() -> Graph:
    """Down, up by nearest neighbours, concatenated; then up by a transposed convolution."""
    s = Sketch("unet")
    x = s.input(1, 4, 4, 4)
    top = s.conv(x, 4, padding=1)
    low = s.conv(s.apply("silu", s.group_norm(top, 2)), 4, 3, 2, 1)
    joined = s.conv(s.concat(1, top, s.resize(low, 1, 1, 2, 2)), 4)
    return s.build(s.conv_transpose(joined, 2))


BLOCKS = {
    "residual": residual_block,
    "mlp": mlp_block,
    "gated": gated_mlp,
    "attention": lambda: attention_block(2, 1),
    "grouped": lambda: attention_block(4, 2),
    "causal": lambda: attention_block(4, 2, mask="causal"),
    "sum": lambda: attention_block(4, 2, mask="sum"),
    "truth": lambda: attention_block(2, 1, mask="truth"),
    "float16": lambda: attention_block(4, 2, mask="causal", dtype="float16"),
    "squeeze": squeeze_excite_block,
    "unet": unet_block,
}
