"""Blocks of networks as layers: which there are, and that they compute the block."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ekc
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.models.build import build_model
from ekc.models.functions import ACTIVATIONS, FUNCTIONS
from ekc.models.graph import Graph
from ekc.models.layer_file import from_layers
from ekc.models.model import LayerCall, Model, format_epilogue, format_kind
from tests.models.blocks import BLOCKS, attention_block, gated_mlp, mlp_block, residual_block, unet_block
from tests.models.sketch import Sketch
from tests.models.test_fuse_drawn import compare

LAYERS = Path(__file__).parents[2] / "examples" / "layers.toml"


def list_layers(model: Model) -> list[str]:
    """Operator and epilogue of each layer."""
    return [" ".join((format_kind(x.op), format_epilogue(x.op))).strip() for x in model.layers]


def find_call(model: Model, name: str) -> LayerCall:
    assert model.fused is not None
    return next(x for x in model.fused.steps if isinstance(x, LayerCall) and x.name == name)


@pytest.mark.parametrize("name", BLOCKS)
def test_layers_compute_the_block(name: str) -> None:
    graph = BLOCKS[name]()
    compare(graph, 2e-3 if graph.values[graph.inputs[0]].dtype == "float16" else 1e-5)
    model = build_model(graph)
    assert model.coverage == type(model.coverage)(1.0, 1.0)
    assert not model.uncovered


def test_batch_norms_and_shortcuts_become_epilogues() -> None:
    assert list_layers(build_model(residual_block())) == [
        "conv2d relu(y + bias)",
        "conv2d y + bias",
        "conv2d relu(y + bias + shortcut)",
        "max_pool",
        "reduce_mean",
        "matvec y + bias",
    ]


def test_a_model_without_weights_has_the_layers_of_one_with_them() -> None:
    with_weights, without = build_model(residual_block()), build_model(residual_block(has_data=False))
    assert [x.op.digest for x in without.layers] == [x.op.digest for x in with_weights.layers]


def test_residual_written_first_is_the_operator_of_one_written_last() -> None:
    model = build_model(mlp_block())
    assert list_layers(model) == ["layer_norm", "matmul gelu(c + bias)", "matmul c + bias + before"]
    assert model.layers[-1].op == ekc.matmul(6, 16, 32).epilogue(
        lambda c, bias, before: c + bias + before, bias=(16,), before=(6, 16)
    )


def test_gate_is_applied_where_it_is_used() -> None:
    assert list_layers(build_model(gated_mlp())) == ["matmul", "matmul silu(gate) * c", "matmul c + before"]


def test_heads_that_share_keys_are_rows_of_one_product() -> None:
    model = build_model(attention_block(4, 2))
    scores = next(x.op for x in model.layers if x.name.endswith(".scores"))
    expected = ekc.batch_matmul(2, 12, 6, 4, transpose_b=True).epilogue(lambda c: c * 0.5)
    assert scores == expected
    context = next(x.op for x in model.layers if x.name.endswith(".context"))
    assert context == ekc.batch_matmul(2, 12, 4, 6)
    assert "score matrix" in model.notes[-1]


def test_causal_mask_needs_no_tensor() -> None:
    model = build_model(attention_block(4, 2, mask="causal"))
    scores = next(x.op for x in model.layers if x.name.endswith(".scores"))
    assert [t.name for t in scores.inputs] == ["A", "B"]
    assert format_epilogue(scores) == "where(i % 6 < j, -inf, c * 0.5)"


def test_upsampling_and_concat_are_one_operator() -> None:
    model = build_model(unet_block())
    assert "concat" in list_layers(model)
    assert not any(x.op.name == "resize" for x in model.layers)


def read_layer(model: str, name: str) -> Operator:
    """A layer of examples/layers.toml."""
    return next(
        layer.op
        for layer in from_layers(LAYERS).layers
        if any(use.name == name and use.model.startswith(model) for use in layer.uses)
    )


def make_llama_layer(tokens: int, cached: int) -> Graph:
    """A layer of Llama-3-8B and the head, as transformers writes it, in shapes alone."""
    s = Sketch("llama", "float16", has_data=False)
    x, cos, sin = s.input(1, tokens, 4096), s.input(1, 1, tokens, 128), s.input(1, 1, tokens, 128)

    def project(heads: int, of: str) -> str:
        return s.permute(s.reshape(s.linear(of, heads * 128, False), 1, tokens, heads, 128), 0, 2, 1, 3)

    def turn(q: str) -> str:
        halves = s.concat(3, s.apply("neg", s.slice(q, 3, 64, 128)), s.slice(q, 3, 0, 64))
        return s.apply("add", s.apply("mul", q, cos), s.apply("mul", halves, sin))

    def repeat(k: str) -> str:
        t = s.shape(k)[2]
        return s.reshape(s.expand(s.reshape(k, 1, 8, 1, t, 128), 1, 8, 4, t, 128), 1, 32, t, 128)

    normed = s.rms_norm(x)
    q, k, v = turn(project(32, normed)), turn(project(8, normed)), project(8, normed)
    if cached:
        k = s.concat(2, s.input(1, 8, cached, 128), k)
        v = s.concat(2, s.input(1, 8, cached, 128), v)
    y = s.permute(s.attention(q, repeat(k), repeat(v)), 0, 2, 1, 3)
    x = s.apply("add", x, s.linear(s.reshape(y, 1, tokens, 4096), 4096, False))
    normed = s.rms_norm(x)
    gate, up = s.linear(normed, 14336, False), s.linear(normed, 14336, False)
    x = s.apply("add", x, s.linear(s.apply("mul", s.apply("silu", gate), up), 4096, False))
    last = s.rms_norm(s.slice(x, 1, tokens - 1, tokens))
    return s.build(s.linear(last, 128256, False))


@pytest.mark.parametrize(("tokens", "cached", "name"), [(512, 0, "prefill 512"), (1, 511, "decode batch 1")])
def test_llama_has_the_layers_of_the_layer_file(tokens: int, cached: int, name: str) -> None:
    model = build_model(make_llama_layer(tokens, cached))
    found = {x.op.digest for x in model.layers}
    expected = {
        use.name: layer.op
        for layer in from_layers(LAYERS).layers
        for use in layer.uses
        if use.model == f"Llama-3-8B, {name}"
    }
    # The keys are stored by head and position, so their product has the transpose of the second operand.
    del expected["self_attn.scores"]
    assert {name for name, op in expected.items() if op.digest not in found} == set()
    rows = 4 * tokens
    scores = ekc.batch_matmul(8, rows, 512, 128, dtype="float16", transpose_b=True)
    scores = scores.epilogue(lambda c: c * 0.08838834764831845)
    assert scores.digest in found
    moves = {"permute", "elementwise", "concat", "slice"}
    others = found - {op.digest for op in expected.values()} - {scores.digest}
    assert {x.op.name for x in model.layers if x.op.digest in others} <= moves


def test_uses_of_one_operator_are_counted() -> None:
    model = build_model(attention_block(2, 1))
    assert model.layers[0].count == 3
    assert len({use.name for use in model.layers[0].uses}) == 3
    assert model.call_count == sum(x.count for x in model.layers)


def test_split_of_one_product_and_a_head_permute_are_one_operator() -> None:
    s = Sketch()
    x = s.input(1, 6, 8)
    qkv = s.linear(x, 24)
    parts = [s.slice(qkv, 2, start, start + 8) for start in (0, 8, 16)]
    q, k, v = (s.permute(s.reshape(p, 1, 6, 2, 4), 0, 2, 1, 3) for p in parts)
    graph = s.build(s.attention(q, k, v))
    compare(graph, 1e-5)
    assert [x.name for x in (layer.op for layer in build_model(graph).layers)].count("slice") == 3


@pytest.mark.parametrize(
    ("function", "words"), [("sin", "ekc has no function sin"), ("floor", "ekc has no function floor")]
)
def test_a_function_that_ekc_lacks_stays(function: str, words: str) -> None:
    s = Sketch()
    y = s.linear(s.input(4, 8), 8)
    graph = s.build(s.linear(s.apply(function, y), 8))
    compare(graph, 1e-5)
    model = build_model(graph)
    assert [(node.target, node.reason, node.count) for node in model.uncovered] == [(function, words, 1)]
    assert 0 < model.coverage.flops < 1


def test_truth_values_stay_where_they_are_stored() -> None:
    s = Sketch()
    x, y = s.input(4, 8), s.input(4, 8)
    chosen = s.apply("less", x, y, dtype="bool")
    graph = s.build(s.apply("where", chosen, s.linear(x, 8), y), chosen)
    compare(graph, 1e-5)
    reasons = {node.reason for node in build_model(graph).uncovered}
    assert reasons == {"ekc stores no truth values"}


def test_gather_stays_and_counts_the_rows_that_it_reads() -> None:
    s = Sketch()
    words = s.input(1, 3, dtype="int64")
    x = s.node("gather", [s.weight(1000, 8), words], (1, 3, 8), axis=0)
    model = build_model(s.build(s.linear(x, 8)))
    (gather,) = model.uncovered
    assert gather.reason == "ekc has no reads by an index tensor"
    assert gather.bytes == 2 * 3 * 8 * 4 + 3 * 8


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda s: s.node("opaque", [s.input(4)], (4,), target="fft", reason="ekc has no transforms"),
         "no layer to tune; fft (opaque1): ekc has no transforms"),
        (lambda s: s.apply("relu", s.input(4, dtype="float64")), "float64: ekc computes in float32"),
        (lambda s: s.matmul(s.input(4, 4), s.input(4, 4, dtype="float16")), "operands of two types"),
        (lambda s: s.constant([1.0, 2.0]), "no arithmetic on its inputs: the outputs are constants, or"),
    ],
)  # fmt: skip
def test_a_model_without_layers_is_refused(make: object, words: str) -> None:
    s = Sketch()
    graph = s.build(make(s))  # type: ignore[operator]
    with pytest.raises(InvalidInput) as problem:
        build_model(graph)
    assert words in str(problem.value)
    assert "\n" not in str(problem.value)


def test_model_shows_its_layers() -> None:
    s = Sketch("tiny")
    graph = s.build(s.apply("sin", s.linear(s.input(4, 8), 8)))
    model = build_model(graph)
    text = str(model)
    assert "matmul" in text
    assert "4x8 8x8 -> 4x8" in text
    assert "c + bias" in text
    assert "ekc has no function sin" in text
    assert f"Covered by layers: {model.coverage.flops:.1%} of flops and" in text
    assert repr(model) == f"<Model tiny: 1 layer, 1 call, covered: {model.coverage}>"


def test_operations_of_unknown_operators_are_unknown() -> None:
    s = Sketch("tiny")
    y = s.linear(s.input(4, 8), 8)
    model = build_model(s.build(s.node("opaque", [y], (4, 8), target="LSTM", reason="no kind of node")))
    assert model.coverage.flops == 1
    covered = "1 node of unknown work; 100.0% of known flops and 68.0% of bytes"
    assert f"Covered by layers: {covered}." in str(model)
    assert "unknown" in str(model)
    assert repr(model) == f"<Model tiny: 1 layer, 1 call, covered: {covered}>"


def test_two_outputs_that_never_meet_are_no_epilogue() -> None:
    s = Sketch()
    y = s.layer_norm(s.input(4, 6))
    graph = s.build(s.apply("add", s.input(4, 6), y), s.apply("relu", y))
    compare(graph, 1e-5)


def test_uses_that_meet_again_are_an_epilogue() -> None:
    s = Sketch()
    y = s.linear(s.input(4, 6), 6, False)
    quick = s.apply("mul", y, s.apply("sigmoid", s.apply("mul", y, 1.702)))
    model = build_model(s.build(quick))
    assert list_layers(model) == ["matmul c * sigmoid(c * 1.702)"]


@pytest.mark.parametrize("turns_at_once", [False, True])
def test_keys_turned_in_one_permute_or_two_give_equal_operators(turns_at_once: bool) -> None:
    s = Sketch()
    x = s.input(1, 6, 8)
    q = s.permute(s.reshape(s.linear(x, 8), 1, 6, 2, 4), 0, 2, 1, 3)
    k = s.reshape(s.linear(x, 8), 1, 6, 2, 4)
    k = s.permute(k, 0, 2, 3, 1) if turns_at_once else s.permute(s.permute(k, 0, 2, 1, 3), 0, 1, 3, 2)
    graph = s.build(s.softmax(s.apply("div", s.matmul(q, k), 2.0)))
    compare(graph, 1e-5)
    scores = ekc.batch_matmul(2, 6, 6, 4, transpose_b=True).epilogue(lambda c: c * 0.5)
    assert scores in [x.op for x in build_model(graph).layers]


def test_int8_product_is_scaled_in_its_epilogue() -> None:
    s = Sketch()
    x = s.input(4, 8, dtype="int8")
    weight = s.constant(np.arange(40).reshape(8, 5) % 7 - 3, "int8")
    y = s.node("matmul", [x, weight], (4, 5), dtype="int32")
    y = s.apply("mul", s.cast(y, "float32"), s.constant(np.linspace(0.1, 0.5, 5), "float32"))
    graph = s.build(s.apply("relu", y))
    compare(graph, 1e-5)
    assert [str(x.op.outputs[0].dtype) for x in build_model(graph).layers] == ["float32"]
    assert list_layers(build_model(graph)) == ["matmul relu(c * scale)"]


def write_out_attention(s: Sketch, q: str, k: str, v: str, mask: str | None, guarded: bool) -> str:
    """Attention as PyTorch's exporter to ONNX writes it."""
    root = float(np.float32(np.sqrt(np.float32(s.shape(q)[-1] ** -0.5))))
    heads, shared = s.shape(k)[1], s.shape(q)[1] // s.shape(k)[1]
    batch, _, t, d = s.shape(k)

    def repeat(x: str) -> str:
        if shared == 1:
            return x
        x = s.expand(s.reshape(x, batch, heads, 1, t, d), batch, heads, shared, t, d)
        return s.reshape(x, batch, heads * shared, t, d)

    turned = s.permute(repeat(k), 0, 1, 3, 2)
    scores = s.matmul(s.apply("mul", q, root), s.apply("mul", turned, root))
    if mask is not None:
        scores = s.apply("add", scores, mask)
    y = s.softmax(scores)
    if guarded:
        is_number = s.apply("equal", y, y, dtype="bool")
        y = s.apply("where", s.apply("logical_not", is_number), s.constant(0.0, s.dtype), y, dtype=s.type(y))
    return s.matmul(y, repeat(v))


