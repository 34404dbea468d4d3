"""Whole programs of PyTorch: names, types, shapes, constants, files, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from ekc.errors import InvalidInput  # noqa: E402
from ekc.models.evaluate import evaluate  # noqa: E402
from ekc.models.torch_reader.read import (  # noqa: E402
    needs_functional,
    read_exported,
    read_torch,
)
from tests.pytorch.reading import Function, check_module, list_opaque, make_input  # noqa: E402

X = make_input((2, 4, 6))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        y = self.act(self.norm(self.conv(x)))
        return self.act(self.drop(y) + x) * 0.5 + 1e-12


def test_names_are_paths_of_modules_and_training_mode_is_kept() -> None:
    module = nn.Sequential(Block(), Block()).train()
    module[1].eval()
    graph = read_torch(module, X)
    assert [node.name for node in graph.nodes[:5]] == [
        "0.conv",
        "0.norm",
        "0.act.relu",
        "0.add",
        "0.act.relu_1",
    ]
    assert [node.name for node in graph.nodes[5:7]] == ["0.mul", "0.add_1"]
    assert (module.training, module[0].training, module[1].training) == (True, True, False)
    assert graph.name == "Sequential"
    check_module(module, X)


def test_weights_are_not_copied() -> None:
    module = nn.Linear(6, 3)
    graph = read_torch(module, X)
    assert np.shares_memory(graph.values["weight"].data, module.weight.detach().numpy())
    half = nn.Linear(6, 3).to(torch.bfloat16)
    graph = read_torch(half, X.to(torch.bfloat16))
    data = graph.values["weight"].data
    assert data is not None
    assert data.dtype == ml_dtypes.bfloat16
    assert np.shares_memory(data, half.weight.detach().view(torch.int16).numpy())


def test_a_module_on_the_meta_device_has_constants_without_elements() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(6, 10**6), nn.ReLU(), nn.Linear(10**6, 10**6)).half()
    graph = read_torch(module, torch.zeros(2, 6, dtype=torch.float16, device="meta"))
    weight = graph.values["2.weight"]
    assert (weight.shape, weight.data, weight.is_constant, weight.bytes) == (
        (10**6, 10**6),
        None,
        True,
        2 * 10**12,
    )


def test_dtype_reads_every_floating_tensor_as_that_type() -> None:
    module = Function(Block().eval(), lambda x: x.masked_fill(x > 0, torch.finfo(torch.float32).min))
    graph = read_torch(module, X, dtype="float16")
    floating = {v.dtype for v in graph.values.values() if v.dtype.kind == "f" and v.shape}
    assert floating == {np.dtype(np.float16)}
    assert graph.notes == (
        "floating tensors read as float16; the program has float32",
        "constants limited to the range of float16: 1",
    )
    assert graph.values["1e-12:float64"].data == 1e-12
    given = evaluate(graph, [X.numpy()])
    with torch.no_grad():
        expected = module(X)[0].numpy()
    np.testing.assert_allclose(given[0].astype(np.float32), expected, 4e-3, 4e-3)
    with pytest.raises(InvalidInput, match="dtype: no 'float8'; choices are float16, bfloat16, float32"):
        read_torch(module, X, dtype="float8")


def test_float64_inside_a_program_stays_and_float64_inputs_are_refused() -> None:
    table = torch.linspace(0, 1, 6, dtype=torch.float64)
    graph = read_torch(Function(lambda x: x + table.to(torch.float32)), X)
    assert graph.values[graph.nodes[0].inputs[1]].dtype == np.float32
    one = torch.tensor(0.5, dtype=torch.float64)
    graph = check_module(Function(lambda x: x * one), X)
    # An exact sum: 1e8 + x loses all of x in float32.
    graph = check_module(Function(lambda x: ((x.double() + 1e8) - 1e8).float(), lambda x: x * table), X)
    assert [node.kind for node in graph.nodes] == [
        *("cast", "elementwise", "elementwise"),
        *("cast",) * 2,
        "elementwise",
    ]
    graph = read_torch(Function(lambda x: ((x.double() + 1e8) - 1e8).float()), X, dtype="float32")
    assert graph.nodes[0].attributes["reason"] == "a cast to float64 in a program that is read as float32"
    with pytest.raises(InvalidInput, match=r"weight: tensors of type float64 .*\(--dtype float32\)"):
        read_torch(nn.Linear(6, 2).double(), X.double())
    graph = read_torch(nn.Linear(6, 2).double(), X.double(), dtype="float32")
    assert graph.values["weight"].dtype == np.float32
    assert graph.notes[0] == "floating tensors read as float32; the program has float64"


def test_a_tensor_given_twice_is_two_inputs() -> None:
    graph = read_torch(Function(lambda x, y: x - 2 * y), (X, X))
    (given,) = evaluate(graph, [X.numpy(), 2 * X.numpy()])
    np.testing.assert_allclose(given, -3 * X.numpy(), 1e-6)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.ones(6))

    def forward(self, x: Any) -> Any:
        self.state.mul_(2)
        x[:, 0] = self.state
        return x + 1


def test_tensors_that_are_written_to_are_outputs_with_a_note() -> None:
    graph = read_torch(Counter(), X.clone())
    assert graph.notes == ("tensors that the model writes to, new values are the first outputs: state, x",)
    state, x, y = evaluate(graph, [X.numpy()])
    expected = X.numpy().copy()
    expected[:, 0] = 2.0
    np.testing.assert_array_equal(state, np.full(6, 2.0))
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_allclose(y, expected + 1)


def write_in_many_ways(x: Any) -> Any:
    """Writes that a view, a later reader, or a constant sees, beside some that nothing sees."""
    y = x * 2
    rows = y[:, 0]
    y.add_(1)
    z = y.flatten()
    z.mul_(3)
    places = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).add_(1)
    plain = (x - 1).relu_().add_(x).mul_(2)
    twice = x + 1
    twice.add_(twice)
    return y, rows, places + x, plain, twice


def test_writes_that_others_see_are_kept() -> None:
    check_module(Function(write_in_many_ways), X)
    check_module(Function(lambda x: (x - 1).relu_().add_(x)), X)
    check_module(Function(lambda x: torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).add_(1) + x), X)


def test_programs_without_writes_that_others_see_are_read_as_they_are() -> None:
    def find(function: Any) -> bool:
        return needs_functional(torch.export.export(Function(function), (X,)))

    assert not find(lambda x: F.relu((x + 1).mul_(x), inplace=True).add_(x[:, :1]).flatten(1))
    assert find(lambda x: x.add_(1))
    assert find(lambda x: (x.flatten().mul_(2), x))
    assert find(lambda x: [y := x + 1, y[0], y.mul_(2)])
    assert find(lambda x: F.dropout(x, 0.5, training=False).mul_(2))


def test_constant_masks_become_causal_attention_or_none() -> None:
    q = make_input((1, 2, 5, 8))
    lower, whole = torch.ones(5, 5).tril().bool(), torch.ones(5, 5).bool()
    windowed = lower & ~torch.ones(5, 5).tril(-3).bool()

    def attend(mask: Any) -> Any:
        return lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    graph = check_module(Function(attend(lower), attend(whole), attend(windowed)), q)
    found = [(len(n.inputs), n.attributes["is_causal"]) for n in graph.nodes]
    assert found == [(3, True), (3, False), (4, False)]


DYNAMIC = {"x": {0: torch.export.Dim("batch", min=1, max=64), 2: torch.export.Dim("length", max=128)}}


class Sizes(nn.Module):
    def forward(self, x: Any) -> Any:
        return (x.flatten(1).reshape(x.shape[0] * 2, -1) + torch.arange(x.shape[2] * 2)).softmax(
            -1
        ) / x.shape[2]


@pytest.fixture(scope="module")
def dynamic_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "sizes.pt2"
    program = torch.export.export(Sizes(), (X,), dynamic_shapes=DYNAMIC)
    torch.export.save(program, path)
    return path


def test_shapes_fix_the_dimensions_of_a_file(dynamic_file: Path) -> None:
    graph = read_exported(dynamic_file, shapes={"x": (3, 4, 10)})
    assert graph.name == "sizes"
    x = make_input((3, 4, 10))
    np.testing.assert_allclose(evaluate(graph, [x.numpy()])[0], Sizes()(x).numpy(), 1e-5, 1e-6)


WRONG_SHAPES = {
    "none": (
        None,
        "input x, dimension 0 has no fixed size (1 to 64); give one, for example shapes={'x': (8, 4, 8)} or"
        " --input x=8x4x8",
    ),
    "name": ({"y": (1, 4, 8)}, "shapes: no input 'y'; inputs are x"),
    "rank": ({"x": (8, 4)}, "shapes: x is (8, 4); it has 3 dimensions in the program"),
    "fixed": (
        {"x": (8, 5, 8)},
        "shapes: x is (8, 5, 8), but the program takes (8, 4, 8); export it with dynamic_shapes",
    ),
    "range": ({"x": (65, 4, 8)}, "shapes: x, dimension 0 is 65; the program takes 1 to 64"),
    "zero": ({"x": (0, 4, 8)}, "shapes: x is (0, 4, 8); sizes are whole numbers of 1 or more"),
}


@pytest.mark.parametrize("mistake", WRONG_SHAPES)
def test_wrong_shapes_are_refused(dynamic_file: Path, mistake: str) -> None:
    shapes, line = WRONG_SHAPES[mistake]
    with pytest.raises(InvalidInput) as refused:
        read_exported(dynamic_file, shapes=shapes)
    assert str(refused.value) == line


def test_shapes_of_a_module_replace_those_of_the_examples() -> None:
    graph = read_torch(Block(), X, shapes={"x": (5, 4, 9)})
    assert graph.values[graph.inputs[0]].shape == (5, 4, 9)
    graph = read_torch(Block(), {"x": X}, shapes={"x": (5, 4, 9)})
    assert graph.values[graph.outputs[0]].shape == (5, 4, 9)
    with pytest.raises(InvalidInput, match="shapes: no input 'y'; inputs are x"):
        read_torch(Block(), X, shapes={"y": (1,)})


def branch(x: Any) -> Any:
    return x + 1 if x.sum() > 0 else x


def test_what_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.pt2"
    broken.write_bytes(b"not a program")
    cases: list[tuple[Any, str]] = [
        (lambda: read_torch(Function(branch), X), "torch.export cannot export Function: "),
        (lambda: read_torch(Function(lambda x: x.nonzero()), X), r"nonzero .*depends on data"),
        (lambda: read_torch(Function(lambda x: torch.fft.fft(x).abs()), X), "complex64 are not supported"),
        (lambda: read_torch(branch, X), "from_torch: a torch.nn.Module is needed, not function"),
        (lambda: read_torch(Block(), 3), "from_torch: example_inputs is a tensor, a tuple .* not int"),
        (lambda: read_torch(Block(), X, shapes=[2, 4]), r"shapes: \[2, 4\] holds no values by name; write "),
        (lambda: read_torch(Block(), X, shapes={"x": 3}), "shapes: x is 3; give a tuple of sizes"),
        (lambda: read_torch(Block(), X, name=3), "name: 3 is not a text"),
        (lambda: read_torch(Block(), X.int()), "input is int32, weight is float32.* takes one type"),
        (lambda: read_exported(3), "from_exported: an ExportedProgram or the path .* not int"),
        (lambda: read_exported(tmp_path / "none.pt2"), "none.pt2: no such file"),
        (lambda: read_exported(broken), "broken.pt2: not a program of torch.export.save: "),
    ]
    for read, words in cases:
        with pytest.raises(InvalidInput, match=words) as refused:
            read()
        assert "\n" not in str(refused.value)
    # PyTorch also writes its error to a log.
    with pytest.raises(InvalidInput, match="cannot export Linear"):
        read_torch(torch.nn.Linear(8, 4), torch.randn(2, 9))
    assert "Traceback" not in capfd.readouterr().err


@torch.library.custom_op("ekc_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: Any) -> Any:
    return torch.empty_like(x)


def test_other_libraries_and_control_flow_are_listed() -> None:
    def choose(x: Any) -> Any:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (twice(x),))

    graph = read_torch(Function(choose), X)
    reasons = {n.attributes["target"]: n.attributes["reason"] for n in graph.nodes if n.kind == "opaque"}
    assert reasons == {
        "ekc_tests.twice.default": "operator of the library ekc_tests",
        "cond": "control flow: ekc reads straight-line programs",
    }


def test_quantised_weights_are_constants_and_quantised_activations_are_listed() -> None:
    import torch.ao.quantization.fx._decomposed

    ops, weight = torch.ops.quantized_decomposed, torch.arange(-18, 18, dtype=torch.int8).reshape(6, 6)

    def multiply(x: Any) -> Any:
        small = ops.quantize_per_tensor(x, 0.1, 3, -128, 127, torch.int8)
        back = ops.dequantize_per_tensor(small, 0.1, 3, -128, 127, torch.int8)
        return back @ ops.dequantize_per_tensor(weight, 0.05, 0, -128, 127, torch.int8)

    graph = read_torch(Function(multiply), X)
    kinds = [(n.kind, n.attributes.get("reason")) for n in graph.nodes]
    assert kinds == [("opaque", "quantisation: no kind of node")] * 2 + [("matmul", None)]
    right = graph.values[graph.nodes[-1].inputs[1]].data
    assert right is not None
    np.testing.assert_allclose(right, weight.numpy() * 0.05, 1e-6)


def test_nothing_without_pytorch(tmp_path: Path) -> None:
    """The package imports without PyTorch, and reading says what is missing."""
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import ekc.models\n"
        "from ekc.models.torch_reader.read import read_exported\n"
        "read_exported('x.pt2')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("reading a PyTorch model needs PyTorch: pip install torch")


def test_listing_is_empty_for_a_covered_model() -> None:
    assert list_opaque(read_torch(Block(), X)) == []
