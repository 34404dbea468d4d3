"""Convolutions, norms, softmax, reductions and pools as operators of ekc."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir import operators
from ekc.ir.operator import Operator
from ekc.models.elements import describe_type, shorten_number
from ekc.models.graph import Graph, Node
from ekc.models.layer_plan import LayerPlan, check_float, check_operand_types, plan_matmul, read_dense
from ekc.models.model import LayerInput

_IMAGE_AXES = "dhw"
_TAP_AXES = "rst"
_LOWEST = float(np.finfo(np.float32).min)


def plan_layer(node: Node, graph: Graph) -> LayerPlan:
    """The operator of an anchor node. Raises `InvalidInput` with the reason where ekc has none."""
    for name in (*node.inputs, node.output):
        if 0 in graph.values[name].shape:
            raise InvalidInput("a tensor without elements")
    if graph.values[node.output].dtype.name == "float64":
        raise InvalidInput(describe_type("float64"))
    return _PLANNERS[node.kind](node, graph)


def _plan_conv(node: Node, graph: Graph) -> LayerPlan:
    x, weight = (graph.values[name] for name in node.inputs[:2])
    dtype, rank, options = check_operand_types(x, weight), len(x.shape) - 2, node.attributes
    if not 1 <= rank <= 3:
        raise InvalidInput(f"a convolution over {rank} dimensions: ekc has those over 1, 2 and 3")
    is_transposed = node.kind == "conv_transpose"
    arguments: dict[str, Any] = {
        "n": x.shape[0],
        "c": x.shape[1],
        **dict(zip(_IMAGE_AXES[3 - rank :], x.shape[2:], strict=True)),
        "out_channels": graph.values[node.output].shape[1],
        "kernel": tuple(weight.shape[2:]),
        "groups": options["groups"],
        "dtype": dtype,
        **{key: tuple(options[key]) for key in ("stride", "padding", "dilation")},
    }
    if is_transposed:
        arguments["output_padding"] = tuple(options.get("output_padding", (0,) * rank))
    make = getattr(operators, f"conv{'_transpose' * is_transposed}{rank}d")
    inputs = tuple(read_dense(graph, name, graph.values[name].shape) for name in node.inputs[:2])
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return LayerPlan(lambda out: make(**arguments, out_dtype=out), inputs, bias)


def _plan_softmax(node: Node, graph: Graph) -> LayerPlan:
    x = graph.values[node.inputs[0]]
    dtype, axis, shape = check_float(x), node.attributes["axis"], x.shape
    if axis == len(shape) - 1 and len(shape) > 2:
        shape = (prod(shape[:-2]), *shape[-2:])
        axis = 2
    zeros = bool(node.attributes.get("zeros_masked_rows"))
    return LayerPlan(partial(_make_softmax, shape, axis, dtype, zeros), (read_dense(graph, x.name, shape),))


def _make_softmax(shape: Sequence[int], axis: int, dtype: str, zeros: bool, out: str | None) -> Operator:
    """A softmax; with `zeros`, 0 in the rows whose largest element is minus infinity."""
    op = operators.softmax(tuple(shape), axis, dtype=dtype, out_dtype=out)
    if not zeros:
        return op
    *passes, last = op.computes
    (top,) = (load for load in ex.find_loads(last.body) if load.tensor == "top")
    body = ex.where(ex.less(top, _LOWEST), 0.0, last.body)
    return replace(op, computes=(*passes, replace(last, body=body)))


def _plan_norm(node: Node, graph: Graph) -> LayerPlan:
    x = graph.values[node.inputs[0]]
    dtype, dimensions = check_float(x), node.attributes["dimensions"]
    width = prod(x.shape[len(x.shape) - dimensions :])
    shape = (x.size // width, width)
    make = operators.layer_norm if node.kind == "layer_norm" else operators.rms_norm
    inputs, constants = _read_row_constants(node, graph, (width,), 2 if node.kind == "layer_norm" else 1)
    return LayerPlan(
        lambda out: make(shape, shorten_number(node.attributes["eps"]), dtype=dtype, out_dtype=out),
        (read_dense(graph, x.name, shape), *inputs),
        constants=constants,
    )


def _read_row_constants(
    node: Node, graph: Graph, shape: tuple[int, ...], count: int
) -> tuple[tuple[LayerInput, ...], tuple[tuple[str, Any], ...]]:
    """Weight and bias of a norm; ones and zeros where the node has none."""
    dtype = graph.values[node.inputs[0]].dtype.name
    inputs, made = [], []
    for place in range(count):
        if place + 1 < len(node.inputs):
            value = graph.values[node.inputs[place + 1]]
            if not value.is_constant and value.dtype.name != dtype:
                raise InvalidInput(f"a weight of type {value.dtype} of a norm of {dtype}")
            inputs.append(read_dense(graph, value.name, shape, dtype))
            continue
        name = f"{node.output}.{'bias' if place else 'weight'}"
        made.append((name, np.full(shape, 1.0 - place, graph.values[node.inputs[0]].dtype)))
        inputs.append(LayerInput(name))
    return tuple(inputs), tuple(made)


def _plan_group_norm(node: Node, graph: Graph) -> LayerPlan:
    x, groups = graph.values[node.inputs[0]], node.attributes["groups"]
    dtype, channels = check_float(x), x.shape[1] // groups
    shape = (x.shape[0], groups, channels, prod(x.shape[2:]))
    inputs, constants = _read_row_constants(node, graph, (groups, channels), 2)
    return LayerPlan(
        partial(_make_group_norm, shape, shorten_number(node.attributes["eps"]), dtype),
        (read_dense(graph, x.name, shape), *inputs),
        constants=constants,
    )


def _make_group_norm(shape: Sequence[int], eps: float, dtype: str, out: str | None) -> Operator:
    """Y = (X - mean) / sqrt(variance + eps) * gamma + beta, for X [n, groups, channels, pixels]; mean and
    variance are those of the last two dimensions."""
    n, groups, channels, pixels = shape
    share = 1 / (channels * pixels)
    op = operators.compute(
        "group_norm",
        axes={"i0": n, "i1": groups},
        reduce={"i2": channels, "i3": pixels},
        inputs={"X": tuple(shape)},
        body=lambda X, i0, i1, i2, i3: X[i0, i1, i2, i3] * share,
        output="mean",
        dtype=dtype,
        out_dtype="float32",
    )
    op = op.then(
        "variance",
        axes={"j0": n, "j1": groups},
        reduce={"j2": channels, "j3": pixels},
        body=lambda X, mean, j0, j1, j2, j3: (
            (X[j0, j1, j2, j3] - mean[j0, j1]) * (X[j0, j1, j2, j3] - mean[j0, j1]) * share
        ),
        dtype=dtype,
        out_dtype="float32",
    )
    op = op.then(
        "Y",
        axes={"p0": n, "p1": groups, "p2": channels, "p3": pixels},
        inputs={"gamma": (groups, channels), "beta": (groups, channels)},
        body=lambda X, mean, variance, gamma, beta, p0, p1, p2, p3: (
            (X[p0, p1, p2, p3] - mean[p0, p1]) * ex.rsqrt(variance[p0, p1] + eps) * gamma[p1, p2]
            + beta[p1, p2]
        ),
        dtype=dtype,
        out_dtype=out,
    )
    return replace(op, name="group_norm")


def _plan_reduce(node: Node, graph: Graph) -> LayerPlan:
    x, options = graph.values[node.inputs[0]], node.attributes
    dtype = check_float(x)
    axes = tuple(sorted(options["axes"]))
    shape, axes = _merge_dimensions(x.shape, axes)
    return LayerPlan(
        lambda out: operators.reduce(shape, axes, options["combine"], dtype=dtype, out_dtype=out),
        (read_dense(graph, x.name, shape),),
    )


def _merge_dimensions(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Neighbouring dimensions that are both reduced, or both kept, as one."""
    merged: list[tuple[int, bool]] = []
    for d, extent in enumerate(shape):
        is_reduced = d in axes
        if merged and merged[-1][1] == is_reduced:
            merged[-1] = (merged[-1][0] * extent, is_reduced)
        elif extent > 1 or (is_reduced and len(axes) == 1):
            merged.append((extent, is_reduced))
    if not any(is_reduced for _, is_reduced in merged):
        merged.append((1, True))
    found = tuple(extent for extent, _ in merged)
    return found, tuple(d for d, (_, is_reduced) in enumerate(merged) if is_reduced)


