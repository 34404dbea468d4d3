"""PyTorch's fused attention stays unless the kernels of ekc are faster by their figures."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; .ci/run installs a build for the CPU")

import ekc.torch  # noqa: E402
import ekc.torch.replace_layers as attention  # noqa: E402
from ekc.models.build import build_model, execute_fused  # noqa: E402
from ekc.torch.compiled_module import list_calls  # noqa: E402
from ekc.torch.module_graph import read_module  # noqa: E402
from ekc.torch.replace_layers import TunedLayers  # noqa: E402
from tests.pytorch.naive_kernels import compile_naively, make_naive_trials, read_model  # noqa: E402
from tests.pytorch.reading import Function, check_module, make_input, to_numpy  # noqa: E402

REAL = {"label": "NVIDIA A100", "simulated": False}
GPU = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def block() -> Any:
    """The graph of the Llama block, and the model of it with attention as layers of ekc."""
    graph = read_model("llama")[2].graph
    return graph, build_model(graph)


@pytest.fixture
def choose(block: Any) -> Any:
    graph, model = block

    def choose_for(choice: str, device: Any, is_tuned: bool = True, **facts: Any) -> Any:
        """The choice for kernels that take 1 us each."""
        ops = [layer.op for layer in model.layers if is_tuned or layer.op.name != "softmax"]
        found = {"label": "a100 (simulated)", "simulated": True, "arch": "sm_80", "limits": None} | facts
        tuned = TunedLayers(trials=make_naive_trials(ops), **found)
        return attention.choose_attention(graph, list_calls(model.fused), tuned, device, choice)

    return choose_for


def test_pytorchs_stays_without_measured_figures(choose: Any) -> None:
    cpu = torch.device("cpu")
    kept = frozenset({"scaled_dot_product_attention"})
    assert choose("pytorch", cpu) == attention.AttentionChoice(kept)
    assert choose("auto", GPU).kept == kept
    assert "the figures are simulated" in choose("auto", GPU).note
    assert choose("auto", cpu, **REAL).kept == kept
    assert "the module is not on a GPU" in choose("auto", cpu, **REAL).note
    assert choose("ekc", cpu).kept == frozenset()
    assert choose("ekc", cpu, is_tuned=False).kept == kept


@pytest.mark.parametrize(("seconds", "kept"), [(3.5e-6, 0), (3e-6, 1), (2e-6, 1)])
def test_faster_one_is_taken_on_a_gpu(
    choose: Any, monkeypatch: pytest.MonkeyPatch, seconds: float, kept: int
) -> None:
    monkeypatch.setattr(attention, "time_attention", lambda node, values, device: seconds)
    chosen = choose("auto", GPU, **REAL)
    assert len(chosen.kept) == kept
    assert chosen.note == f"Attention: the kernels of ekc are faster than PyTorch's in {1 - kept} of 1."
    assert len(choose("auto", GPU, is_tuned=False, **REAL).kept) == 1


def test_operations_of_kept_attention_are_counted() -> None:
    module, _, read = read_model("llama")
    kept, replaced = (compile_naively(module, read, choice) for choice in ("pytorch", "ekc"))
    (node,) = kept.ekc_report.uncovered
    flops = sum(x.flops for x in replaced.ekc_report.layers if x.name.startswith("scaled_dot_product"))
    assert node.flops == flops > 0
    assert 1 - kept.ekc_report.replaced_flops == pytest.approx(
        flops / (flops + sum(x.flops for x in kept.ekc_report.layers))
    )
    assert replaced.ekc_report.replaced_flops == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_time_of_pytorchs_attention(block: Any) -> None:
    graph, _ = block
    (node,) = (node for node in graph.nodes if node.kind == "attention")
    assert 0 < attention.time_attention(node, graph.values, GPU) < 1e-2


ATTEND = torch.nn.functional.scaled_dot_product_attention
Q, K, V = (make_input((2, 4, n, 8), seed) for seed, n in enumerate((5, 3, 3)))
MASK = torch.ones(2, 1, 5, 3, dtype=torch.bool)
MASK[0, :, 2] = MASK[1, :, 0] = False
LOW = torch.zeros(MASK.shape).masked_fill(~MASK, -inf)
WINDOW = torch.ones(5, 3, dtype=torch.bool).tril(-2)
"""Keys that are two places before a query, and those before them: the first two queries have none."""
KEY_PADDING = torch.tensor([[True, False, False], [False, False, False]])
WAYS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "truth values": (lambda q, k, v, m: ATTEND(q, k, v, attn_mask=m), (MASK,)),
    "minus infinity": (lambda q, k, v, m: ATTEND(q, k, v, attn_mask=m), (LOW,)),
    "constant": (lambda q, k, v: ATTEND(q, k, v, attn_mask=MASK), ()),
    "constant of floats": (lambda q, k, v: ATTEND(q, k, v, attn_mask=LOW), ()),
    "window": (lambda q, k, v: ATTEND(q, k, v, attn_mask=WINDOW), ()),
    "padded keys": (lambda q, k, v, m: ATTEND(q, k, v, attn_mask=m[:, None, None]), (KEY_PADDING,)),
    "more queries than keys": (lambda q, k, v: ATTEND(q, k, v, is_causal=True), ()),
    "shared heads": (
        lambda q, k, v, m: ATTEND(q, k[:, :2], v[:, :2], attn_mask=m, enable_gqa=True),
        (MASK,),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_masked_rows_are_zero(way: str) -> None:
    function, more = WAYS[way]
    module, inputs = Function(function).eval(), (Q, K, V, *more)
    graph = check_module(module, *inputs)
    (expected,) = module(*inputs)
    assert (expected == 0).all(-1).any() == (way != "more queries than keys")
    fused = build_model(graph).fused
    assert fused is not None
    (layers,) = execute_fused(fused, [to_numpy(x) for x in inputs])
    np.testing.assert_allclose(layers, expected, atol=2e-6)
    read = read_module(module, inputs)
    for attended in ("pytorch", "ekc"):
        (found,) = compile_naively(module, read, attended, is_tuned=lambda op: False)(*inputs)
        np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.filterwarnings("ignore:ekc.torch")
def test_masked_rows_of_kernels_are_zero() -> None:
    function, more = WAYS["truth values"]
    module, inputs = Function(function).eval(), (Q, K, V, *more)
    fast = compile_naively(module, read_module(module, inputs), "ekc")
    assert any(x.op.name == "softmax" for x in fast.ekc_report.replaced)
    np.testing.assert_allclose(fast(*inputs)[0], module(*inputs)[0], atol=2e-6)


def test_rows_of_minus_infinity_of_a_written_softmax_are_nan() -> None:
    """As in PyTorch, where a module writes attention out."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax((q @ k.mT).masked_fill(~MASK, -inf), -1) @ v

    fused = build_model(check_module(Function(attend), Q, K, V)).fused
    assert fused is not None
    (layers,) = execute_fused(fused, [to_numpy(x) for x in (Q, K, V)])
    assert np.isnan(layers[0, :, 2]).all()
    assert np.isnan(layers).sum() == 2 * 4 * 8


