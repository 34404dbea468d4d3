"""`ekc.torch.compile`: small versions of three models, computed by the PTX machine, against PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import ekc
from ekc.errors import InvalidInput, RecordError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; .ci/run installs a build for the CPU")

from ekc.torch.module_graph import read_module  # noqa: E402
from tests.pytorch.naive_kernels import compile_naively, read_model  # noqa: E402
from tests.pytorch.small_models import BertLayer, call, convert, make_models  # noqa: E402

MODELS = {"resnet": 7, "bert": 9, "llama": 12}
"""Calls of layers in each model, without attention."""


@pytest.fixture(autouse=True)
def no_warning() -> Iterator[None]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ekc.torch: ")
        yield


@cache
def compile_model(name: str, dtype: Any = torch.float32, attention: str = "auto") -> tuple[Any, Any, Any]:
    """A model, its inputs, and the model compiled with naive kernels."""
    module, inputs, read = read_model(name, dtype)
    return module, inputs, compile_naively(module, read, attention)


class Mlp(torch.nn.Module):
    """Two linear layers of few elements."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 6)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return self.down(torch.nn.functional.gelu(self.up(x))) * scale


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """A module, the result of tuning it, and the record file."""
    torch.manual_seed(0)
    module, file = Mlp().eval(), tmp_path_factory.mktemp("records") / "tuning.db"
    model = ekc.models.from_torch(module, torch.randn(4, 8))
    result = ekc.tune_model(model, target="a100", trials=4, records=file, progress=False)
    return module, result, file


@pytest.fixture(scope="module")
def fast(tuned: tuple[Any, Any, Path]) -> Any:
    """The tuned module, compiled."""
    return ekc.torch.compile(tuned[0], tuned[1])


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float32) for name in MODELS), ("llama", torch.bfloat16)]
)
def test_module_equals_pytorch(name: str, dtype: Any) -> None:
    module, inputs, fast = compile_model(name, dtype)
    before = convert(*make_models()[name], dtype)[0].state_dict()
    report = fast.ekc_report
    assert (len(report.replaced), len(report.kept)) == (MODELS[name], 0)
    with torch.no_grad():
        expected, found = call(module, inputs), call(fast, inputs)
    checked = ekc.torch.check(module, fast, inputs)
    assert checked.ok
    assert len(checked.layers) == MODELS[name]
    difference = (expected.double() - found.double()).abs().max()
    assert difference <= checked.results[0].tolerance
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if dtype == torch.float32:
        torch.testing.assert_close(found, expected)
    assert module.state_dict().keys() == before.keys()
    assert all(torch.equal(module.state_dict()[key], x) for key, x in before.items())


@pytest.mark.parametrize("name", [pytest.param("bert", marks=pytest.mark.exhaustive), "llama"])
def test_attention_may_be_three_kernels(name: str) -> None:
    module, inputs, fast = compile_model(name, attention="ekc")
    assert not fast.ekc_report.kept
    assert not fast.ekc_report.uncovered
    assert "torch._C._nn.scaled_dot_product_attention" not in fast.graph_module.code
    # Its results are compared too.
    assert ekc.torch.check(module, fast, inputs).ok


def test_layers_without_a_kernel_stay_pytorchs() -> None:
    module, inputs, read = read_model("llama")
    fast = compile_naively(module, read, is_tuned=lambda op: op.name == "rms_norm")
    assert compile_model("llama")[2].ekc_report.replaced_flops == pytest.approx(0.945, abs=0.001)
    report = fast.ekc_report
    assert {layer.op.name for layer in report.replaced} == {"rms_norm"}
    assert {layer.reason for layer in report.kept} == {"not tuned"}
    assert "torch._C._nn.linear" in fast.graph_module.code
    assert "torch.matmul" not in fast.graph_module.code
    text = str(fast)
    assert text.startswith("2 of 12 layers are kernels, tuned for naive (simulated)\n")
    assert "\nPyTorch: not tuned                                  10 " in text
    assert "PyTorch: attention: fused attention of PyTorch" in text
    assert 'Attention stays PyTorch\'s: the figures are simulated; attention="ekc" takes the kernels' in text
    assert repr(fast) == f"<CompiledModule {report.title}>"
    assert "<caption" in fast._repr_html_()
    assert 0 < report.replaced_flops < report.replaced_bytes < 0.1
    with torch.no_grad():
        torch.testing.assert_close(call(fast, inputs), call(module, inputs))


class Pooled(torch.nn.Module):
    """Results of which no node gives the second."""

    def forward(self, x: Any) -> Any:
        top, places = torch.nn.functional.max_pool2d(torch.relu(x), 2, return_indices=True)
        return torch.nn.functional.max_unpool2d(top * 2, places, 2), places


