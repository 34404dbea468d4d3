"""PyTorch's fused attention stays unless the kernels of ekc are faster by their figures."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; .ci/run installs a build for the CPU")

import ekc.torch.attention as attention  # noqa: E402
from ekc.models.build import build_model  # noqa: E402
from ekc.torch.compiled_module import list_calls  # noqa: E402
from ekc.torch.tuned_layers import TunedLayers  # noqa: E402
from tests.pytorch.naive_kernels import compile_naively, make_naive_trials, read_model  # noqa: E402

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
