"""Drawn chains of ONNX operators: the graph and its layers give what `onnx.reference` gives."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from ekc.models.build import build_model, execute_fused
from ekc.models.evaluate import evaluate
from ekc.models.onnx_reader.read import read_onnx
from tests.models.onnx_models import NEWEST, Array, check_model, draw, make_model, state_outputs

UNARY = ("Relu", "Sigmoid", "Tanh", "Abs", "Neg", "HardSigmoid", "LeakyRelu", "Softsign", "Elu")
STEPS = ("unary", "binary", "transpose", "reshape", "slice", "pad", "reduce", "softmax", "matmul")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")


class Chain:
    """Nodes one behind the other, and the shape of the last value."""

    def __init__(self, shape: tuple[int, ...], take: Any) -> None:
        self.shape, self.take = shape, take
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}

    @property
    def last(self) -> str:
        return f"v{len(self.nodes)}"

    def add(self, op: str, *arrays: Array, **attributes: Any) -> None:
        names = [self.last]
        for array in arrays:
            names.append(f"c{len(self.constants)}")
            self.constants[names[-1]] = array
        self.nodes.append(helper.make_node(op, names, [f"v{len(self.nodes) + 1}"], **attributes))

    def draw_node(self) -> None:
        """Add an operator that the shape allows."""
        rank, axis = len(self.shape), self.take(st.integers(-len(self.shape), len(self.shape) - 1))
        match self.take(
            st.sampled_from(
                ["unary", "binary", "transpose", "reshape", "slice", "pad", "reduce", "softmax", "matmul"]
            )
        ):
            case "unary":
                self.add(self.take(st.sampled_from(UNARY)))
            case "binary":
                kept = [size if self.take(st.booleans()) else 1 for size in self.shape]
                start = self.take(st.integers(0, rank - 1))
                self.add(self.take(st.sampled_from(BINARY)), draw(kept[start:], len(self.nodes)))
            case "transpose":
                order = self.take(st.permutations(range(rank)))
                self.add("Transpose", perm=order)
                self.shape = tuple(self.shape[a] for a in order)
            case "reshape":
                kept = self.take(st.integers(1, rank))
                new = (*self.shape[: kept - 1], prod(self.shape[kept - 1 :]))
                self.add("Reshape", np.array([*new[:-1], -1]))
                self.shape = new
            case "slice":
                size = self.shape[axis]
                start, step = self.take(st.integers(-size, size - 1)), self.take(st.sampled_from((1, 2, -1)))
                stop = self.take(st.sampled_from((size, -size - 1, start + 2)))
                rows = len(range(size)[start : None if step < 0 and stop < -size else stop : step])
                if rows:
                    self.add("Slice", *(np.array([n]) for n in (start, stop, axis, step)))
                    self.shape = tuple(rows if a == axis % rank else s for a, s in enumerate(self.shape))
            case "pad":
                pads = self.take(st.lists(st.integers(0, 2), min_size=2 * rank, max_size=2 * rank))
                self.add("Pad", np.array(pads), np.array(0.5, np.float32))
                self.shape = tuple(s + pads[a] + pads[rank + a] for a, s in enumerate(self.shape))
            case "reduce":
                self.add("ReduceSum", np.array([axis]), keepdims=1)
                self.shape = tuple(1 if a == axis % rank else s for a, s in enumerate(self.shape))
            case "softmax":
                self.add("Softmax", axis=axis)
            case "matmul":
                if rank >= 2:
                    wide = self.take(st.integers(1, 5))
                    self.add("MatMul", draw((self.shape[-1], wide), len(self.nodes)))
                    self.shape = (*self.shape[:-1], wide)


@settings(max_examples=40)
@given(st.data())
def test_drawn_chains_give_what_the_reference_gives(data: Any) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    chain = Chain(shape, data.draw)
    for _ in range(data.draw(st.integers(1, 7))):
        chain.draw_node()
    opset = data.draw(st.sampled_from((13, NEWEST)))
    if not chain.nodes:
        return
    inputs = {"v0": draw(shape, 99)}
    model = state_outputs(make_model(chain.nodes, inputs, [chain.last], chain.constants, opset), inputs)
    graph = check_model(model, inputs, tolerance=1e-4)
    assert graph.values[chain.last].shape == chain.shape
    if not {node.kind for node in graph.nodes} & {"elementwise", "matmul", "softmax", "reduce"}:
        # Views and moves alone may be no layer.
        return
    fused = build_model(graph).fused
    assert fused is not None
    wanted, given_ = evaluate(graph, [inputs["v0"]]), execute_fused(fused, [inputs["v0"]])
    np.testing.assert_allclose(given_[0], wanted[0], 1e-4, 1e-4)


PLACES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@settings(max_examples=60)
@given(
    st.integers(1, 6),
    st.integers(1, 12),
    st.sampled_from(PLACES),
    st.sampled_from(ROUNDINGS),
    st.sampled_from((13, 18, NEWEST)),
)
def test_nearest_rows_of_resize_are_those_of_the_reference(
    size: int, out: int, place: str, rounding: str, opset: int
) -> None:
    x = draw((1, 2, size, 3))
    node = helper.make_node(
        "Resize",
        ["x", "", "", "sizes"],
        ["y"],
        mode="nearest",
        coordinate_transformation_mode=place,
        nearest_mode=rounding,
    )
    model = make_model([node], {"x": x}, ["y"], {"sizes": np.array([1, 2, out, 3])}, opset)
    check_model(model, {"x": x})


@settings(max_examples=20)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(2, 4), st.booleans())
def test_group_norms_that_are_written_out_are_one_node(n: int, groups: int, each: int, affine: bool) -> None:
    """As PyTorch's exporter writes them for opsets before 21."""
    channels = groups * each
    x = draw((n, channels, 4, 3))
    nodes = [
        helper.make_node("Reshape", ["x", "split"], ["a"]),
        helper.make_node("InstanceNormalization", ["a", "one", "zero"], ["b"], epsilon=1e-3),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Reshape", ["b", "s"], ["c"]),
        helper.make_node("Mul", ["c", "w"], ["d"]),
        helper.make_node("Add", ["d", "v"], ["e"]),
    ]
    constants = {
        "split": np.array([0, groups, -1]),
        "one": np.ones(groups, np.float32),
        "zero": np.zeros(groups, np.float32),
        "w": draw((channels, 1, 1), 1),
        "v": draw((channels, 1, 1), 2),
    }
    output = "e" if affine else "c"
    used = nodes if affine else nodes[:4]
    model = state_outputs(make_model(used, {"x": x}, [output], constants, 20), {"x": x})
    graph = check_model(model, {"x": x}, tolerance=1e-4)
    kinds = [node.kind for node in graph.nodes]
    assert kinds == (["reshape", "reshape", "group_norm"] if affine else ["group_norm"])
    norm = graph.nodes[-1]
    assert norm.attributes == {"groups": groups, "eps": 1e-3}
    assert norm.inputs[0] == "x"


