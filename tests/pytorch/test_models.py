"""Well-known models read from PyTorch: what is covered, which layers they have, and what those compute."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import ekc  # noqa: E402
from ekc.ir.epilogue import parse_epilogue  # noqa: E402
from ekc.ir.operator import Operator  # noqa: E402
from ekc.models import Model, from_torch  # noqa: E402
from ekc.models.build import build_model, execute_fused  # noqa: E402
from ekc.models.model import format_epilogue, format_kind  # noqa: E402
from tests.pytorch import model_zoo  # noqa: E402
from tests.pytorch.reading import check_module, flatten_inputs, make_input, to_numpy  # noqa: E402

LAYERS = Path(__file__).parents[2] / "examples" / "layers.toml"
BLOCKS: Mapping[str, int] = {
    "BERT-base": 12,
    "ViT-B/16": 12,
    "Llama-3-8B prefill": 32,
    "Llama-3-8B decode": 32,
}
"""Equal blocks of the models that are read with one block in the default run."""
NOT_COVERED: Mapping[str, set[str]] = {
    "BERT-base": {"gather: ekc has no reads by an index tensor"},
    "Llama-3-8B prefill": {"gather: ekc has no reads by an index tensor"},
    "Llama-3-8B decode": {
        "gather: ekc has no reads by an index tensor",
        "cast: integers of type int64: ekc computes float32, float16, bfloat16 and int8",
        "sin: ekc has no function sin",
        "cos: ekc has no function cos",
    },
}
"""Nodes that the layers of a model do not compute, and why; of the other models they compute all."""


def read_model(name: str, blocks: int | None) -> Model:
    example = model_zoo.MODELS[name](**({} if blocks is None else {"layers": blocks}))
    return from_torch(example.module, example.inputs, dtype=example.dtype, name=name)


def check_coverage(name: str, model: Model) -> None:
    assert model.coverage.flops >= 0.98
    assert model.coverage.bytes >= 0.90
    assert {f"{node.target}: {node.reason}" for node in model.uncovered} == NOT_COVERED.get(name, set())


OTHERS = [name for name in model_zoo.MODELS if name not in ("ResNet-50", *BLOCKS)]


@pytest.mark.parametrize("name", [*OTHERS, "ViT-B/16"])
def test_layers_cover_the_model(name: str) -> None:
    check_coverage(name, read_model(name, 1 if name in BLOCKS else None))


Key = tuple[str, tuple[tuple[int, ...], ...], str]


def describe(op: Operator) -> Key:
    """Kind, extents of the inputs in ascending order, and epilogue: equal for operators that differ in the
    order in memory and in the type."""
    return format_kind(op), tuple(tuple(sorted(t.shape)) for t in op.inputs), format_epilogue(op)


def list_file_layers(model: str, blocks: tuple[int, int] = (1, 1)) -> Counter[Key]:
    """Layers of examples/layers.toml; `blocks`: the equal blocks that they have, and how many to count."""
    found: Counter[Key] = Counter()
    for layer in tomllib.loads(LAYERS.read_text())["layer"]:
        if layer.pop("model") != model:
            continue
        kind, count, text = layer.pop("operator"), layer.pop("count"), layer.pop("epilogue", None)
        inputs = {name: tuple(shape) for name, shape in layer.pop("inputs", {}).items()}
        del layer["name"]
        op = getattr(ekc, kind)(**{k: tuple(v) if isinstance(v, list) else v for k, v in layer.items()})
        if text is not None:
            op = op.epilogue(parse_epilogue(text, inputs), **inputs)
        each, rest = divmod(count, blocks[0]) if count >= blocks[0] else (0, count)
        found[describe(op)] += each * blocks[1] + rest
    return found


def list_model_layers(model: Model) -> Counter[Key]:
    found: Counter[Key] = Counter()
    for layer in model.layers:
        found[describe(layer.op)] += layer.count
    return found


def compare(
    model: Model, file_model: str, blocks: tuple[int, int] = (1, 1)
) -> tuple[dict[Key, int], dict[Key, int]]:
    """Layers that only the model has, and those that only the file has."""
    own, written = list_model_layers(model), list_file_layers(file_model, blocks)
    assert own
    assert written
    return dict(own - written), dict(written - own)


@pytest.mark.parametrize("batch", [1, pytest.param(16, marks=pytest.mark.exhaustive)])
def test_layers_of_resnet_50_are_those_of_the_example(batch: int) -> None:
    """The file has products alone; the model has its two pools too."""
    example = model_zoo.resnet50(batch)
    model = from_torch(example.module, example.inputs, name="ResNet-50")
    check_coverage("ResNet-50", model)
    more, missing = compare(model, f"ResNet-50, batch {batch}")
    assert missing == {}
    assert more == {
        ("max_pool", (tuple(sorted((64 * batch, 112, 112))),), ""): 1,
        ("reduce_mean", ((49, 2048 * batch),), ""): 1,
    }
    names = [layer.name for layer in model.layers]
    assert {"conv1", "maxpool", "layer2.0.downsample.0", "layer4.1.conv2", "avgpool", "fc"} <= set(names)


def list_bert_differences(blocks: int) -> tuple[dict[Key, int], dict[Key, int]]:
    return (
        {
            # Embeddings, which the file leaves out: the sum of three, and a norm. The gather is not covered.
            ("elementwise", ((98304,), (98304,), (98304,)), ""): 1,
            ("layer_norm", ((128, 768), (768,), (768,)), ""): 1,
            # Query, key and value in the order of heads; the file takes them as if the products wrote it.
            ("permute", ((128, 768),), ""): 3 * blocks,
            # The same, back, of what attention gives.
            ("permute", ((12, 64, 128),), ""): blocks,
        },
        {},
    )


def list_prefill_differences(blocks: int) -> tuple[dict[Key, int], dict[Key, int]]:
    scores = ("batch_matmul", ((8, 128, 2048), (8, 128, 512)))
    scaled = "c * 0.08838834764831845"
    return (
        {
            # Rotary embedding of queries and keys, which the file leaves out.
            ("elementwise", ((512, 4096), (128, 512), (128, 512)), ""): blocks,
            ("elementwise", ((512, 1024), (128, 512), (128, 512)), ""): blocks,
            # Values in the order of heads, and what attention gives back in the order of tokens.
            ("permute", ((512, 1024),), ""): blocks,
            ("permute", ((32, 128, 512),), ""): blocks,
            # The causal mask is written by the product; the file has the product without it.
            (*scores, f"where(i % 512 < j, -inf, {scaled})"): blocks,
            # transformers norms all tokens and then takes the last; the file norms the last alone.
            ("rms_norm", ((512, 4096), (4096,)), ""): 1,
            ("slice", ((512, 4096),), ""): 1,
        },
        {(*scores, scaled): blocks, ("rms_norm", ((1, 4096), (4096,)), ""): 1},
    )


def list_decode_differences(blocks: int) -> tuple[dict[Key, int], dict[Key, int]]:
    return (
        {
            # Angles of the position, then the rotary embedding, which the file leaves out.
            ("elementwise", ((1,), (64,)), ""): 1,
            ("cast", ((128,),), ""): 2,
            ("elementwise", ((4096,), (128,), (128,)), ""): blocks,
            ("elementwise", ((1024,), (128,), (128,)), ""): blocks,
            # The new key and value behind those of the cache, as DynamicCache of transformers joins them.
            ("concat", ((8, 128, 511), (8, 128)), ""): blocks,
            ("concat", ((8, 128, 511), (1024,)), ""): blocks,
        },
        {},
    )


DIFFERENCES: Mapping[str, tuple[str, Callable[[int], Any]]] = {
    "BERT-base": ("BERT-base, sequence 128, batch 1", list_bert_differences),
    "Llama-3-8B prefill": ("Llama-3-8B, prefill 512", list_prefill_differences),
    "Llama-3-8B decode": ("Llama-3-8B, decode batch 1", list_decode_differences),
}


def check_differences(name: str, blocks: int) -> None:
    model = read_model(name, blocks)
    check_coverage(name, model)
    file_model, list_differences = DIFFERENCES[name]
    assert compare(model, file_model, (BLOCKS[name], blocks)) == list_differences(blocks)


@pytest.mark.parametrize("name", DIFFERENCES)
def test_layers_of_a_block_are_those_of_the_example(name: str) -> None:
    check_differences(name, 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", DIFFERENCES)
def test_layers_of_the_whole_model_are_those_of_the_example(name: str) -> None:
    check_differences(name, BLOCKS[name])


def make_tokens(count: int, vocabulary: int = 50) -> Any:
    return torch.randint(0, vocabulary, (1, count), generator=torch.Generator().manual_seed(3))


def make_small_llama() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    return model_zoo.make_llama(2, vocab_size=50, **sizes)


def make_small_bert() -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    return BertModel(config)


def make_decode_inputs() -> dict[str, Any]:
    cached = [make_input((1, 2, 5, 8), seed) for seed in range(4)]
    return {"input_ids": make_tokens(1), "position_ids": torch.tensor([[5]]), "cached": cached}


MOBILE_ROWS = ((8, 3, 8, 8, False, False, 1), (8, 5, 16, 12, True, True, 2))
SMALL: Mapping[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "ResNet": lambda: (model_zoo.ResNet((1, 1), 8, 10), {"x": make_input((2, 3, 32, 32))}),
    "MobileNetV3": lambda: (model_zoo.MobileNetV3(MOBILE_ROWS, 16), {"x": make_input((1, 3, 32, 32))}),
    "ViT": lambda: (model_zoo.VisionTransformer(32, 8, 32, 4, 1), {"x": make_input((1, 3, 32, 32))}),
    "U-Net": lambda: (
        model_zoo.UNetBlock(32, 2, 16),
        {"x": make_input((1, 32, 8, 8)), "time": make_input((1, 16))},
    ),
    "BERT": lambda: (model_zoo.LastHidden(make_small_bert()), {"input_ids": make_tokens(9)}),
    "Llama prefill": lambda: (
        model_zoo.LastHidden(make_small_llama(), use_cache=False, logits_to_keep=1),
        {"input_ids": make_tokens(7)},
    ),
    "Llama decode": lambda: (model_zoo.Decode(make_small_llama()), make_decode_inputs()),
}


LONGER = ("MobileNetV3", "BERT", "Llama prefill", "U-Net")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.exhaustive] if n in LONGER else []) for n in SMALL]
)
def test_small_models_compute_what_pytorch_computes(name: str) -> None:
    """The graph, and its layers by their references, give the outputs of PyTorch."""
    torch.manual_seed(1)
    module, inputs = SMALL[name]()
    for key, tensor in module.named_buffers():
        if key.endswith("running_var"):
            torch.nn.init.uniform_(tensor, 0.5, 1.5)
        if key.endswith("running_mean"):
            torch.nn.init.normal_(tensor)
    graph = check_module(module, tolerance=1e-4, **inputs)
    fused = build_model(graph).fused
    assert fused is not None
    with torch.no_grad():
        expected = module(**inputs)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    for given, tensor in zip(execute_fused(fused, flatten_inputs(inputs.values())), wanted, strict=True):
        np.testing.assert_allclose(given, to_numpy(tensor), 1e-4, 1e-4)