def _plan_pool(node: Node, graph: Graph) -> LayerPlan:
    x, output = graph.values[node.inputs[0]], graph.values[node.output]
    dtype = check_float(x)
    rank = len(x.shape) - 2
    if not 1 <= rank <= 3:
        raise InvalidInput(f"a pool over {rank} dimensions: ekc has those over 1, 2 and 3")
    make = partial(_make_pool, node, (x.shape[0] * x.shape[1], *x.shape[2:]), output.shape[2:], dtype)
    return LayerPlan(make, (read_dense(graph, x.name, (x.shape[0] * x.shape[1], *x.shape[2:])),))


def _make_pool(
    node: Node, shape: tuple[int, ...], places: tuple[int, ...], dtype: str, out: str | None
) -> Operator:
    """The largest or the mean element of each window of X [planes, ...]."""
    options, rank, is_max = node.attributes, len(places), node.kind == "max_pool"
    outs = [ex.Var(f"p{d}") for d in range(rank)]
    taps = [ex.Var(_TAP_AXES[d]) for d in range(rank)]
    index, inside = [], []
    for d in range(rank):
        before = options["padding"][d][0]
        dilation = options["dilation"][d]
        index.append(outs[d] * options["stride"][d] + taps[d] * dilation - before)
        last = (places[d] - 1) * options["stride"][d] + (options["kernel"][d] - 1) * dilation - before
        inside.append((before > 0, last >= shape[d + 1]))
    element: ex.Expr = ex.Load("X", (ex.Var("n"), *index))
    if is_max:
        for d, (starts_outside, ends_outside) in enumerate(inside):
            if ends_outside:
                element = ex.where(ex.less(index[d], shape[d + 1]), element, -inf)
            if starts_outside:
                element = ex.where(ex.less(index[d], 0), -inf, element)
    is_plain = is_max or options["counts_padding"] or not any(map(any, inside))
    if not is_max and is_plain:
        element = element * (1 / prod(options["kernel"]))
    op = operators.compute(
        node.kind,
        axes={"n": shape[0], **{v.name: e for v, e in zip(outs, places, strict=True)}},
        reduce={v.name: k for v, k in zip(taps, options["kernel"], strict=True)},
        inputs={"X": shape},
        body=lambda: element,
        combine="max" if is_max else "sum",
        output="Y" if is_plain else "total",
        dtype=dtype,
        out_dtype=out if is_plain else "float32",
    )
    return op if is_plain else _divide_by_count(op, node, shape, places, out)


