"""Layer files: the networks of the example, merged layers, and mistakes in one line."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from ekc.errors import InvalidInput
from ekc.models.layer_file import Layer, from_layers, read_layers

ROW_WISE = frozenset({"softmax", "layer_norm", "rms_norm"})
EXAMPLE = Path(__file__).parents[2] / "examples" / "layers.toml"


def macs(layer: Layer) -> int:
    """Multiply-adds of one call."""
    a = {key: value for key, value in layer.arguments.items() if isinstance(value, int)}
    if layer.operator_kind == "conv2d":
        side = (a["h"] + 2 * a["padding"] - a["kernel"]) // a["stride"] + 1
        return a["n"] * a["out_channels"] * side * side * a["c"] * a["kernel"] ** 2
    if layer.operator_kind in ROW_WISE:
        return 0
    return a.get("b", 1) * a["m"] * a.get("n", 1) * a["k"]


def total(model: str, figure: Callable[[Layer], int]) -> int:
    """A figure summed over one pass of a model of the example."""
    layers = read_layers(EXAMPLE)
    return sum(figure(layer) * use.count for layer in layers for use in layer.uses if use.model == model)


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str], list[Layer]]:
    """Read a text as the layer file net.toml."""

    def read(text: str) -> list[Layer]:
        path = tmp_path / "net.toml"
        path.write_text(text)
        return list(read_layers(path))

    return read


@pytest.mark.parametrize("batch", [1, 16])
def test_resnet50_has_53_convolutions_and_the_macs_of_torchvision(batch: int) -> None:
    model = f"ResNet-50, batch {batch}"
    assert total(model, lambda layer: layer.operator_kind == "conv2d") == 53
    assert total(model, lambda layer: layer.operator_kind != "conv2d") == 1
    assert total(model, macs) == batch * 4_089_184_256


def test_resnet50_has_23_distinct_convolutions() -> None:
    shapes = {
        str({k: v for k, v in layer.arguments.items() if k not in ("epilogue", "inputs")})
        for layer in read_layers(EXAMPLE)
        if layer.operator_kind == "conv2d" and layer.arguments.get("n") == 1
    }
    assert len(shapes) == 23


def test_bert_base_flops() -> None:
    per_layer = 4 * 128 * 768**2 + 2 * 128 * 768 * 3072 + 2 * 128**2 * 768
    assert total("BERT-base, sequence 128, batch 1", macs) == 12 * per_layer
    assert 2 * 12 * per_layer == pytest.approx(22.35e9, rel=1e-3)


def test_llama_decode_reads_every_weight_once() -> None:
    weights = total("Llama-3-8B, decode batch 1", lambda x: macs(x) if x.operator_kind == "matvec" else 0)
    embeddings, norms = 128256 * 4096, 65 * 4096
    assert weights + embeddings + norms == 8_030_261_248  # parameters of the checkpoint


def test_llama_prefill_attends_with_32_heads() -> None:
    attention = total(
        "Llama-3-8B, prefill 512", lambda x: macs(x) if x.operator_kind == "batch_matmul" else 0
    )
    assert attention == 32 * 2 * 32 * 512 * 512 * 128


@pytest.mark.parametrize(
    ("model", "kind", "elements"),
    [
        ("BERT-base, sequence 128, batch 1", "softmax", 12 * 12 * 128 * 128),
        ("BERT-base, sequence 128, batch 1", "layer_norm", 12 * 2 * 128 * 768),
        ("Llama-3-8B, prefill 512", "softmax", 32 * 32 * 512 * 512),
        ("Llama-3-8B, prefill 512", "rms_norm", (32 * 2 * 512 + 1) * 4096),
        ("Llama-3-8B, decode batch 1", "softmax", 32 * 32 * 512),
        ("Llama-3-8B, decode batch 1", "rms_norm", (32 * 2 + 1) * 4096),
    ],
)
def test_transformers_have_softmax_and_norms(model: str, kind: str, elements: int) -> None:
    def size(layer: Layer) -> int:
        shape = layer.arguments.get("shape", ())
        return math.prod(shape) if layer.operator_kind == kind else 0  # type: ignore[arg-type]

    assert total(model, size) == elements


def test_layers_of_the_example_are_distinct_and_named() -> None:
    layers = read_layers(EXAMPLE)
    shapes = {(layer.operator_kind, str(sorted(layer.arguments.items(), key=str))) for layer in layers}
    assert len(shapes) == len(layers)
    assert all(use.name for layer in layers for use in layer.uses)


def test_equal_shapes_become_one_layer(read: Callable[[str], list[Layer]]) -> None:
    merged, other = read(
        '[[layer]]\nname = "q"\nmodel = "x"\noperator = "matmul"\ncount = 12\nm = 1\nn = 2\nk = 3\n'
        '[[layer]]\noperator = "matmul"\nname = "o"\nk = 3\nn = 2\nm = 1\n'
        '[[layer]]\nname = "transposed"\noperator = "matmul"\nm = 1\nn = 2\nk = 3\ntranspose_b = true\n'
    )
    assert [(use.name, use.model, use.count) for use in merged.uses] == [("q", "x", 12), ("o", "", 1)]
    assert [(use.name, use.count) for use in other.uses] == [("transposed", 1)]


def test_a_file_is_a_model_of_distinct_operators(tmp_path: Path) -> None:
    """An argument that is written out with its default makes no other operator."""
    file = tmp_path / "net.toml"
    plain = '[[layer]]\nname = "{}"\nmodel = "net"\noperator = "matmul"\nm = 4\nn = 4\nk = 4\n{}'
    file.write_text(plain.format("one", "count = 2\n") + plain.format("two", "transpose_a = false\n"))
    model = from_layers(file)
    (layer,) = model.layers
    assert (model.name, model.call_count, layer.name, layer.count) == ("net", 3, "one", 3)
    assert [use.name for use in layer.uses] == ["one", "two"]
    assert (model.uncovered, model.coverage.flops, model.coverage.bytes) == ((), 1.0, 1.0)


def test_an_operator_that_cannot_be_made_names_its_layer(tmp_path: Path) -> None:
    file = tmp_path / "net.toml"
    file.write_text('[[layer]]\nname = "a"\noperator = "matmul"\nm = 4\nn = 4\n')
    with pytest.raises(InvalidInput, match=r"net\.toml: layer a: matmul: k missing; it needs m, n, k$"):
        from_layers(file)
    with pytest.raises(InvalidInput, match=r"^path: 3 is not a path"):
        from_layers(3)  # type: ignore[arg-type]


def test_lists_become_tuples(read: Callable[[str], list[Layer]]) -> None:
    (layer,) = read('[[layer]]\nname = "a"\noperator = "conv2d"\nkernel = [3, 1]')
    assert layer.arguments == {"kernel": (3, 1)}


def test_epilogue_and_inputs_distinguish_layers(read: Callable[[str], list[Layer]]) -> None:
    layer = '[[layer]]\nname = "a"\noperator = "matmul"\n'
    more = 'epilogue = "c + bias"\ninputs = { bias = [64] }\n'
    plain, biased = read(layer + layer + more + layer + more)
    assert [use.count for use in (*plain.uses, *biased.uses)] == [1, 1, 1]
    assert biased.arguments == {"epilogue": "c + bias", "inputs": {"bias": (64,)}}


PLAIN = dict.fromkeys(("conv1", "conv2"), "relu(y + bias)") | dict.fromkeys(("downsample", "fc"), "y + bias")
EPILOGUES = {
    "ResNet-50": PLAIN | {"conv3": "relu(y + bias + shortcut)"},
    "BERT-base": {
        **dict.fromkeys(("query", "key", "value"), "c + bias"),
        "attention.scores": "c * 0.125",
        "attention.output.dense": "c + bias + before",
        "intermediate.dense": "gelu(c + bias)",
        "output.dense": "c + bias + before",
    },
    "Llama-3-8B": {
        "self_attn.scores": "c * 0.08838834764831845",
        "self_attn.o_proj": "c + before",
        "mlp.up_proj": "silu(gate) * c",
        "mlp.down_proj": "c + before",
    },
}
"""By the name of the layer, or by the last part of it."""
BARE = {
    "BERT-base": {"attention.context", "attention.softmax", "LayerNorm"},
    "Llama-3-8B": {
        *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "context", "softmax")),
        *("mlp.gate_proj", "lm_head", "layernorm", "norm"),
    },
}


def test_products_of_the_example_have_epilogues() -> None:
    seen, bare = set[tuple[str, str]](), set[tuple[str, str]]()
    for layer in read_layers(EXAMPLE):
        for use in layer.uses:
            model = use.model.partition(",")[0]
            name = use.name if use.name in EPILOGUES[model] else use.name.rpartition(".")[2]
            if "epilogue" in layer.arguments:
                assert layer.arguments["epilogue"] == EPILOGUES[model].get(name), use
                seen.add((model, name))
            else:
                bare.add((model, use.name))
    assert seen == {(model, name) for model, names in EPILOGUES.items() for name in names}
    assert bare == {(model, name) for model, names in BARE.items() for name in names}


ENTRY = '[[layer]]\nname = "a"\noperator = "matmul"\n'
MISTAKES = {
    "no value": ("[[layer]]\nname =\n", "net.toml, line 2: Invalid value"),
    "cut short": ('[[layer]]\nname = "a"\nm = [1,', "net.toml, line 3: "),
    "twice": (ENTRY + "m = 1\nm = 2", "net.toml, line 5: Cannot overwrite a value"),
    "inputs": (ENTRY + "inputs = 3", "layer 1 (a): inputs is 3; write inputs = { bias = [64] }"),
    "huge": (ENTRY + "m = " + "1" * 5000, "net.toml cannot be read as TOML: Exceeds the limit"),
    "deep": ("a = " + "[" * 5000, "net.toml cannot be read as TOML: it is nested too deeply"),
    "empty": ("", "net.toml holds no layers; each starts with a line [[layer]]"),
    "one bracket": ('[layer]\nname = "a"', "net.toml holds no layers"),
    "list of numbers": ("layer = [1]", "net.toml holds no layers"),
    "table": ("[[layers]]", "net.toml: no key 'layers'; did you mean 'layer'?"),
    "key": (ENTRY + "paddin = 1", "net.toml, layer 1: no key 'paddin'; did you mean 'padding'?"),
    "far key": (
        ENTRY + "qqq = 1",
        "net.toml, layer 1: no key 'qqq'; keys are name, model, operator, count, ",
    ),
    "own key": ('[[layer]]\nnmae = "a"', "net.toml, layer 1: no key 'nmae'; did you mean 'name'?"),
    "kind": (
        '[[layer]]\nname = "a"\noperator = "conv2"',
        "net.toml, layer 1 (a): no operator 'conv2'; did you mean 'conv2d'?",
    ),
    "far kind": (
        '[[layer]]\nname = "a"\noperator = "__class__"',
        "no operator '__class__'; operators are batch_matmul, conv1d, conv2d, ",
    ),
    "no name": ('[[layer]]\noperator = "matmul"', "net.toml, layer 1: it has no name; add name ="),
    "name": ("[[layer]]\nname = 3", "net.toml, layer 1: name is 3; it must be a text in quotes"),
    "count 0": (ENTRY + "count = 0", "layer 1 (a): count is 0; it must be a whole number from 1"),
    "count true": (ENTRY + "count = true", "count is True; it must be a whole number from 1"),
    "date": (ENTRY + "m = 2024-01-01", "layer 1 (a): m is "),
    "nested": (ENTRY + "m = {a = 1}", "layer 1 (a): m is {'a': 1}; it must be a number"),
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistake_in_a_layer_file_is_one_line(
    read: Callable[[str], list[Layer]], text: str, message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.toml"
    path.write_bytes(b'[[layer]]\nname = "\xff"')
    with pytest.raises(InvalidInput, match=r"net\.toml, line 2: not UTF-8 text"):
        read_layers(path)


def test_missing_file_names_a_similar_one() -> None:
    with pytest.raises(
        InvalidInput, match=r"layer\.toml cannot be read: No such .*did you mean .*layers\.toml"
    ):
        read_layers(EXAMPLE.with_name("layer.toml"))
    with pytest.raises(InvalidInput, match=r"cannot be read: No such file or directory$"):
        from_layers("/nowhere/net.toml")
