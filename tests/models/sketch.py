"""Graphs written by hand for tests: every method adds a node, its output's shape found by formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ekc.models.graph import Graph, GraphBuilder


class Sketch:
    """A graph under construction; all tensors have one type unless cast."""

    def __init__(
        self, name: str = "net", dtype: str = "float32", *, has_data: bool = True, seed: int = 0
    ) -> None:
        self.builder, self.dtype, self.has_data = GraphBuilder(name), dtype, has_data
        self.random, self.count, self.scope = np.random.default_rng(seed), 0, ""

    def shape(self, name: str) -> tuple[int, ...]:
        return self.builder.values[name].shape

    def type(self, name: str) -> np.dtype[Any]:
        return self.builder.values[name].dtype

    def input(self, *shape: int, dtype: str | None = None) -> str:
        name = self.builder.add_value(f"x{len(self.builder.inputs)}", shape, dtype or self.dtype)
        self.builder.inputs.append(name)
        return name

    def weight(self, *shape: int, scale: float = 0.3, offset: float = 0.0, dtype: str | None = None) -> str:
        self.count += 1
        name = f"w{self.count}"
        if not self.has_data:
            return self.builder.add_value(name, shape, dtype or self.dtype, is_constant=True)
        data = (self.random.standard_normal(shape) * scale + offset).astype(np.float32)
        self.builder.add_value(name, shape, dtype or self.dtype, is_constant=True)
        found = self.builder.values.pop(name)
        return self.builder.add_constant(name, data.astype(found.dtype))

    def constant(self, data: Any, dtype: str | None = None) -> str:
        self.count += 1
        return self.builder.add_constant(f"w{self.count}", np.asarray(data, dtype))

    def node(
        self, kind: str, inputs: Sequence[str], shape: Sequence[int], *, dtype: Any = None, **attributes: Any
    ) -> str:
        self.count += 1
        output = self.builder.add_value(
            f"v{self.count}", shape, self.type(inputs[0]) if dtype is None else dtype
        )
        name = self.scope or f"{attributes.get('function', kind)}{self.count}"
        return self.builder.add_node(kind, name, inputs, output, **attributes)

    def build(self, *outputs: str) -> Graph:
        return self.builder.build(outputs)

    # Nodes.

    def apply(self, function: str, *inputs: str | float, dtype: Any = None, **attributes: Any) -> str:
        names = [i if isinstance(i, str) else self.constant(i, "float32") for i in inputs]
        shape = np.broadcast_shapes(*map(self.shape, names))
        own = next(self.type(i) for i in inputs if isinstance(i, str))
        return self.node("elementwise", names, shape, dtype=dtype or own, function=function, **attributes)

    def conv(
        self,
        x: str,
        out: int,
        kernel: int = 3,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        dilation: int = 1,
        bias: bool = False,
    ) -> str:
        n, c, *image = self.shape(x)
        rank = len(image)
        inputs = [x, self.weight(out, c // groups, *(kernel,) * rank)]
        inputs += [self.weight(out)] if bias else []
        sizes = [(e + 2 * padding - (kernel - 1) * dilation - 1) // stride + 1 for e in image]
        return self.node(
            "conv", inputs, (n, out, *sizes), stride=(stride,) * rank,
            padding=((padding, padding),) * rank, dilation=(dilation,) * rank, groups=groups,
        )  # fmt: skip

    def conv_transpose(self, x: str, out: int, kernel: int = 2, stride: int = 2, bias: bool = True) -> str:
        n, c, *image = self.shape(x)
        rank = len(image)
        inputs = [x, self.weight(c, out, *(kernel,) * rank), *([self.weight(out)] if bias else [])]
        sizes = [(e - 1) * stride + kernel for e in image]
        return self.node(
            "conv_transpose", inputs, (n, out, *sizes), stride=(stride,) * rank, padding=((0, 0),) * rank,
            dilation=(1,) * rank, groups=1, output_padding=(0,) * rank,
        )  # fmt: skip

    def batch_norm(self, x: str) -> str:
        c = self.shape(x)[1]
        parts = [self.weight(c, offset=o, scale=0.1) for o in (1.0, 0.0, 0.0, 2.0)]
        return self.node("batch_norm", [x, *parts], self.shape(x), eps=1e-5)

    def linear(self, x: str, out: int, bias: bool = True) -> str:
        k = self.shape(x)[-1]
        turned = self.node("permute", [self.weight(out, k)], (k, out), order=(1, 0))
        y = self.matmul(x, turned)
        return self.apply("add", y, self.weight(out)) if bias else y

    def matmul(self, a: str, b: str) -> str:
        first, second = self.shape(a), self.shape(b)
        batch = np.broadcast_shapes(first[:-2], second[:-2])
        return self.node("matmul", [a, b], (*batch, first[-2], second[-1]))

    def reshape(self, x: str, *shape: int) -> str:
        return self.node("reshape", [x], shape)

    def permute(self, x: str, *order: int) -> str:
        return self.node("permute", [x], [self.shape(x)[d] for d in order], order=order)

    def expand(self, x: str, *shape: int) -> str:
        return self.node("expand", [x], shape)

    def slice(self, x: str, axis: int, start: int, stop: int, step: int = 1) -> str:
        shape = list(self.shape(x))
        shape[axis] = len(range(start, stop, step))
        return self.node("slice", [x], shape, axis=axis, start=start, stop=stop, step=step)

    def concat(self, axis: int, *inputs: str) -> str:
        shape = list(self.shape(inputs[0]))
        shape[axis] = sum(self.shape(i)[axis] for i in inputs)
        return self.node("concat", inputs, shape, axis=axis)

    def pad(self, x: str, *padding: tuple[int, int], value: float = 0.0) -> str:
        shape = [e + a + b for e, (a, b) in zip(self.shape(x), padding, strict=True)]
        return self.node("pad", [x], shape, padding=padding, value=value)

    def resize(self, x: str, *factors: int) -> str:
        shape = [e * f for e, f in zip(self.shape(x), factors, strict=True)]
        return self.node("resize", [x], shape, factors=factors)

    def cast(self, x: str, dtype: str) -> str:
        return self.node("cast", [x], self.shape(x), dtype=dtype)

    def softmax(self, x: str, axis: int | None = None) -> str:
        rank = len(self.shape(x))
        return self.node("softmax", [x], self.shape(x), axis=rank - 1 if axis is None else axis)

    def layer_norm(self, x: str, affine: bool = True) -> str:
        d = self.shape(x)[-1]
        parts = [self.weight(d, offset=1.0), self.weight(d)] if affine else []
        return self.node("layer_norm", [x, *parts], self.shape(x), dimensions=1, eps=1e-5)

    def rms_norm(self, x: str) -> str:
        parts = [self.weight(self.shape(x)[-1], offset=1.0)]
        return self.node("rms_norm", [x, *parts], self.shape(x), dimensions=1, eps=1e-5)

    def group_norm(self, x: str, groups: int) -> str:
        c = self.shape(x)[1]
        parts = [self.weight(c, offset=1.0), self.weight(c)]
        return self.node("group_norm", [x, *parts], self.shape(x), groups=groups, eps=1e-5)

    def reduce(self, x: str, combine: str, *axes: int, keepdims: bool = True) -> str:
        shape = [1 if d in axes else e for d, e in enumerate(self.shape(x)) if keepdims or d not in axes]
        return self.node("reduce", [x], shape, combine=combine, axes=axes, keepdims=keepdims)

    def pool(self, kind: str, x: str, kernel: int, stride: int, padding: int = 0, **attributes: Any) -> str:
        n, c, *image = self.shape(x)
        rank = len(image)
        sizes = [(e + 2 * padding - kernel) // stride + 1 for e in image]
        return self.node(
            kind, [x], (n, c, *sizes), kernel=(kernel,) * rank, stride=(stride,) * rank,
            padding=((padding, padding),) * rank, dilation=(1,) * rank, **attributes,
        )  # fmt: skip

    def attention(self, q: str, k: str, v: str, mask: str | None = None, is_causal: bool = False) -> str:
        shape = (*self.shape(q)[:-1], self.shape(v)[-1])
        scale = self.shape(q)[-1] ** -0.5
        inputs = [q, k, v, *([mask] if mask else [])]
        return self.node("attention", inputs, shape, scale=scale, is_causal=is_causal)


def draw_inputs(graph: Graph, seed: int = 1) -> list[np.ndarray[Any, Any]]:
    """Arrays for the inputs of a graph."""
    random = np.random.default_rng(seed)
    found = []
    for name in graph.inputs:
        value = graph.values[name]
        if value.dtype.kind in "iu":
            found.append(random.integers(0, 3, value.shape).astype(value.dtype))
        elif value.dtype == bool:
            found.append(random.integers(0, 2, value.shape).astype(bool))
        else:
            found.append(random.standard_normal(value.shape).astype(value.dtype))
    return found