def test_second_results_stay_pytorchs() -> None:
    module, x = Pooled().eval(), torch.randn(1, 2, 6, 6)
    fast = compile_naively(module, read_module(module, x))
    targets = {node.target for node in fast.ekc_report.uncovered}
    assert "aten.max_pool2d_with_indices.default" in targets
    assert "unknown" in str(fast)
    for found, expected in zip(fast(x), module(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_nothing_tuned_gives_pytorchs_results_to_the_bit() -> None:
    module, inputs, read = read_model("llama", torch.bfloat16)
    fast = compile_naively(module, read, is_tuned=lambda op: False)
    assert not fast.ekc_report.replaced
    assert "module.half()" in str(fast)
    with torch.no_grad():
        torch.testing.assert_close(call(fast, inputs), call(module, inputs), rtol=0, atol=0)


def test_weights_are_shared_unless_they_are_folded_or_transposed() -> None:
    module, _, fast = compile_model("bert")
    shared = {x.data_ptr() for x in fast.graph_module.buffers()}
    own = {name for name, x in module.named_parameters() if x.data_ptr() not in shared}
    # `nn.Linear` stores [out, in], the products read [in, out].
    assert own == {f"{name}.weight" for name in ("query", "key", "value", "out", "up", "down")}
    assert all(x.is_contiguous() for x in fast.graph_module.buffers())
    assert not fast.state_dict()
    assert not list(fast.parameters())
    module, _, fast = compile_model("resnet")
    shared = {x.data_ptr() for x in fast.graph_module.buffers()}
    assert module.stem.weight.data_ptr() in shared
    assert module.block.conv1.weight.data_ptr() not in shared
    plain = compile_naively(module, read_model("resnet")[2], is_tuned=lambda op: False)
    shared = {x.data_ptr() for x in plain.graph_module.buffers()}
    assert module.fc.weight.data_ptr() in shared


def test_result_of_tune_model(tuned: tuple[Any, Any, Path], fast: Any) -> None:
    module, result, _ = tuned
    assert fast.ekc_report.title == "2 of 2 layers are kernels, tuned for a100 (simulated)"
    assert (fast.ekc_report.replaced_flops, fast.ekc_report.replaced_bytes) == (1, 1)
    x = torch.randn(4, 8)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), module(x))
        torch.testing.assert_close(fast(x=x), module(x))
    assert ekc.torch.check(module, fast, x).ok
    other = ekc.torch.compile(deepcopy(module).bfloat16(), result, example_inputs=x.bfloat16())
    assert not other.ekc_report.replaced
    assert "tuned as float16" in str(other)


def test_record_file(tuned: tuple[Any, Any, Path], tmp_path: Path) -> None:
    module, _, file = tuned
    x = torch.randn(4, 8)
    fast = ekc.torch.compile(module, records=file, target="a100", example_inputs={"x": x})
    assert len(fast.ekc_report.replaced) == 2
    with torch.no_grad():
        torch.testing.assert_close(fast(x), module(x))
    with torch.inference_mode():
        torch.testing.assert_close(fast(x=x), module(x))
    with pytest.warns(UserWarning, match=r"0 of 2 layers are kernels, tuned for h100 .*No layer"):
        kept = ekc.torch.compile(module, records=file, target="h100", example_inputs=x)
    assert {layer.reason for layer in kept.ekc_report.kept} == {"not tuned"}
    assert kept.ekc_report.device == "h100 (simulated)"
    with pytest.raises(RecordError, match=r"missing\.db"):
        ekc.torch.compile(module, records=tmp_path / "missing.db", target="a100", example_inputs=x)


def test_numbers_among_the_arguments_are_fixed(tuned: tuple[Any, Any, Path]) -> None:
    module, result, _ = tuned
    x = torch.randn(4, 8)
    fast = ekc.torch.compile(module, result, example_inputs=(x, 2.0))
    with torch.no_grad():
        torch.testing.assert_close(fast(x, 2.0), module(x, 2.0))
        torch.testing.assert_close(fast(scale=2.0, x=x), module(x, 2.0))
        with pytest.raises(InvalidInput, match=r"argument 1 is 3\.0, compiled for 2\.0; compile again"):
            fast(x, 3.0)


def test_compiled_module_is_for_inference(fast: Any) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    with pytest.raises(
        InvalidInput, match=r"^x requires a gradient, and the kernels have none: call it under"
    ):
        fast(x)
    with torch.no_grad():
        assert not fast(x).requires_grad
    assert not fast(x.detach()).requires_grad
    with pytest.raises(InvalidInput, match="is for inference; train the original module"):
        fast.train()
    assert fast.eval() is fast
    assert not fast.training