def make_written_attention(mask: np.ndarray | None, shared: int = 2, *, is_node: bool = False) -> Graph:
    """One attention of four heads, as a node or written out."""
    s = Sketch()
    q, k, v = s.input(1, 4, 6, 8), s.input(1, 4 // shared, 6, 8), s.input(1, 4 // shared, 6, 8)
    if is_node:
        return s.build(s.attention(q, k, v, is_causal=mask is not None))
    given = None if mask is None else s.constant(mask, "float32")
    return s.build(write_out_attention(s, q, k, v, given, guarded=True))


CAUSAL = np.where(np.tri(6, dtype=bool), 0, -np.inf)


@pytest.mark.parametrize("mask", [None, CAUSAL, np.maximum(CAUSAL, np.finfo(np.float32).min)[None, None]])
@pytest.mark.parametrize("shared", [1, 2])
def test_written_out_attention_has_the_layers_of_the_node(mask: np.ndarray | None, shared: int) -> None:
    graph = make_written_attention(mask, shared)
    compare(graph, 1e-5)
    own = [x.op.digest for x in build_model(graph).layers]
    assert "score matrix" in build_model(graph).notes[-1]
    node = [x.op.digest for x in build_model(make_written_attention(mask, shared, is_node=True)).layers]
    assert own == node


def test_a_mask_of_zeros_is_left_out() -> None:
    with_mask = build_model(make_written_attention(np.zeros((1, 1, 6, 6))))
    without = build_model(make_written_attention(None, is_node=True))
    assert [x.op for x in with_mask.layers] == [x.op for x in without.layers]


def test_other_masks_and_guards_of_masked_rows_stay() -> None:
    mask = CAUSAL.copy()
    mask[2] = -np.inf
    graph = make_written_attention(mask)
    compare(graph, 1e-5)
    texts = list_layers(build_model(graph))
    assert f"batch_matmul c * {8**-0.5} + mask" in texts
    assert any(text.startswith("softmax where(") for text in texts)


@pytest.mark.parametrize("function", ACTIVATIONS)
def test_an_activation_has_its_name_in_the_text_of_an_epilogue(function: str) -> None:
    op = ekc.matmul(4, 4, 4)
    activated = op.epilogue(lambda c: FUNCTIONS[function].write([2 * c], {}))
    assert format_epilogue(activated) == f"{function}(2 * c)"
    # Another number is another function.
    assert format_epilogue(op.epilogue(lambda c: ekc.sigmoid(c) + ekc.minimum(c / 6 + 0.4, 1))) == (
        "sigmoid(c) + min(c / 6 + 0.4, 1)"
    )
