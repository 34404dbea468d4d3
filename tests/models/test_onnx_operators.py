"""Operators of ONNX, read into a graph, equal `onnx.reference` at several opsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from ekc.models.evaluate import evaluate
from ekc.models.onnx_reader.read import read_onnx
from tests.models.onnx_models import NEWEST, Array, check_model, draw, make_model, state_outputs

I64, F32 = np.int64, np.float32


@dataclass(frozen=True, eq=False)
class Case:
    """A node: arrays are inputs, `("c", array)` constants, None an input that is left out."""

    op: str
    inputs: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    kinds: str | None = None
    """Kinds of the graph's nodes in order; a function for an elementwise one."""
    outputs: int = 1
    opsets: tuple[int, int] = (13, 999)
    """First and last opset with these inputs and attributes."""
    tolerance: float = 2e-5


def c(*values: Any, dtype: Any = I64) -> tuple[str, Array]:
    """A constant vector."""
    return "c", np.array(values, dtype)


def const(array: Array) -> tuple[str, Array]:
    return "c", array


def x(*shape: int, seed: int = 0) -> Array:
    return draw(shape, seed)


def positive(*shape: int) -> Array:
    return np.abs(x(*shape)) + F32(0.5)


A, B = x(2, 3, 4), x(2, 3, 4, seed=1)
TRUE = A > 0
IMAGE = x(2, 4, 7, 6)
UNARY = [
    "Relu",
    "Sigmoid",
    "Tanh",
    "Erf",
    "Exp",
    "Neg",
    "Abs",
    "Sin",
    "Cos",
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "Softplus",
    "Softsign",
    "Mish",
    "HardSwish",
    "Selu",
    "Celu",
    "Elu",
    "LeakyRelu",
    "ThresholdedRelu",
    "Identity",
    "Tan",
]
FIRST = {"HardSwish": 14, "Mish": 18, "Gelu": 20, "Swish": 24, "GroupNormalization": 21, "Attention": 23}
FIRST |= {"RMSNormalization": 23, "LayerNormalization": 17, "Trilu": 14, "RotaryEmbedding": 23, "SwiGLU": 28}
FIRST |= {"CenterCropPad": 18}
# onnx.reference has no version before 19.
FIRST |= {"DequantizeLinear": 19}

