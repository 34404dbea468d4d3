"""ONNX models made for tests, and graphs held against `onnx.reference`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ekc.models.evaluate import evaluate
from ekc.models.graph import Graph
from ekc.models.onnx_reader.read import read_onnx

Array = np.ndarray[Any, Any]
NEWEST = onnx.defs.onnx_opset_version()
Model = onnx.ModelProto


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    outputs: Sequence[str],
    constants: Mapping[str, Array] | None = None,
    opset: int = NEWEST,
    domains: Mapping[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model whose inputs have the shapes and types of arrays; outputs have no stated shape."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [make_info(name, array) for name, array in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(domain, version) for domain, version in (domains or {}).items()]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions)
    return onnx.shape_inference.infer_shapes(model)


def state_outputs(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> onnx.ModelProto:
    """The model with the shapes and types of its outputs, which not every operator can infer."""
    arrays = ReferenceEvaluator(model).run(None, dict(inputs))
    infos = [
        make_info(value.name, np.asarray(array))
        for value, array in zip(model.graph.output, arrays, strict=True)
    ]
    del model.graph.output[:]
    model.graph.output.extend(infos)
    return model


def make_info(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape)
    )


def draw(shape: Sequence[int], seed: int = 0) -> Array:
    """Normal numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X = draw((2, 3, 4))


def check_model(
    model: onnx.ModelProto, inputs: Mapping[str, Array], tolerance: float = 2e-5, **options: Any
) -> Graph:
    """Read a model, and hold its graph in NumPy against `onnx.reference`; returns the graph."""
    graph = read_onnx(model, **options)
    expected = ReferenceEvaluator(model).run(None, dict(inputs))
    given = evaluate(graph, [inputs[name] for name in graph.inputs])
    assert graph.outputs == tuple(value.name for value in model.graph.output)
    assert len(given) == len(expected)
    for name, a, b in zip(graph.outputs, given, expected, strict=True):
        assert a.shape == np.shape(b), name
        assert a.dtype == b.dtype, name
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), tolerance, tolerance, err_msg=name
        )
    return graph


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node; its inputs and outputs are words of a text, "-" is an input left out."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attributes)


def add_model() -> Model:
    return make_model([node("Add", "x z", "y")], {"x": X, "z": X}, ["y"])


def make_attention_block(opset: int) -> Model:
    """Heads split by shapes that the file computes, as exporters with symbolic dimensions write them."""
    nodes = [
        node("MatMul", "x w", "q"),
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n", axis=0),
        node("Gather", "s one", "t", axis=0),
        node("Unsqueeze", "n first", "n1"),
        node("Unsqueeze", "t first", "t1"),
        node("Concat", "n1 t1 heads minus", "split", axis=0),
        node("Reshape", "q split", "r"),
        node("Transpose", "r", "p", perm=[0, 2, 1, 3]),
        node("Concat", "n1 t1 minus", "joined", axis=0),
        node("Softmax", "p", "soft", axis=-1),
        node("Transpose", "soft", "back", perm=[0, 2, 1, 3]),
        node("Reshape", "back joined", "y"),
    ]
    numbers = {"zero": np.array(0), "one": np.array(1), "first": np.array([0])}
    numbers |= {"heads": np.array([2]), "minus": np.array([-1])}
    return make_model(nodes, {"x": X}, ["y"], {"w": draw((4, 6)), **numbers}, opset)
