"""Attributes that the ONNX reader does not read make a node opaque; inputs given as values; old operators."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import ekc
from ekc.errors import InvalidInput
from ekc.models.build import build_model, execute_fused
from ekc.models.evaluate import evaluate
from ekc.models.onnx_reader import read_nodes
from ekc.models.onnx_reader.operation import Operation
from ekc.models.onnx_reader.read import read_onnx
from tests.models.onnx_models import Model, X, draw, make_info, make_model, node

SCALAR = np.array(1.5, np.float32)


def check_reference(model: Model, inputs: dict[str, Any], tolerance: float = 1e-6) -> None:
    """Graph and layers give what onnx.reference gives."""
    wanted = ReferenceEvaluator(model).run(None, inputs)
    graph = read_onnx(model)
    arrays = [inputs[name] for name in graph.inputs]
    results = [evaluate(graph, arrays)]
    try:
        built = build_model(graph)
    except InvalidInput:
        built = None
    if built is not None:
        assert built.fused is not None
        results.append(execute_fused(built.fused, arrays))
        assert not built.internal_errors
    for found in results:
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one.astype(float), other.astype(float), tolerance, tolerance)


def replace_reader(monkeypatch: pytest.MonkeyPatch, operator: str, read: Any) -> None:
    monkeypatch.setattr(read_nodes, "HANDLERS", {**read_nodes.HANDLERS, operator: read})


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth_has_two_modes(mode: str) -> None:
    x = draw((1, 4, 4, 6))
    model = make_model([node("SpaceToDepth", "x", "y", blocksize=2, mode=mode)], {"x": x}, ["y"], opset=28)
    check_reference(model, {"x": x})


def test_an_attribute_that_is_not_read_makes_the_node_opaque(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(op: Operation) -> None:
        op.finish("elementwise", [op.call("abs", op.input(0))], function="relu")

    replace_reader(monkeypatch, "Gelu", read)
    plain = make_model([node("Gelu", "x", "y", approximate="none")], {"x": X}, ["y"])
    assert [n.target for n in read_onnx(plain).nodes] == ["abs", "relu"]
    # LpPool has no definition by other operators, and no reader.
    replace_reader(monkeypatch, "LpPool", read)
    image = draw((1, 2, 6, 6))
    model = make_model([node("LpPool", "x", "y", kernel_shape=[1, 1], p=3)], {"x": image}, ["y"])
    (left,) = read_onnx(model).nodes
    assert left.attributes["reason"] == "attributes kernel_shape=[1, 1], p=3 are not supported"
    assert left.target == "LpPool"


def test_an_input_that_is_not_read_makes_the_node_opaque(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_reader(monkeypatch, "TopK", lambda op: op.finish("elementwise", [op.input(0)], function="relu"))
    model = make_model([node("TopK", "x k", "y places")], {"x": X}, ["y"], {"k": np.array([2])})
    assert read_onnx(model).nodes[0].attributes["reason"] == "input 1 ('k') is not supported"


def test_an_unexpected_error_makes_the_node_opaque_and_is_listed_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(op: Operation) -> None:
        op.call("abs", op.input(0))
        raise KeyError(3)

    replace_reader(monkeypatch, "Softplus", fail)
    model = make_model([node("Relu", "x", "a"), node("Softplus", "a", "y")], {"x": X}, ["y"])
    graph = read_onnx(model)
    assert [n.target for n in graph.nodes] == ["relu", "Softplus"]
    assert [n.name for n in graph.internal_errors] == ["y"]
    read = ekc.models.from_onnx(model)
    assert len(read.internal_errors) == 1
    assert "ekc failed at y (Softplus): internal error: KeyError: 3" in str(read)


@pytest.mark.parametrize("target", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_casts_to_8_bit_floats_saturate_where_the_file_says_so(target: str, saturate: int) -> None:
    x = np.array([1e9, -1e9, 3, np.inf, 0.1], np.float32)
    number = helper.np_dtype_to_tensor_dtype(np.dtype(getattr(ml_dtypes, target)))
    model = make_model([node("Cast", "x", "y", to=number, saturate=saturate)], {"x": x}, ["y"])
    (found,) = evaluate(read_onnx(model), [x])
    largest = float(ml_dtypes.finfo(found.dtype).max)
    if saturate:
        assert found.astype(float)[[0, 1, 3]].tolist() == [largest, -largest, largest]
    else:
        assert not np.isfinite(found.astype(float)[:2]).any()


@pytest.mark.parametrize(
    "nodes",
    [
        [*(node(f"Reduce{n}", "x", n, keepdims=0) for n in ("Max", "Min")), node("Sub", "Max Min", "y")],
        [node("ReduceSum", "x", "a", keepdims=0), node("Mul", "a s", "b"), node("Add", "b s", "y")],
        [node("Exp", "s", "a"), node("ReduceMean", "a", "b", keepdims=0), node("Div", "b s", "y")],
        [node("ReduceMax", "x", "a", keepdims=0), node("PRelu", "a s", "b"), node("Sub", "s b", "y")],
    ],
)  # fmt: skip
def test_scalars_of_scalars(nodes: list[onnx.NodeProto]) -> None:
    inputs = {"x": draw((4, 8)), "s": SCALAR}
    check_reference(make_model(nodes, inputs, ["y"]), inputs)


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_slopes_of_opset_6_are_one_for_each_channel(rank: int) -> None:
    x, slope = draw((4,) * rank), np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    model = make_model([node("PRelu", "x s", "y")], {"x": x}, ["y"], {"s": slope}, opset=6)
    model.ir_version = 4
    shape = (4, *(1,) * (rank - 2))
    (found,) = evaluate(read_onnx(model), [x])
    np.testing.assert_allclose(found, np.where(x < 0, x * slope.reshape(shape), x), 1e-6)


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_pads_of_opset_10_are_read(mode: str) -> None:
    x = draw((1, 1, 3, 4))
    pads = [0, 0, 1, 2, 0, 0, 0, 1]
    model = make_model([node("Pad", "x", "y", pads=pads, mode=mode)], {"x": x}, ["y"], opset=10)
    model.ir_version = 4
    graph = read_onnx(model)
    if mode == "constant":
        np.testing.assert_array_equal(evaluate(graph, [x])[0], np.pad(x, [(0, 0), (0, 0), (1, 0), (2, 1)]))
    else:
        assert graph.nodes[0].attributes["reason"] == "padding of mode reflect"


def test_gather_elements_by_places_that_are_inputs() -> None:
    inputs = {"x": draw((3, 4, 2)), "i": np.array([[[0, -1], [2, 1]], [[-4, 3], [1, 1]], [[3, -2], [0, 0]]])}
    check_reference(make_model([node("GatherElements", "x i", "y", axis=1)], inputs, ["y"]), inputs)


def make_rate_model() -> Model:
    """A model that takes its sampling rate as an input, and has a branch for each."""
    branches = [
        helper.make_graph(
            [node("MatMul", f"x w{n}", f"b{n}")], f"g{n}", [], [make_info(f"b{n}", draw((2, 4)))]
        )
        for n in (0, 1)
    ]
    nodes = [
        node("Equal", "rate wide", "c"),
        helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    inputs = {"x": draw((2, 3)), "rate": np.array(16000)}
    weights = {"w0": draw((3, 4)), "w1": draw((3, 4)), "wide": np.array(16000)}
    return make_model(nodes, inputs, ["y"], weights)


@pytest.mark.parametrize("rate", [16000, 8000])
def test_the_value_of_an_input_decides_a_branch(rate: int) -> None:
    model = make_rate_model()
    assert [n.kind for n in read_onnx(model).nodes if n.kind == "opaque"] == ["opaque"]
    graph = read_onnx(model, values={"rate": rate})
    assert graph.inputs == ("x",)
    x = draw((2, 3))
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x, "rate": np.array(rate)})
    np.testing.assert_allclose(evaluate(graph, [x])[0], wanted, 1e-6)
    assert len(ekc.models.from_onnx(model, values={"rate": rate}).layers) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rat": 1}, "values of graph: no 'rat'; "),
        ({"rate": "fast"}, "values of graph: rate: 'fast' does not fit the type int64 of the input; "),
        ({"rate": 0.5}, "values of graph: rate: 0.5 does not fit the type int64"),
        ({"rate": [1, 2]}, "shapes of graph: rate: 1 dimensions are given, the file has 0"),
        ({"rate": None}, "values of graph: rate: None does not fit the type int64"),
        ({"rate": 1j}, "values of graph: rate: 1j does not fit the type int64"),
        ({"x": np.full((2, 3), 1e300)}, "values of graph: x: array("),
        ({"x": np.ma.masked_less(np.ones((2, 3)), 2)}, "x is a masked array with masked elements"),
        ([1], "values: "),
    ],
)
def test_values_that_do_not_fit_are_refused(values: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        read_onnx(make_rate_model(), values=values)
    assert str(raised.value).startswith(message)


def test_a_shape_that_is_an_output_is_a_constant() -> None:
    model = make_model([node("Shape", "x", "s"), node("Relu", "x", "y")], {"x": X}, ["y", "s"])
    graph = read_onnx(model)
    assert [n.target for n in graph.nodes] == ["relu"]
    assert graph.notes == ()
    assert evaluate(graph, [X])[1].tolist() == list(X.shape)


def test_two_dimensions_without_a_name_may_differ() -> None:
    model = make_model([node("Relu", "x", "y")], {"x": draw((1, 3, 2, 2))}, ["y"])
    for axis in (2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = "?"
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    assert read_onnx(model, shapes={"x": (1, 3, 48, 192)}).values["y"].shape == (1, 3, 48, 192)
    with pytest.raises(InvalidInput, match=r"dimension 2 \('\?'\) of input 'x' has no size"):
        read_onnx(model)


def test_a_tensor_may_have_the_name_of_a_number() -> None:
    x = draw((2, 3))
    nodes = [node("Exp", "x", "0.5:float64"), node("Mul", "x half", "a"), node("Add", "a 0.5:float64", "y")]
    model = make_model(nodes, {"x": x}, ["y"], {"half": np.array(0.5, np.float32)})
    check_reference(model, {"x": x})