CASES = [
    *(Case(op, (A,)) for op in UNARY),
    *(Case(op, (positive(2, 3),)) for op in ("Log", "Sqrt", "Reciprocal")),
    *(Case(op, (A, x(3, 1))) for op in ("Add", "Sub", "Mul", "Div", "Min", "Max", "PRelu")),
    *(Case(op, (A, B)) for op in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")),
    *(Case(op, (TRUE, B > 0)) for op in ("And", "Or", "Xor")),
    Case("Not", (TRUE,), kinds="logical_not"),
    Case("Div", (np.array([7, -7, 9]), np.array([2, 2, -4])), kinds="div"),
    Case("Where", (TRUE, A, x(4)), kinds="where"),
    Case("Pow", (positive(2, 3), x(3)), kinds="power"),
    Case("Pow", (A, c(2.0, dtype=F32)), kinds="square"),
    Case("Pow", (A, const(np.array(3)))),
    Case("Pow", (positive(2, 3), const(np.array(0.5, F32))), kinds="sqrt"),
    Case("Mod", (np.array([7, -7, 5]), np.array([3, 3, -3])), kinds="remainder"),
    Case("Sum", (A, B, x(4)), kinds="add add"),
    Case("Mean", (A, B, x(4))),
    Case("Sum", (A,)),
    Case("Max", (A, B, x(3, 1))),
    Case("Clip", (A, c(0.0, dtype=F32)), kinds="relu"),
    Case("Clip", (A, const(np.array(-0.5, F32)), const(np.array(0.5, F32))), kinds="clamp"),
    Case("Clip", (A, None, const(np.array(0.5, F32))), kinds="clamp"),
    Case("Clip", (A, np.array(-0.5, F32), np.array(0.5, F32)), kinds="maximum minimum"),
    Case("HardSigmoid", (A,), {"alpha": 1 / 6, "beta": 0.5}, "mul add minimum maximum"),
    Case("HardSigmoid", (A,), {"alpha": 0.3, "beta": 0.4}, "mul add minimum maximum"),
    Case("Gelu", (A,), kinds="gelu"),
    Case("Gelu", (A,), {"approximate": "tanh"}, "gelu_tanh"),
    Case("Swish", (A,), kinds="mul sigmoid mul"),
    Case("Swish", (A,), {"alpha": 0.5}, "mul sigmoid mul"),
    Case("SwiGLU", (A, B)),
    Case("IsNaN", (np.array([1, np.nan, np.inf], F32),)),
    Case("IsInf", (np.array([1, np.nan, np.inf, -np.inf], F32),)),
    Case("IsInf", (np.array([1, np.nan, np.inf, -np.inf], F32),), {"detect_negative": 0}),
    Case("Cast", (A,), {"to": TensorProto.FLOAT16}, "cast"),
    Case("Cast", (A,), {"to": TensorProto.INT32}, "cast"),
    Case("Cast", (A,), {"to": TensorProto.FLOAT}),
    Case("CastLike", (A, c(1)), kinds="cast", opsets=(15, 999)),
    Case("Trilu", (A,)),
    Case("Trilu", (A, const(np.array(-1))), {"upper": 0}),
    Case("Dropout", (A,)),
    # Views and moves.
    Case("Reshape", (A, c(0, -1)), kinds="reshape"),
    Case("Flatten", (IMAGE,), {"axis": 2}, "reshape"),
    Case("Squeeze", (x(1, 3, 1, 2), c(0, -2)), kinds="reshape"),
    Case("Unsqueeze", (A, c(0, -1)), kinds="reshape"),
    Case("Transpose", (A,), {"perm": [2, 0, 1]}, "permute"),
    Case("Transpose", (A,), kinds="permute"),
    Case("Expand", (x(3, 1), c(2, 1, 4)), kinds="expand"),
    Case("Slice", (IMAGE, c(1, 0), c(-1, 99), c(-1, 1), c(2, 3)), kinds="slice slice"),
    Case("Slice", (IMAGE, c(-1), c(-99), c(2), c(-2)), kinds="gather"),
    Case("Slice", (A, c(0), c(1))),
    Case("Split", (IMAGE,), {"axis": 1}, outputs=2, opsets=(13, 17), kinds="slice slice"),
    Case("Split", (IMAGE, c(1, 6)), {"axis": -2}, outputs=2, kinds="slice slice"),
    Case("Split", (IMAGE,), {"axis": 2, "num_outputs": 3}, outputs=3, opsets=(18, 999)),
    Case("Concat", (A, x(2, 1, 4)), {"axis": -2}, "concat"),
    Case("Gather", (A, np.array([[0, 2], [1, 1]])), {"axis": 1}, "gather"),
    Case("Gather", (A, const(np.array(-1))), {"axis": 1}, "slice reshape"),
    Case("Gather", (A, c(0, -1)), {"axis": -1}, "gather"),
    Case("Gather", (A, c(1, 2)), {"axis": 1}, "slice"),
    Case("Pad", (A, c(0, 1, 0, 2, 0, 0), const(np.array(2.5, F32))), kinds="pad"),
    Case("Pad", (A, c(1, 2), None, c(-1)), opsets=(18, 999), kinds="pad"),
    Case("Tile", (x(2, 1), c(1, 3)), kinds="expand"),
    Case("Tile", (A, c(1, 2, 3)), kinds="reshape expand reshape"),
    Case("DepthToSpace", (x(1, 8, 2, 3),), {"blocksize": 2}),
    Case("DepthToSpace", (x(1, 8, 2, 3),), {"blocksize": 2, "mode": "CRD"}),
    Case("SpaceToDepth", (x(1, 2, 4, 6),), {"blocksize": 2}),
    Case("CenterCropPad", (IMAGE, c(5, 8)), {"axes": [2, 3]}),
    # Products.
    Case("MatMul", (x(2, 3, 4), x(4, 5)), kinds="matmul"),
    Case("MatMul", (x(2, 1, 3, 4), x(5, 4, 2)), kinds="matmul"),
    Case("MatMul", (x(4), x(2, 4, 3))),
    Case("MatMul", (x(2, 3, 4), x(4))),
    Case("MatMul", (x(4), x(4))),
    Case("Gemm", (x(3, 4), const(x(4, 5)), const(x(5))), kinds="matmul add"),
    Case("Gemm", (x(4, 3), x(5, 4), x(3, 1)), {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    Case("Gemm", (x(3, 4), x(4, 5)), kinds="matmul"),
    *(
        Case("Einsum", arrays, {"equation": equation})
        for equation, *arrays in (
            ("bhid,bhjd->bhij", x(2, 3, 4, 5), x(2, 3, 6, 5)),
            ("bij,bjk->bik", x(2, 3, 4), x(2, 4, 5)),
            ("ij,kj", x(3, 4), x(5, 4)),
            ("i,j->ij", x(3), x(4)),
            ("...ij,...jk->...ik", x(2, 3, 4), x(2, 4, 5)),
            ("bi,bi->b", x(2, 3), x(2, 3)),
            ("abc,cd->bd", x(2, 3, 4), x(4, 5)),
            ("ijk->kj", x(2, 3, 4)),
        )
    ),
    Case("Conv", (IMAGE, const(x(6, 4, 3, 3)), const(x(6))), {"pads": [1, 0, 1, 2], "strides": [2, 1]}),
    Case("Conv", (IMAGE, x(8, 2, 3, 2)), {"group": 2, "dilations": [2, 1]}, "conv"),
    Case("Conv", (IMAGE, x(8, 4, 3, 2)), {"auto_pad": "VALID", "strides": [2, 3]}),
    Case("Conv", (x(2, 3, 9), x(4, 3, 3)), {"pads": [1, 1]}, "conv"),
    Case("Conv", (x(1, 2, 4, 5, 6), x(3, 2, 2, 3, 3)), {"pads": [0, 1, 1, 1, 0, 1]}, "conv", tolerance=1e-4),
    Case("ConvTranspose", (IMAGE, x(4, 3, 3, 3)), {"strides": [2, 3], "pads": [1, 0, 0, 2]}),
    Case("ConvTranspose", (IMAGE, x(4, 3, 3, 3), x(3)), {"strides": [2, 2], "output_padding": [1, 0]}),
    Case("ConvTranspose", (IMAGE, x(4, 3, 3, 3)), {"dilations": [2, 1]}),
    Case("ConvTranspose", (IMAGE, x(4, 3, 3, 3)), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    # Normalizations, softmax and attention.
    Case(
        "BatchNormalization",
        (IMAGE, x(4), x(4), x(4), positive(4)),
        {"epsilon": 1e-3},
        "batch_norm",
        opsets=(15, 999),
    ),
    Case("LayerNormalization", (A, x(4), x(4)), kinds="layer_norm"),
    Case("LayerNormalization", (A, x(3, 4)), {"axis": 1, "epsilon": 1e-2}, "layer_norm"),
    Case("LayerNormalization", (A, x(4)), {"axis": 1}, "expand layer_norm"),
    Case("LayerNormalization", (A, x(4), x(4)), outputs=3),
    Case("RMSNormalization", (A, x(4)), {"epsilon": 1e-2}, "rms_norm"),
    Case("GroupNormalization", (IMAGE, x(4), x(4)), {"num_groups": 2}, "group_norm"),
    Case("InstanceNormalization", (IMAGE, x(4), x(4)), kinds="group_norm"),
    Case("MeanVarianceNormalization", (IMAGE,)),
    Case("Softmax", (A,), kinds="softmax"),
    Case("Softmax", (A,), {"axis": 1}, "softmax"),
    Case("LogSoftmax", (A,)),
    Case("Attention", (x(2, 3, 5, 8), x(2, 3, 7, 8), x(2, 3, 7, 4)), kinds="attention"),
    Case("Attention", (x(2, 6, 5, 8), x(2, 2, 7, 8), x(2, 2, 7, 8)), {"scale": 0.2}, "attention"),
    Case("Attention", (x(2, 3, 5, 8), x(2, 3, 5, 8), x(2, 3, 5, 8)), {"is_causal": 1}, "attention"),
    Case("Attention", (x(2, 3, 5, 8), x(2, 3, 7, 8), x(2, 3, 7, 8), x(5, 7)), kinds="attention"),
    Case("Attention", (x(2, 3, 5, 8), x(2, 3, 7, 8), x(2, 3, 7, 8), x(5, 7) < 1), kinds="attention"),
    Case("Attention", (x(2, 5, 24), x(2, 7, 24), x(2, 7, 12)), {"q_num_heads": 3, "kv_num_heads": 3}),
    Case("Attention", (x(2, 3, 5, 8),) * 3, {"softcap": 2.0}),
    Case("Attention", (*[x(2, 3, 5, 8)] * 3, None, *[x(2, 3, 4, 8)] * 2), outputs=3),
    Case("Attention", (*[x(2, 3, 5, 8)] * 3, None, *[x(2, 3, 4, 8)] * 2), {"is_causal": 1}, outputs=3),
    Case("RotaryEmbedding", (x(2, 3, 4, 8), x(10, 4), x(10, 4), np.array([[0, 1, 2, 3], [4, 5, 6, 7]]))),
    # Pools, reductions, resizing.
    Case("MaxPool", (IMAGE,), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}, "max_pool"),
    Case("MaxPool", (IMAGE,), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}, "max_pool"),
    Case("MaxPool", (IMAGE,), {"kernel_shape": [2, 2], "dilations": [2, 1]}, "max_pool"),
    Case("MaxPool", (IMAGE,), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    Case(
        "AveragePool", (IMAGE,), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}, "avg_pool"
    ),
    Case("AveragePool", (IMAGE,), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "count_include_pad": 1}),
    Case("AveragePool", (IMAGE,), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}, "avg_pool"),
    Case(
        "AveragePool",
        (IMAGE,),
        {
            **{"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
            "count_include_pad": 1,
        },
    ),
    Case("GlobalAveragePool", (IMAGE,), kinds="reduce"),
    Case("GlobalMaxPool", (IMAGE,), kinds="reduce"),
    *(
        Case(op, (positive(2, 3, 4),), {"axes": [-1, 0], "keepdims": keep}, opsets=(13, 17))
        for op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2")
        for keep in (0, 1)
    ),
    *(
        Case(op, (positive(2, 3, 4), c(-1, 0)), {"keepdims": keep}, opsets=(18, 999))
        for op in (
            "ReduceMean",
            "ReduceMax",
            "ReduceL2",
            "ReduceSumSquare",
            "ReduceLogSum",
            "ReduceLogSumExp",
        )
        for keep in (0, 1)
    ),
    Case("ReduceSum", (A, c(1)), kinds="reduce"),
    Case("ReduceSum", (A,)),
    Case("ReduceSum", (A,), {"noop_with_empty_axes": 1}),
    Case("Resize", (IMAGE, None, c(1, 1, 2, 3, dtype=F32)), {"mode": "nearest"}, "resize"),
    Case(
        "Resize",
        (IMAGE, None, None, c(2, 4, 14, 18)),
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        "resize",
    ),
    Case(
        "Resize",
        (x(1, 2, 8, 6), None, None, c(1, 2, 4, 9)),
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    # Quantised conversions.
    Case("QuantizeLinear", (A, const(np.array(0.1, F32)), const(np.array(3, np.uint8)))),
    Case("QuantizeLinear", (A, c(0.1, 0.2, 0.3, dtype=F32), c(1, 2, 3, dtype=np.int8)), {"axis": 1}),
    Case(
        "DequantizeLinear", ((A * 9).astype(np.int8), const(np.array(0.1, F32)), const(np.array(3, np.int8)))
    ),
    Case("DequantizeLinear", ((A * 9).astype(np.int8), c(0.1, 0.2, 0.3, dtype=F32)), {"axis": 1}),
]


def name_case(case: Case) -> str:
    """The operator and its attributes."""
    words = [f"{key}={value}" for key, value in case.attributes.items()]
    return " ".join([case.op, *words]).replace("/", ":")


def build(case: Case, opset: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node, and its inputs."""
    inputs, constants, names = {}, {}, []
    for index, given in enumerate(case.inputs):
        names.append("" if given is None else f"i{index}")
        if isinstance(given, tuple):
            constants[f"i{index}"] = given[1]
        elif given is not None:
            inputs[f"i{index}"] = given
    outputs = [f"y{index}" for index in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, name="the node", **case.attributes)
    return state_outputs(make_model([node], inputs, outputs, constants, opset), inputs), inputs


def list_cases() -> list[Any]:
    """Each case at each of the opsets that has it."""
    found = []
    for number, case in enumerate(CASES):
        first = max(case.opsets[0], FIRST.get(case.op, 13))
        opsets = [n for n in (13, 17, 18, 21, NEWEST) if first <= n <= case.opsets[1]]
        for opset in opsets:
            marks = [] if opset in (opsets[0], opsets[-1]) else [pytest.mark.exhaustive]
            name = f"{number} {name_case(case)} opset {opset}"
            found.append(pytest.param(case, opset, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("case", "opset"), list_cases())
def test_operator_equals_the_reference(case: Case, opset: int) -> None:
    model, inputs = build(case, opset)
    graph = check_model(model, inputs, case.tolerance)
    assert all(node.kind != "opaque" for node in graph.nodes)
    if case.kinds is not None:
        assert [node.attributes.get("function", node.kind) for node in graph.nodes] == case.kinds.split()


def check_node(
    op: str, inputs: dict[str, Array], expected: Array, opset: int = 13, **attributes: Any
) -> None:
    """Hold a node that `onnx.reference` cannot compute against an array."""
    node = helper.make_node(op, list(inputs), ["y"], **attributes)
    given = {"x": inputs["x"]}
    constants = {name: array for name, array in inputs.items() if name != "x"}
    model = make_model([node], given, ["y"], constants, opset)
    graph = read_onnx(model)
    (found,) = evaluate(graph, [inputs["x"]])
    assert all(node.kind != "opaque" for node in graph.nodes)
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


@pytest.mark.parametrize(("auto_pad", "pads"), [("SAME_UPPER", [1, 0, 1, 1]), ("SAME_LOWER", [1, 1, 1, 0])])
def test_padding_that_a_convolution_finds_is_that_of_the_same_size(auto_pad: str, pads: list[int]) -> None:
    inputs = {"x": IMAGE, "w": x(8, 4, 3, 3)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2], pads=pads)
    expected = ReferenceEvaluator(make_model([node], inputs, ["y"])).run(None, inputs)[0]
    check_node("Conv", inputs, expected, auto_pad=auto_pad, strides=[2, 2])


def test_padding_below_zero_cuts() -> None:
    expected = np.pad(A[:, 1:, :-2], ((0, 0), (0, 2), (0, 0)))
    check_node("Pad", {"x": A, "pads": np.array([0, -1, 0, 0, 2, -2])}, expected)


def test_groups_of_transposed_convolutions_are_convolutions_of_parts() -> None:
    weight = x(4, 3, 3, 3)
    halves = []
    for part in (slice(0, 2), slice(2, 4)):
        inputs = {"x": IMAGE[:, part], "w": weight[part]}
        model = make_model([helper.make_node("ConvTranspose", ["x", "w"], ["y"])], inputs, ["y"])
        halves.append(ReferenceEvaluator(model).run(None, inputs)[0])
    check_node("ConvTranspose", {"x": IMAGE, "w": weight}, np.concatenate(halves, 1), group=2)


@pytest.mark.parametrize(
    ("auto_pad", "first"), [("NOTSET", (1, 1)), ("SAME_UPPER", (0, 0)), ("SAME_LOWER", (1, 1))]
)
def test_output_shape_of_a_transposed_convolution_cuts_its_border(
    auto_pad: str, first: tuple[int, int]
) -> None:
    inputs = {"x": IMAGE, "w": x(4, 3, 3, 3)}
    model = make_model([helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])], inputs, ["y"])
    full = ReferenceEvaluator(model).run(None, inputs)[0]
    assert full.shape[2:] == (15, 13)
    expected = full[:, :, first[0] : first[0] + 14, first[1] : first[1] + 12]
    options = {"strides": [2, 2], "output_shape": [14, 12], "auto_pad": auto_pad}
    check_node("ConvTranspose", inputs, expected, **options)


def test_batch_norm_of_opset_13_is_that_of_opset_15() -> None:
    """`onnx.reference` computes that of opset 9 to 13 as in training."""
    scale, bias, mean, variance = (positive(4) * n for n in (1, 2, 3, 4))
    expected = (IMAGE - mean[:, None, None]) / np.sqrt(variance + 1e-3)[:, None, None]
    expected = expected * scale[:, None, None] + bias[:, None, None]
    inputs = {"x": IMAGE, "s": scale, "b": bias, "m": mean, "v": variance}
    check_node("BatchNormalization", inputs, expected, epsilon=1e-3)


def test_scales_of_opset_13_dequantize() -> None:
    data = (A * 9).astype(np.int8)
    inputs = {"x": data, "s": np.array([0.1, 0.2, 0.3], F32), "z": np.array([1, 2, 3], np.int8)}
    expected = (data.astype(F32) - inputs["z"][:, None]) * inputs["s"][:, None]
    check_node("DequantizeLinear", inputs, expected, axis=1)
