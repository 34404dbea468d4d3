"""The reader of PyTorch fails closed: a call that it did not read, or at which it failed, is opaque."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

from ekc.errors import InvalidInput  # noqa: E402
from ekc.models.build import build_model  # noqa: E402
from ekc.models.torch_reader import elementwise, walk  # noqa: E402
from ekc.models.torch_reader.read import read_torch  # noqa: E402
from tests.pytorch.reading import Function, check_module, make_input  # noqa: E402

X = make_input((3, 4))
INFINITE = torch.tensor([[-torch.inf] * 3, [1.0, torch.inf, 2.0], [1.0, 2.0, 3.0]])


def list_reasons(function: Callable[..., Any], *inputs: Any, **options: Any) -> list[str]:
    """Reasons of the opaque nodes of a function."""
    graph = read_torch(Function(function).eval(), inputs, **options)
    return [node.attributes["reason"] for node in graph.nodes if node.kind == "opaque"]


@pytest.mark.parametrize(
    ("function", "inputs", "reason"),
    [
        (lambda y: torch.round(y, decimals=2), (X,), "argument decimals=2 is not supported"),
        (lambda y: y.view(torch.int32), (X,), "argument dtype=torch.int32 is not supported"),
        (
            lambda a, b: torch.mm(a, b, out_dtype=torch.float32),
            (X.half(), X.T.half()),
            "argument out_dtype=torch.float32 is not supported",
        ),
        (lambda y: F.dropout(y, 0.5, training=True), (X,), "dropout in training (p=0.5): random numbers"),
        (
            lambda y: F.alpha_dropout(y, 0.25, training=True),
            (X,),
            "dropout in training (p=0.25): random numbers",
        ),
        (lambda y: y * torch.empty(4), (X,), "no kind of node"),
        (
            lambda y: F.avg_pool2d(y[None], 2, divisor_override=3),
            (X,),
            "avg_pool with a divisor of its own",
        ),
        (lambda y: torch.div(y, 0.3, rounding_mode="trunc"), (X,), "division of float32 rounded by 'trunc'"),
        (lambda y: y.to(torch.float8_e8m0fnu).float(), (X,), "a cast to float8_e8m0fnu"),
    ],
)
def test_unread_arguments_are_opaque(function: Any, inputs: Any, reason: str) -> None:
    assert reason in list_reasons(function, *inputs)


def test_an_argument_that_a_handler_forgets_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """This handler reads no argument but the first."""
    handlers = dict(walk.HANDLERS) | {"leaky_relu": lambda call: call.apply("relu", call["self"])}
    monkeypatch.setattr(walk, "HANDLERS", handlers)
    assert list_reasons(lambda y: F.leaky_relu(y, 0.3), X) == ["argument negative_slope=0.3 is not supported"]
    # The default of the schema needs no reader.
    assert list_reasons(lambda y: F.leaky_relu(y, 0.01), X) == []


def test_an_exception_at_one_node_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = dict(walk.HANDLERS) | {"exp": lambda call: call["nothing"]}
    monkeypatch.setattr(walk, "HANDLERS", handlers)
    graph = read_torch(Function(lambda y: torch.relu(torch.exp(y) @ y.T)), (X,))
    (node,) = graph.internal_errors
    assert node.target == "aten.exp.default"
    assert node.attributes["reason"].startswith("internal error: KeyError: 'nothing' (")
    assert [found.target for found in build_model(graph).internal_errors] == ["aten.exp.default"]


ROUNDED_DOWN = torch.tensor([1.0, 2.0, -1.0, 0.3, 5.0, 1.0, -0.0, -1.0, 3.0, torch.inf, -1e-9])
DIVISORS = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.0, torch.inf, 3.0, torch.inf, -torch.inf, 2.0, 1.0])
NEAR = torch.tensor([0.1, 0.7, -1.0, 2.1])


@pytest.mark.parametrize(
    ("inputs", "functions"),
    [
        (
            (X,),
            [
                lambda y: F.dropout(y, 0.5, training=False),
                lambda y: F.dropout(y * 2, 0.5, training=False, inplace=True) + 1,
                lambda y: F.dropout(y, 0.0, training=True) * 2,
                lambda y: y.amax() - y.amin(),
                lambda y: torch.log_softmax(y.sum(), 0) + F.softmax(y.mean(), 0),
                lambda y: torch.logsumexp(y, 1, keepdim=True) + y.sum().max(0).values,
                lambda y: F.pad(y, (-1, 0), value=1.0) * 2,
                lambda y: torch.index_select(y.sum(), 0, torch.tensor([0])) * 2,
                lambda y: torch.index_select(y, 1, torch.tensor(2)),
                lambda y: y[:0].softmax(-1),
                lambda y: y[torch.tensor([-1, 0])] * 2,
                lambda y: (y.double().sum() / 3).float() * y,
                lambda y: (300 * y).to(torch.float8_e4m3fn).to(torch.float32),
                lambda y: (1e5 * y).to(torch.float8_e5m2).to(torch.float32),
                lambda y: torch._safe_softmax(y.masked_fill(y < 9, -torch.inf), -1),
            ],
        ),
        ((INFINITE,), [lambda y: torch.logsumexp(y, -1), lambda y: torch.softmax(y, -1)]),
        (
            (ROUNDED_DOWN, DIVISORS),
            [
                lambda a, b: torch.div(a, b, rounding_mode="floor"),
                lambda a, b: a // 0.1,
                lambda a, b: a // torch.inf,
                lambda a, b: 1 // b,
            ],
        ),
        (
            (NEAR,),
            [
                lambda y: y == 0.1,
                lambda y: (y > 0.7) | (y <= 0.1),
                lambda y: F.threshold(y, 0.7, 5.0),
                lambda y: F.hardshrink(y, 0.7),
                lambda y: y % 0.1,
                lambda y: torch.sign(y - 0.7) + torch.floor(y / 0.1),
                lambda y: y.half() // 0.1,
            ],
        ),
        (
            (make_input((3, 0)),),
            [
                lambda y: torch.log_softmax(y, 1),
                lambda y: torch.logsumexp(y, 1),
                lambda y: torch.cat([y, y + 1]).amax(0),
            ],
        ),
        ((torch.tensor([2**60 + 1, -(2**60) - 1]),), [lambda y: y.clamp(min=3), lambda y: y.clamp(max=-3)]),
    ],
)
def test_graphs_equal_pytorch(inputs: Any, functions: Any) -> None:
    check_module(Function(*functions), *inputs)


def test_a_softmax_behind_a_cast_to_float64_or_float8_reads_the_cast() -> None:
    graph = read_torch(
        Function(
            lambda y: torch.softmax(-y, -1, dtype=torch.float64).float(),
            lambda y: torch.softmax(y.to(torch.float8_e5m2).float(), -1),
        ),
        (X,),
    )
    fused = build_model(graph).fused
    assert fused is not None
    nodes = {node.output: node for node in fused.graph.nodes}
    for node in fused.graph.nodes:
        if node.kind == "softmax":
            assert nodes[node.inputs[0]].kind == "cast"


def test_a_module_prepared_for_quantisation_is_read() -> None:
    """It has no packed weights yet."""
    module = Function(lambda y: module.skip_add.add(y, y))
    module.skip_add = torch.ao.nn.quantized.FloatFunctional()
    check_module(module, X)


def test_side_effects_add_no_input_and_no_result() -> None:
    """torch.export passes a token through operators that check their input."""
    graph = read_torch(Function(torch.linalg.solve), (torch.eye(3), make_input((3, 2))))
    assert len(graph.inputs) == 2
    assert len(graph.outputs) == 1


class Branch(nn.Module):
    """A branch on the elements of its input."""

    def forward(self, x: Any) -> Any:
        """x + 1 or x - 1."""
        return x + 1 if x.sum() > 0 else x - 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 2)), {nn.Linear}),
            r"Sequential: 0 is torch\.ao\.nn\.quantized\.dynamic\..*Linear, whose packed int8 weights",
        ),
        (lambda: Branch(), "cannot export Branch: a branch or a size depends on the elements of a tensor"),
        (
            lambda: Function(lambda x: x * x.sum().item()),
            "a number that depends on data",
        ),
        (lambda: Function(lambda x: x.to_sparse() * 2), r"sparse_coo are not supported; call \.to_dense\(\)"),
    ],
)
def test_refusals_are_one_line_and_print_nothing(make: Any, message: str) -> None:
    said = io.StringIO()
    with (
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(said),
        pytest.raises(InvalidInput, match=message) as caught,
    ):
        read_torch(make(), (X,))
    assert "\n" not in str(caught.value)
    assert "__obj_flatten__" not in str(caught.value)
    assert said.getvalue() == ""


def test_saturation_is_asked_of_pytorch() -> None:
    largest = torch.tensor(1e6).to(torch.float8_e4m3fn).float()
    assert elementwise.saturates(torch.float8_e4m3fn) == bool(largest.isfinite())
    assert not elementwise.saturates(torch.float8_e5m2)
    assert torch.tensor(1e6).to(torch.float8_e5m2).float().isinf()
