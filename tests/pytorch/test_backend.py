"""The backend "ekc" of `torch.compile`: kernels of a record file, counts, and graphs that stay PyTorch's."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ekc
from ekc.errors import InvalidInput

torch = pytest.importorskip("torch", reason="PyTorch is not installed; .ci/run installs a build for the CPU")

import ekc.torch  # noqa: E402


class Stack(torch.nn.Module):
    """Two linear layers of one shape, as blocks of a network are."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(2))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x).relu()
        return x


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ekc.torch: ")
        yield


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record file with one layer: four rows through a linear layer and a ReLU."""
    file = tmp_path_factory.mktemp("records") / "tuning.db"
    model = ekc.models.from_torch(Stack().eval(), torch.zeros(4, 6))
    assert len(model.layers) == 1
    ekc.tune_model(model, target="a100", trials=2, records=file, progress=False)
    return file


def compile_with_ekc(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend="ekc", options=options)


def test_backend_by_its_name(records: Path) -> None:
    torch.manual_seed(0)
    module, x, before = Stack().eval(), torch.randn(4, 6), ekc.torch.counts()
    fast = compile_with_ekc(module, records=str(records), target="a100")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x), module(x))
            # Weights that are changed in place.
            module.blocks[1].bias.add_(1)
    counts = ekc.torch.counts()
    assert counts.graphs[: len(before.graphs)] == before.graphs
    (graph,) = counts.graphs[len(before.graphs) :]
    assert (graph.reason, len(graph.report.replaced), len(graph.report.kept)) == ("", 2, 0)
    assert counts.replaced_graphs == before.replaced_graphs + 1
    assert counts.replaced_layers == before.replaced_layers + 2
    assert str(counts).splitlines()[3].split() == ["kernels", "of", "ekc", str(counts.replaced_graphs)]


def test_one_graph_for_layers_of_one_shape(records: Path) -> None:
    """PyTorch compiles a block once and calls it with the weights of each."""
    module, x = Stack().eval(), torch.randn(4, 6)
    block = compile_with_ekc(lambda layer, x: layer(x).relu(), records=str(records), target="a100")
    with torch.no_grad():
        found = block(module.blocks[1], block(module.blocks[0], x))
        torch.testing.assert_close(found, module(x))
        torch.testing.assert_close(block(module.blocks[0], x), module.blocks[0](x).relu())


def test_graph_without_a_record_stays_pytorchs(records: Path) -> None:
    module, before = Stack().eval(), ekc.torch.counts()
    fast = compile_with_ekc(module, records=str(records), target="a100")
    with torch.no_grad():
        x = torch.randn(5, 6)
        torch.testing.assert_close(fast(x), module(x), rtol=0, atol=0)
        # A second shape: PyTorch leaves the number of rows open.
        x = torch.randn(7, 6)
        torch.testing.assert_close(fast(x), module(x), rtol=0, atol=0)
        torch.testing.assert_close(
            compile_with_ekc(torch.fft.fft, records=str(records), target="a100")(x), torch.fft.fft(x)
        )
    counts = ekc.torch.counts()
    reasons = [graph.reason for graph in counts.graphs[len(before.graphs) :]]
    assert reasons[:2] == [
        "no layer has a record",
        "open dimensions; torch.compile(..., dynamic=False) fixes shapes",
    ]
    assert "complex" in reasons[2]
    assert counts.kept_layers == before.kept_layers + 2
    assert counts.kept_graphs["no layer has a record"] == 1 + before.kept_graphs["no layer has a record"]
    assert "\nPyTorch: no layer has a record" in str(counts)


def compile_graph(module: Any, x: Any, **options: Any) -> None:
    compile_with_ekc(module, **options)(x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, 'backend "ekc": no record file; write options={"records": "tuning.db", "target": "cuda:0"}'),
        ({"record": "a.db"}, "no 'record'; choices are records, target, attention; nearest is 'records'"),
        ({"records": "missing.db", "target": "a100"}, "missing.db"),
        ({"records": "tuning.db", "target": "a10"}, "unknown device 'a10'"),
        ({"records": "tuning.db", "target": "a100", "attention": "x"}, "attention: no 'x'"),
    ],
)
def test_options_are_checked(records: Path, options: dict[str, str], message: str) -> None:
    options = {k: str(records) if v == "tuning.db" else v for k, v in options.items()}
    with torch.no_grad(), pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compile_graph(Stack().eval(), torch.randn(4, 6), **options)
    assert message in str(caught.value)


def test_gradient_is_refused(records: Path) -> None:
    options = {"records": str(records), "target": "a100"}
    with pytest.raises(
        torch._dynamo.exc.BackendCompilerFailed, match='backend "ekc" is for inference, and an'
    ):
        compile_graph(Stack().eval(), torch.randn(4, 6), **options)
    with torch.inference_mode():
        compile_graph(Stack().eval(), torch.randn(4, 6), **options)


def test_backend_is_registered_once() -> None:
    from torch._dynamo import list_backends, lookup_backend

    assert "ekc" in list_backends()
    assert lookup_backend("ekc") is ekc.torch.backend.compile_graph
    with pytest.raises(InvalidInput, match="no record file"):
        ekc.torch.backend.compile_graph(torch.fx.symbolic_trace(Stack()), [])
