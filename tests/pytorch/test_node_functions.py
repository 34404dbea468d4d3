"""Functions of PyTorch for the kinds of node, held against the evaluation of a graph in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ekc.errors import InvalidInput
from ekc.models.evaluate import evaluate_node
from ekc.models.functions import FUNCTIONS
from ekc.models.graph import KINDS, Node, Value

torch = pytest.importorskip("torch", reason="PyTorch is not installed; .ci/run installs a build for the CPU")

CONV = {"stride": (2, 1), "padding": ((1, 1), (0, 0)), "dilation": (1, 2), "groups": 2}
POOL = {"kernel": (3, 2), "stride": (2, 2), "padding": ((1, 1), (0, 0)), "dilation": (1, 1)}
X = (2, 4, 6, 5)
CASES: dict[str, tuple[str, tuple[tuple[int, ...], ...], tuple[int, ...], dict[str, Any]]] = {
    "conv": ("conv", (X, (6, 2, 3, 2), (6,)), (2, 6, 3, 3), CONV),
    "conv, one side padded": (
        "conv",
        (X, (6, 4, 3, 2)),
        (2, 6, 6, 6),
        {"stride": (1, 1), "padding": ((0, 2), (1, 1)), "dilation": (1, 1), "groups": 1},
    ),
    "conv of one dimension": (
        "conv",
        ((2, 3, 8), (4, 3, 3)),
        (2, 4, 6),
        {"stride": (1,), "padding": ((0, 0),), "dilation": (1,), "groups": 1},
    ),
    "conv_transpose": (
        "conv_transpose",
        (X, (4, 3, 3, 3), (3,)),
        (2, 3, 12, 10),
        {
            "stride": (2, 2),
            "padding": ((1, 1), (1, 1)),
            "dilation": (1, 1),
            "groups": 1,
            "output_padding": (1, 1),
        },
    ),
    "matmul": ("matmul", ((3, 1, 4, 5), (2, 5, 6)), (3, 2, 4, 6), {}),
    "attention": (
        "attention",
        ((2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8)),
        (2, 4, 6, 8),
        {"scale": 0.5, "is_causal": True},
    ),
    "attention with a mask": (
        "attention",
        ((2, 4, 6, 8), (2, 4, 5, 8), (2, 4, 5, 8), (2, 1, 6, 5)),
        (2, 4, 6, 8),
        {"scale": 0.25, "is_causal": False},
    ),
    "softmax": ("softmax", (X,), X, {"axis": 1}),
    "layer_norm": ("layer_norm", (X, (6, 5), (6, 5)), X, {"dimensions": 2, "eps": 1e-5}),
    "layer_norm without weights": ("layer_norm", (X,), X, {"dimensions": 1, "eps": 1e-5}),
    "rms_norm": ("rms_norm", (X, (5,)), X, {"dimensions": 1, "eps": 1e-6}),
    "group_norm": ("group_norm", (X, (4,), (4,)), X, {"groups": 2, "eps": 1e-5}),
    "max_pool": ("max_pool", (X,), (2, 4, 3, 2), POOL),
    "max_pool, one side padded": (
        "max_pool",
        (X,),
        (2, 4, 3, 3),
        POOL | {"padding": ((0, 1), (0, 1))},
    ),
    "avg_pool": ("avg_pool", (X,), (2, 4, 3, 2), POOL | {"counts_padding": True}),
    "avg_pool, padding not counted": ("avg_pool", (X,), (2, 4, 3, 2), POOL | {"counts_padding": False}),
    "avg_pool, one side padded": (
        "avg_pool",
        (X,),
        (2, 4, 3, 3),
        POOL | {"padding": ((0, 1), (0, 1)), "counts_padding": False},
    ),
    "reshape": ("reshape", (X,), (8, 30), {}),
    "permute": ("permute", (X,), (5, 2, 4, 6), {"order": (3, 0, 1, 2)}),
    "expand": ("expand", ((4, 1, 5),), (2, 4, 6, 5), {}),
    "slice": ("slice", (X,), (2, 4, 3, 5), {"axis": 2, "start": 1, "stop": 6, "step": 2}),
    "concat": ("concat", (X, X, (2, 1, 6, 5)), (2, 9, 6, 5), {"axis": 1}),
    "pad": ("pad", (X,), (2, 5, 9, 5), {"padding": ((0, 0), (1, 0), (1, 2), (0, 0)), "value": 2.0}),
    "resize": ("resize", (X,), (2, 4, 12, 15), {"factors": (1, 1, 2, 3)}),
    "resize of other axes": ("resize", ((2, 3),), (4, 9), {"factors": (2, 3)}),
    "copy": ("copy", (X,), X, {}),
    **{
        f"reduce {combine}": (
            "reduce",
            (X,),
            (2, 1, 1, 5),
            {"combine": combine, "axes": (1, 2), "keepdims": True},
        )
        for combine in ("sum", "mean", "max", "min", "prod")
    },
    "reduce without dimensions kept": (
        "reduce",
        (X,),
        (4, 5),
        {"combine": "prod", "axes": (0, 2), "keepdims": False},
    ),
}
PARAMETERS: dict[str, dict[str, Any]] = {
    "clamp": {"minimum": -0.5, "maximum": None},
    "leaky_relu": {"slope": 0.1},
    "elu": {"alpha": 0.7},
    "causal_mask": {"offset": 1},
}
POSITIVE = ("log", "sqrt", "rsqrt", "power")
OTHER_KINDS = {"elementwise", "cast", "gather", "batch_norm", "opaque"}
"""Kinds with tests of their own."""


def compare(node: Node, values: dict[str, Value], arrays: list[np.ndarray[Any, Any]]) -> None:
    from ekc.torch.node_functions import apply_node

    expected = evaluate_node(node, arrays, values)
    found = apply_node(node, values, [torch.from_numpy(x) for x in arrays])
    assert tuple(found.shape) == values[node.output].shape
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-5, atol=2e-6)


def make_values(shapes: Any, output: tuple[int, ...], dtype: str = "float32") -> dict[str, Value]:
    kind = np.dtype(np.float32)
    values = {f"x{i}": Value(f"x{i}", shape, kind) for i, shape in enumerate(shapes)}
    return values | {"y": Value("y", output, np.dtype(dtype))}


def test_every_kind_has_a_case() -> None:
    assert {case[0] for case in CASES.values()} | OTHER_KINDS == KINDS


@pytest.mark.parametrize("name", CASES)
def test_kind(name: str) -> None:
    kind, shapes, output, attributes = CASES[name]
    random = np.random.default_rng(0)
    arrays = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    values = make_values(shapes, output)
    compare(Node(kind, name, tuple(values)[:-1], "y", attributes), values, arrays)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_elementwise_function(function: str) -> None:
    random = np.random.default_rng(1)
    arrays = [random.normal(size=(3, 4)).astype(np.float32) for _ in range(FUNCTIONS[function].inputs)]
    if function in POSITIVE:
        arrays[0] = np.abs(arrays[0]) + 0.1
    if function in ("equal", "not_equal", "less_equal", "greater_equal"):
        arrays[1][::2] = arrays[0][::2]
    if function.startswith("logical") or function == "where":
        arrays[0] = arrays[0] > 0
    if function in ("logical_and", "logical_or"):
        arrays[1] = arrays[1] > 0
    is_truth = function.startswith("logical") or "equal" in function or function in ("less", "greater")
    values = make_values([x.shape for x in arrays], (3, 4), "bool" if is_truth else "float32")
    attributes = {"function": function} | PARAMETERS.get(function, {})
    compare(Node("elementwise", function, tuple(values)[:-1], "y", attributes), values, arrays)


def test_batch_norm_cast_and_gather() -> None:
    random = np.random.default_rng(2)
    shapes = (X, (4,), (4,), (4,), (4,))
    arrays = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    arrays[4] = np.abs(arrays[4]) + 0.5
    values = make_values(shapes, X)
    compare(Node("batch_norm", "bn", tuple(values)[:-1], "y", {"eps": 1e-5}), values, arrays)
    values = make_values([X], X, "int32")
    compare(Node("cast", "cast", ("x0",), "y"), values, [10 * arrays[0]])
    for shape, axis in (((7, 4), 0), (X, 1)):
        indices = np.array([[0, 3], [1, 1]])
        values = make_values([shape, (2, 2)], (*shape[:axis], 2, 2, *shape[axis + 1 :]))
        table = random.normal(size=shape).astype(np.float32)
        compare(Node("gather", "g", ("x0", "x1"), "y", {"axis": axis}), values, [table, indices])


@pytest.mark.parametrize(
    ("kind", "attributes", "message"),
    [
        (
            "slice",
            {"axis": 0, "start": 5, "stop": 0, "step": -1},
            "n: a slice with step -1; PyTorch has steps",
        ),
        (
            "conv_transpose",
            {"stride": (1,), "padding": ((0, 1),)},
            r"n: a transposed convolution with padding \(\(0, 1\),\); PyTorch has the same on both sides",
        ),
        (
            "avg_pool",
            {"kernel": (2,), "stride": (1,), "padding": ((0, 0),), "dilation": (2,)},
            "n: an average over a dilated window; PyTorch has none",
        ),
        ("opaque", {"target": "Custom"}, "n: Custom is no operator of PyTorch"),
    ],
)
def test_nodes_that_pytorch_lacks_are_refused(kind: str, attributes: dict[str, Any], message: str) -> None:
    from ekc.torch.node_functions import apply_node

    x = torch.zeros(2, 3, 4)
    values = make_values([(2, 3, 4), (3, 3, 1)], (2, 3, 4))
    with pytest.raises(InvalidInput, match=f"^{message}"):
        apply_node(Node(kind, "n", ("x0", "x1"), "y", attributes), values, [x] * (1 + (kind[:4] == "conv")))


def test_opaque_node_calls_the_operator_of_the_module() -> None:
    from ekc.models.torch_reader.reading import ValueName
    from ekc.torch.node_functions import apply_node

    a, b = ValueName("a"), ValueName("b")
    call = (torch.ops.aten.topk.default, (a, 2), {"dim": 0})
    node = Node(
        "opaque", "top", ("renamed",), "y", {"target": "topk", "reason": "", "call": call, "index": 1}
    )
    assert apply_node(node, {}, [torch.tensor([3.0, 5.0, 4.0])]).tolist() == [1, 2]
    call = (torch.ops.aten.cat.default, ([a, b, a],), {})
    node = Node(
        "opaque", "cat", ("p", "q"), "y", {"target": "cat", "reason": "", "call": call, "index": None}
    )
    assert apply_node(node, {}, [torch.ones(1), torch.zeros(1)]).tolist() == [1, 0, 1]