def test_other_instance_norms_stay_as_they_are() -> None:
    """With weights of their own they are no part of a group norm."""
    nodes = [
        helper.make_node("Reshape", ["x", "split"], ["a"]),
        helper.make_node("InstanceNormalization", ["a", "w", "zero"], ["b"]),
        helper.make_node("Reshape", ["b", "shape"], ["y"]),
    ]
    constants = {
        "split": np.array([0, 2, -1]),
        "w": np.array([1, 2], np.float32),
        "zero": np.zeros(2, np.float32),
        "shape": np.array([1, 4, 3, 3]),
    }
    x = draw((1, 4, 3, 3))
    graph = check_model(make_model(nodes, {"x": x}, ["y"], constants), {"x": x})
    assert [node.kind for node in graph.nodes] == ["reshape", "group_norm", "reshape"]


def test_layers_of_a_file_are_those_of_its_graph() -> None:
    """A product with bias and activation is one layer; its calls are counted."""
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w", "b"], ["i"], transB=1),
        helper.make_node("Relu", ["i"], ["y"]),
    ]
    constants = {"w": draw((16, 16)), "b": draw((16,))}
    model = build_model(read_onnx(make_model(nodes, {"x": draw((8, 16))}, ["y"], constants)))
    assert [(layer.op.name, layer.count) for layer in model.layers] == [("matmul_epilogue", 2)]
    assert (model.coverage.flops, model.coverage.bytes) == (1, 1)
