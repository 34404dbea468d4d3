"""ONNX models and files that are refused, each in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ekc
from ekc.errors import InvalidInput
from ekc.models.onnx_reader.read import read_onnx
from tests.models.onnx_models import NEWEST, Model, X, add_model, draw, make_attention_block, make_model, node


def complex_model() -> Model:
    model = make_model([node("DFT", "x", "y", onesided=0)], {"x": draw((1, 4, 2))}, ["y"], opset=17)
    info = helper.make_tensor_value_info("x", TensorProto.COMPLEX64, [1, 4])
    model.graph.input[0].CopyFrom(info)
    model.graph.node[0].op_type = "Identity"
    del model.graph.node[0].attribute[:]
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.COMPLEX64, [1, 4]))
    return model


def sequence_model() -> Model:
    model = make_model([node("SequenceAt", "x i", "y")], {"x": X, "i": np.array(0)}, ["y"])
    element = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3])
    model.graph.input[0].CopyFrom(helper.make_value_info("x", helper.make_sequence_type_proto(element)))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3]))
    return model


def broken_model() -> Model:
    return make_model([helper.make_node("Relu", ["nothing"], ["y"], name="bad")], {"x": X}, ["y"])


def mismatched_model() -> Model:
    model = add_model()
    model.graph.node[0].CopyFrom(helper.make_node("MatMul", ["x", "z"], ["y"], name="product"))
    return model


def nonzero_model() -> Model:
    return make_model([node("NonZero", "x", "n"), node("Neg", "n", "y")], {"x": X}, ["y"])


def text_model() -> Model:
    return make_model([node("StringConcat", "x x", "y")], {"x": np.array(["a"], object)}, ["y"])


def newest_model() -> Model:
    model = add_model()
    model.opset_import[0].version = NEWEST + 1
    return model


def oldest_model() -> Model:
    model = make_model([node("Relu", "x", "y")], {"x": X}, ["y"], opset=13)
    model.graph.node[0].CopyFrom(
        node("Upsample", "x", "y", mode="nearest", height_scale=2.0, width_scale=2.0)
    )
    model.opset_import[0].version = 1
    model.ir_version = 3
    return model


def nothing_model() -> Model:
    return make_model([node("TopK", "x k", "y places", axis=-1)], {"x": X}, ["y"], {"k": np.array([2])})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (complex_model, "graph: input 'x': tensors of type complex64 are not supported; cast to float32"),
        (sequence_model, "graph: input 'x' has the type sequence; only tensors are supported"),
        (
            broken_model,
            "graph: onnx.checker refuses the model: Nodes in a graph must be topologically",
        ),
        (mismatched_model, "graph: node 'product' (MatMul): its shape cannot be inferred: "),
        (
            nonzero_model,
            "graph: node 'n' (NonZero): the shape of 'n' depends on data or is not in the file",
        ),
        (text_model, "graph: input 'x': tensors of text are not supported"),
        (
            newest_model,
            f"graph: opset {NEWEST + 1}, and onnx {onnx.__version__} knows {NEWEST}",
        ),
        (oldest_model, "graph: opset 1, at least 13; onnx.version_converter cannot convert it ("),
        (nothing_model, "graph: no layer to tune; TopK (y): no kind of node for this operator"),
    ],
)
def test_models_that_cannot_be_read_are_refused_in_a_line(make: Callable[[], Model], message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        ekc.models.from_onnx(make())
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_float64_stays_float64_and_is_no_layer() -> None:
    model = make_model([node("Relu", "x", "y")], {"x": X.astype(np.float64)}, ["y"])
    assert read_onnx(model).values["y"].dtype == np.float64
    with pytest.raises(
        InvalidInput, match=r"float64: ekc computes in float32; read the model with dtype='float"
    ):
        ekc.models.from_onnx(model)
    assert read_onnx(model, dtype="float32").values["y"].dtype == np.float32
    with pytest.raises(InvalidInput, match=r"dtype: no 'half'; choices are float16, bfloat16, float32"):
        read_onnx(model, dtype="half")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "model.onnx: no such file; give the path of an ONNX model"),
        (b"", "model.onnx: no ONNX model"),
        (b"import torch\n# a text\n" * 9, "model.onnx: no ONNX model"),
        (b"\x00\xff\x13" * 50, "model.onnx: no ONNX model"),
        ("half", "model.onnx: "),
    ],
)
def test_files_that_are_no_model_are_refused(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    if content == "half":
        data = make_attention_block(NEWEST).SerializeToString()
        content = data[: len(data) // 2]
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput) as raised:
        read_onnx(path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("source", [3, None, b"model"])
def test_other_sources_are_refused(source: Any) -> None:
    with pytest.raises(InvalidInput, match="ONNX model: "):
        read_onnx(source)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InvalidInput) as raised:
        read_onnx("model.onnx")
    assert str(raised.value) == "ONNX models need the package onnx: pip install 'ekc[onnx]'"