def test_changed_weights_are_noticed(tuned: tuple[Any, Any, Path]) -> None:
    module, result, _ = deepcopy(tuned[0]), *tuned[1:]
    fast, x = ekc.torch.compile(module, result), torch.randn(4, 8)
    with torch.no_grad():
        module.down.bias.add_(1)
        with pytest.raises(
            InvalidInput, match=r"^down\.bias was changed after ekc\.torch\.compile, which folds"
        ):
            fast(x)
        assert ekc.torch.compile(module, result)(x).shape == (4, 6)


CALLS = {
    r"x has shape \(5, 8\), compiled for \(4, 8\); compile again with example_inputs of that shape": (
        torch.zeros(5, 8),
    ),
    r"x is torch\.float64, compiled for torch\.float32": (torch.zeros(4, 8).double(),),
    "x is 3, needed a tensor": (3,),
    "arguments: missing a required argument: 'x'": (),
    "arguments: too many positional arguments": (torch.zeros(4, 8), 1.0, 2),
    "arguments: 2 positional values and 0 keywords, compiled for 1 positional value and 0": (
        [torch.zeros(4, 8)] * 2,
    ),
}


@pytest.mark.parametrize("message", CALLS)
def test_other_arguments_are_refused(fast: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{message}"):
        fast(*CALLS[message])


class Writes(Mlp):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        self.count += 1
        return super().forward(x)


class Branches(Mlp):
    """It takes a way that depends on data."""

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return super().forward(x) if x.sum() > 0 else x


def test_modules_that_cannot_be_compiled_are_refused(tuned: tuple[Any, Any, Path]) -> None:
    module, result, file = tuned
    x, compile = torch.randn(4, 8), ekc.torch.compile
    with pytest.raises(
        InvalidInput, match=r"^module: Mlp is in training mode, .*call module\.eval\(\) first"
    ):
        compile(Mlp(), result)
    part = Mlp().eval()
    part.dropout = torch.nn.Dropout()
    with pytest.raises(InvalidInput, match=r"^module: dropout is in training mode"):
        compile(part, result)
    with pytest.raises(InvalidInput, match=r"^module: Writes writes to count when it is called; take"):
        compile(Writes().eval(), result)
    with pytest.raises(InvalidInput, match=r"^torch\.export cannot export Branches"):
        compile(Branches().eval(), result)
    with pytest.raises(InvalidInput, match=r"^module: <function .* is no torch\.nn\.Module"):
        compile(lambda x: x, result, example_inputs=x)
    with pytest.raises(InvalidInput, match=r"give a result of ekc\.tune_model, or records="):
        compile(module, example_inputs=x)
    with pytest.raises(InvalidInput, match=r"give a result of ekc\.tune_model, or records="):
        compile(module, result, records=file)
    with pytest.raises(InvalidInput, match=r"^result: 3 is no result of ekc\.tune_model"):
        compile(module, 3, example_inputs=x)
    with pytest.raises(InvalidInput, match=r"^result: .* is no result of ekc\.tune_model"):
        compile(module, result.model)
    with pytest.raises(InvalidInput, match=r"input is float32, weight is float16, .* takes one type; give"):
        compile(Mlp().half().eval(), result)
    with pytest.raises(InvalidInput, match=r"^example_inputs: missing; give a tensor, a tuple"):
        compile(module, records=file)
    with pytest.raises(InvalidInput, match=r"^attention: no 'none'; choices are auto, pytorch, ekc"):
        compile(module, result, attention="none")


def test_cpu_warns_once(tuned: tuple[Any, Any, Path]) -> None:
    module, result, _ = tuned
    fast, x = ekc.torch.compile(module, result), torch.randn(4, 8)
    with pytest.warns(
        UserWarning, match=r"^ekc\.torch: 2 kernels of this module are computed by ekc\.emulator"
    ):
        fast(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(x)


def test_compiled_module_under_torch_compile_and_export(tuned: tuple[Any, Any, Path], fast: Any) -> None:
    module, x = tuned[0], torch.randn(4, 8)
    with torch.no_grad():
        compiled = torch.compile(lambda x: fast.graph_module(x)[0] + 1, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), module(x) + 1)
        program = torch.export.export(fast.graph_module, (x,))
    called = [node.target.namespace for node in program.graph.nodes if node.op == "call_function"]
    assert called.count("ekc") == 2


def test_dict_of_arguments_and_a_dict_as_result() -> None:
    module, inputs = BertLayer(8, 2).eval(), {"hidden_states": torch.randn(1, 3, 8)}
    fast = compile_naively(module, read_module(module, inputs))
    assert set(fast(**inputs)) == {"last_hidden_state"}
    with pytest.raises(InvalidInput, match="got an unexpected keyword argument 'mask'"):
        fast(**inputs, mask=None)