def test_attention_without_masked_rows_has_the_plain_softmax() -> None:
    """A select would be another operator, and records of it would not be found."""
    mask = torch.ones(5, 3, dtype=torch.bool)
    mask[1, 2] = False
    plain, masked = (
        build_model(read_module(Function(f).eval(), (Q, K, V)).graph)
        for f in (lambda q, k, v: ATTEND(q, k, v), lambda q, k, v: ATTEND(q, k, v, attn_mask=mask))
    )
    digests = [[x.op.digest for x in model.layers if x.op.name == "softmax"] for model in (plain, masked)]
    assert digests[0] == digests[1] != []


def test_a_module_with_attention_alone_is_compiled() -> None:
    module = Function(lambda q, k, v: ATTEND(q, k, v)).eval()
    model = build_model(read_module(module, (Q, K, V)).graph)
    trials = make_naive_trials([layer.op for layer in model.layers])
    layers = tuple(
        SimpleNamespace(layer=layer, result=SimpleNamespace(best=trials[layer.op.digest]), failure="")
        for layer in model.layers
    )
    result = SimpleNamespace(layers=layers, device=ekc.devices.open("a100"), model=model)
    with pytest.warns(UserWarning, match="0 of 0 layers.* Attention stays PyTorch's: .*simulated"):
        fast = ekc.torch.compile(module, result)
    torch.testing.assert_close(fast(Q, K, V), module(Q, K, V))
    (node,) = fast.ekc_report.uncovered
    assert node.knows_flops
    assert node.flops > 0
    assert len(ekc.torch.compile(module, result, attention="ekc").ekc_report.replaced) == 3
