"""ONNX files: shapes, types, constants, control flow and functions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ekc
from ekc.errors import InvalidInput
from ekc.models.evaluate import evaluate
from ekc.models.graph import Graph
from ekc.models.onnx_reader.read import read_onnx
from tests.models.onnx_models import (
    NEWEST,
    Model,
    X,
    add_model,
    check_model,
    draw,
    make_attention_block,
    make_model,
    node,
    state_outputs,
)


def list_kinds(graph: Graph) -> list[str]:
    return [str(n.attributes.get("function", n.kind)) for n in graph.nodes]


def set_dims(model: Model, dims: Mapping[str, list[Any]]) -> Model:
    """Give inputs other dimensions: a size, a symbol, or None."""
    for value in model.graph.input:
        if value.name in dims:
            elem_type = value.type.tensor_type.elem_type
            value.CopyFrom(helper.make_tensor_value_info(value.name, elem_type, dims[value.name]))
    del model.graph.value_info[:]
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    return model


@pytest.mark.parametrize("opset", [13, NEWEST])
def test_shapes_that_nodes_compute_are_constants(opset: int) -> None:
    model = set_dims(make_attention_block(opset), {"x": ["batch", "length", 4]})
    graph = check_model(model, {"x": X}, shapes={"x": (2, 3, 4)})
    assert list_kinds(graph) == ["matmul", "reshape", "permute", "softmax", "permute", "reshape"]


def test_a_symbol_that_one_input_gives_counts_for_all() -> None:
    model = make_model([node("Add", "x z", "y")], {"x": X, "z": X}, ["y"])
    set_dims(model, {"x": ["batch", 3, 4], "z": ["batch", 3, 4]})
    graph = read_onnx(model, shapes={"x": (5, 3, 4)})
    assert graph.values["z"].shape == (5, 3, 4)
    assert graph.values["y"].shape == (5, 3, 4)


@pytest.mark.parametrize(
    ("dims", "shapes", "message"),
    [
        (
            {"x": ["batch", 3, 4]},
            None,
            "graph: dimension 0 ('batch') of input 'x' has no size; give for example shapes={'x': (8, 3, 4)}"
            " or --input x=8x3x4",
        ),
        (
            {"x": [2, None, 4]},
            None,
            "graph: dimension 1 of input 'x' has no size; give for example shapes={'x': (2, 8, 4)} or"
            " --input x=2x8x4",
        ),
        ({}, {"x": (3, 3, 4)}, "shapes of graph: x: dimension 0 is 2 in the file, not 3"),
        ({}, {"x": (3, 4)}, "shapes of graph: x: 2 dimensions are given, the file has 3"),
        ({}, {"xx": (3, 4)}, "shapes of graph: no 'xx'; choices are x, z; nearest is 'x'"),
        ({}, {"x": (2, 0, 4)}, "shapes of graph: x: 0 is no size; use whole numbers of at least 1"),
        ({}, {"x": 3}, "shapes of graph: x: 3 is no shape; write shapes="),
        ({}, 3, "shapes: 3 holds no values by name"),
        (
            {"x": ["n", 3, 4], "z": ["n", 3, 4]},
            {"x": (2, 3, 4), "z": (5, 3, 4)},
            "shapes of graph: z: dimension 0 is 'n', which is 2 in another place, not 5",
        ),
    ],
)
def test_wrong_shapes_are_refused(dims: dict[str, list[Any]], shapes: Any, message: str) -> None:
    model = set_dims(add_model(), dims)
    with pytest.raises(InvalidInput) as raised:
        read_onnx(model, shapes=shapes)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_an_input_without_a_rank_needs_a_shape() -> None:
    model = add_model()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.ir_version = 8
    message = r"graph: input 'x' has no shape; give it with shapes=\{'x': \(...\)\} or --input x=8x3x224x224"
    with pytest.raises(InvalidInput, match=message):
        read_onnx(model)
    assert read_onnx(model, shapes={"x": (2, 3, 4)}).values["y"].shape == (2, 3, 4)


def test_dtype_reads_every_floating_tensor_as_that_type() -> None:
    nodes = [
        node("Cast", "x", "wide", to=TensorProto.DOUBLE),
        node("Add", "wide b", "sum"),
        node("Cast", "sum", "narrow", to=TensorProto.FLOAT),
        node("Where", "keep narrow low", "masked"),
        node("Div", "masked eps", "y"),
    ]
    constants = {
        "b": draw((4,)).astype(np.float64),
        "keep": np.array([True, True, False, True]),
        "low": np.array(np.finfo(np.float32).min),
        "eps": np.array(1e-12, np.float32),
    }
    model = make_model(nodes, {"x": X}, ["y"], constants)
    graph = read_onnx(model, dtype="float16")
    floating = {v.dtype for v in graph.values.values() if v.dtype.kind == "f" and v.shape}
    assert floating == {np.dtype(np.float16)}
    assert list_kinds(graph) == ["add", "where", "div"]
    assert graph.values["1e-12:float64"].data == 1e-12
    assert graph.values["-65504.0:float64"].data == np.finfo(np.float16).min
    assert graph.notes == (
        "all floating tensors are read as float16",
        "1 constants have elements beyond the range of the new type, which became its largest number, 'low'"
        " for one",
    )
    plain = read_onnx(model)
    assert {v.dtype.name for v in plain.values.values() if v.shape} == {"float32", "bool", "float64"}
    assert plain.values["sum"].dtype == np.float64


def test_external_data_is_mapped_and_may_be_missing(tmp_path: Path) -> None:
    weight = draw((64, 32))
    model = make_model([node("MatMul", "x w", "y")], {"x": draw((3, 64))}, ["y"], {"w": weight})
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    graph = read_onnx(path)
    assert graph.name == "model"
    assert isinstance(graph.values["w"].data, np.memmap)
    np.testing.assert_array_equal(graph.values["w"].data, weight)
    assert graph.notes == ()
    (tmp_path / "weights.bin").write_bytes(b"short")
    with pytest.raises(InvalidInput, match=r"initialiser 'w' needs 8192 bytes of weights.bin, which has 5;"):
        read_onnx(path)
    (tmp_path / "weights.bin").unlink()
    graph = read_onnx(path)
    assert (graph.values["w"].data, graph.values["w"].is_constant) == (None, True)
    assert graph.notes == (
        "1 initialisers have their data in a file that is missing, 'w' for one: their shapes are read, not"
        " their elements",
    )
    assert ekc.models.from_onnx(path).coverage.flops == 1


@pytest.mark.parametrize("location", ["/etc/passwd", "../weights.bin"])
def test_external_data_stays_in_the_folder_of_the_model(location: str, tmp_path: Path) -> None:
    model = make_model([node("MatMul", "x w", "y")], {"x": X}, ["y"], {"w": draw((4, 4))})
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], location, 0, 64)
    model.graph.initializer[0].ClearField("raw_data")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InvalidInput, match="which is not in the folder of the model"):
        read_onnx(path)


def test_sparse_initialisers_are_dense_constants() -> None:
    values = numpy_helper.from_array(np.array([2.0, 3.0], np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 6])), [4, 2])
    model = make_model([node("MatMul", "x w", "y")], {"x": X, "w": draw((4, 2))}, ["y"])
    del model.graph.input[1]
    model.graph.sparse_initializer.append(sparse)
    dense = np.zeros((4, 2), np.float32)
    dense[0, 1], dense[3, 0] = 2, 3
    (given,) = evaluate(read_onnx(model), [X])
    np.testing.assert_allclose(given, X @ dense, 1e-6)


def test_functions_of_the_model_are_inlined() -> None:
    body = [node("Relu", "a", "b"), node("Add", "b a", "c")]
    function = helper.make_function("local", "twice", ["a"], ["c"], body, [helper.make_opsetid("", NEWEST)])
    call = node("twice", "x", "y", domain="local")
    model = make_model([call], {"x": X}, ["y"], domains={"local": 1}, functions=[function])
    graph = check_model(state_outputs(model, {"x": X}), {"x": X})
    assert list_kinds(graph) == ["relu", "add"]


def test_the_branch_of_a_constant_condition_is_read() -> None:
    info = helper.make_tensor_value_info("t", TensorProto.FLOAT, [2, 3, 4])
    other = helper.make_tensor_value_info("e", TensorProto.FLOAT, [2, 3, 4])
    branches = {
        "then_branch": helper.make_graph([node("Relu", "x", "t")], "then", [], [info]),
        "else_branch": helper.make_graph([node("Neg", "x", "e")], "else", [], [other]),
    }
    model = make_model([node("If", "c", "y", **branches)], {"x": X}, ["y"], {"c": np.array(False)})
    assert list_kinds(check_model(model, {"x": X})) == ["neg", "reshape"]
    model = make_model([node("If", "c", "y", **branches)], {"x": X, "c": np.array(False)}, ["y"])
    (opaque,) = read_onnx(model).nodes
    assert opaque.inputs == ("c", "x")
    assert opaque.attributes == {"target": "If", "reason": "control flow: If"}


def test_operators_without_a_kind_are_listed() -> None:
    nodes = [
        node("TopK", "x k", "values places", axis=-1),
        node("mine", "values", "m", domain="my.domain"),
        node("Relu", "m", "y"),
        node("MatMulInteger", "i j", "q"),
    ]
    inputs = {"x": X, "i": np.ones((2, 3), np.int8), "j": np.ones((3, 4), np.int8)}
    model = make_model(nodes, inputs, ["y", "places", "q"], {"k": np.array([2])}, domains={"my.domain": 1})
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, 2]))
    graph = read_onnx(model)
    opaque = [n for n in graph.nodes if n.kind == "opaque"]
    assert [(n.target, n.attributes["reason"], n.output) for n in opaque] == [
        ("TopK", "no kind of node for this operator", "values"),
        ("TopK", "no kind of node for this operator", "places"),
        ("my.domain::mine", "an operator of the domain my.domain", "m"),
        ("MatMulInteger", "quantised: sums of products of integers", "q"),
    ]
    assert graph.values["m"].shape == (2, 3, 2)
    assert graph.notes == (
        "node 'm' (my.domain::mine): the file does not say the shape of 'm'; that of 'values' is taken",
    )
    listed = {(n.target, n.reason) for n in ekc.models.from_onnx(model).uncovered}
    assert ("my.domain::mine", "an operator of the domain my.domain") in listed


def test_a_sequence_is_the_tensors_that_it_is_made_of() -> None:
    nodes = [
        node("SequenceConstruct", "x z", "s"),
        node("ConcatFromSequence", "s", "c", axis=0),
        node("Relu", "c", "y"),
    ]
    model = make_model(nodes, {"x": X, "z": X}, ["y"])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 3, 4]))
    model.graph.value_info.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, [4, 3, 4]))
    graph = read_onnx(model)
    assert [(n.target, n.inputs) for n in graph.nodes] == [
        ("ConcatFromSequence", ("x", "z")),
        ("relu", ("c",)),
    ]


def test_nodes_without_a_use_are_left_out_with_a_note() -> None:
    model = make_model([node("Relu", "x", "y"), node("Exp", "x", "unused")], {"x": X}, ["y"])
    graph = read_onnx(model)
    assert list_kinds(graph) == ["relu"]
    assert graph.notes == ("1 nodes are left out, as no output needs them",)


def test_outputs_keep_their_names() -> None:
    nodes = [node("Relu", "x", "r"), node("Identity", "r", "y"), node("Identity", "x", "z")]
    graph = check_model(make_model(nodes, {"x": X}, ["y", "z", "r"]), {"x": X})
    assert graph.outputs == ("y", "z", "r")


def test_operators_of_onnx_runtime() -> None:
    nodes = [
        helper.make_node("SimplifiedLayerNormalization", ["x", "w"], ["n"], epsilon=1e-6, axis=-1),
        node("FusedMatMul", "n m", "f", domain="com.microsoft", transB=1, alpha=0.5),
        node("BiasGelu", "f b", "g", domain="com.microsoft"),
        node("QuickGelu", "g", "y", domain="com.microsoft"),
    ]
    constants = {"w": draw((4,)), "m": draw((5, 4)), "b": draw((5,))}
    model = make_model(nodes, {"x": X}, ["y"], constants, domains={"com.microsoft": 1})
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, 5]))
    graph = read_onnx(model)
    assert list_kinds(graph) == [
        "rms_norm",
        "permute",
        "matmul",
        "mul",
        "add",
        "gelu",
        "mul",
        "sigmoid",
        "mul",
    ]
    n = X / np.sqrt(np.square(X).mean(-1, keepdims=True) + 1e-6) * constants["w"]
    f = 0.5 * n @ constants["m"].T + constants["b"]
    erf = np.vectorize(__import__("math").erf)
    g = 0.5 * f * (1 + erf(f / np.sqrt(2)))
    (given,) = evaluate(graph, [X])
    np.testing.assert_allclose(given, g / (1 + np.exp(-1.702 * g)), 1e-5, 1e-5)


def test_an_old_opset_is_converted() -> None:
    nodes = [node("Squeeze", "x", "s", axes=[0]), node("Relu", "s", "y")]
    x = draw((1, 3, 4))
    model = make_model(nodes, {"x": x}, ["y"], opset=11)
    graph = read_onnx(model)
    np.testing.assert_array_equal(evaluate(graph, [x])[0], np.maximum(x[0], 0))
    assert graph.notes == ("opset 11 was converted to 13 by onnx.version_converter",)