def _divide_by_count(
    op: Operator, node: Node, shape: tuple[int, ...], places: tuple[int, ...], out: str | None
) -> Operator:
    """The sums of an average pool divided by the number of elements of each window that are not padding."""
    options = node.attributes
    if any(d != 1 for d in options["dilation"]):
        raise InvalidInput("an average pool with dilation that does not count its padding")
    axes = [ex.Var(f"q{d}") for d in range(len(places))]
    total: ex.Expr = ex.Load("total", (ex.Var("m"), *axes))
    for d, axis in enumerate(axes):
        start = axis * options["stride"][d] - options["padding"][d][0]
        end = ex.minimum(start + options["kernel"][d], shape[d + 1])
        total = total / (end - ex.maximum(start, 0))
    extents = {v.name: e for v, e in zip(axes, places, strict=True)}
    default = op.inputs[0].dtype.default_result
    made = op.then("Y", axes={"m": shape[0], **extents}, body=lambda: total, out_dtype=out or default)
    return replace(made, name=node.kind)


def _refuse_gather(node: Node, graph: Graph) -> LayerPlan:
    raise InvalidInput("ekc has no reads by an index tensor")


_PLANNERS: Mapping[str, Callable[[Node, Graph], LayerPlan]] = {
    "conv": _plan_conv,
    "conv_transpose": _plan_conv,
    "matmul": plan_matmul,
    "softmax": _plan_softmax,
    "layer_norm": _plan_norm,
    "rms_norm": _plan_norm,
    "group_norm": _plan_group_norm,
    "reduce": _plan_reduce,
    "max_pool": _plan_pool,
    "avg_pool": _plan_pool,
    "gather": _refuse_gather,
}
ANCHOR_KINDS = frozenset(_PLANNERS)
"""Kinds that become an operator of their own, into which elementwise nodes behind them are fused."""
