"""Models that PyTorch exports to ONNX: layers as those of the PyTorch reader, results as those of PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

from ekc.models import Model, from_onnx, from_torch  # noqa: E402
from ekc.models.build import build_model, execute_fused  # noqa: E402
from ekc.models.evaluate import evaluate  # noqa: E402
from ekc.models.onnx_reader.read import read_onnx  # noqa: E402
from tests.pytorch import model_zoo  # noqa: E402
from tests.pytorch.exported import export_module, give_memory, make_zeros  # noqa: E402
from tests.pytorch.reading import flatten_inputs, to_numpy  # noqa: E402
from tests.pytorch.test_models import BLOCKS, SMALL, check_coverage  # noqa: E402

DIFFERENCES: Mapping[str, dict[str, int]] = {
    # The exporter computes the activation of the time once; the PyTorch program in each of three blocks.
    "U-Net block": {"elementwise": -2},
    "U-Net": {"elementwise": -2},
}
"""Calls of layers that the ONNX model has more than the PyTorch program, by the kind of operator."""
OTHER_FORMS: Mapping[str, set[str]] = {
    # The exporter writes RotaryEmbedding, with half of the cosines, and the program a sum of two products
    # with all. The key joins the cache in two halves.
    "Llama decode 23": {"elementwise", "concat"},
}
"""Kinds of operators that the two have in different forms."""


def count_layers(model: Model) -> Counter[str]:
    return Counter({layer.op.digest: layer.count for layer in model.layers})


def check_layers(name: str, found: Model, wanted: Model) -> None:
    """The same operators with the same number of calls, but for the listed differences."""
    operators = {layer.op.digest: layer.op for layer in (*found.layers, *wanted.layers)}
    kinds = {digest: op.name for digest, op in operators.items()}
    own, other = count_layers(found), count_layers(wanted)
    for only in ([d for d in own if d not in other], [d for d in other if d not in own]):
        texts = [str(operators[d]) for d in only]
        assert {operators[d].name for d in only} == OTHER_FORMS.get(name, set()), texts
    different = {kinds[d]: own[d] - other[d] for d in own if d in other and own[d] != other[d]}
    assert different == DIFFERENCES.get(name, {})


CASES = [
    pytest.param(name, opset, marks=[] if (name, opset) == ("ViT", 20) else pytest.mark.exhaustive)
    for name in SMALL
    for opset in (20, 23)
]


@pytest.mark.parametrize(("name", "opset"), CASES)
def test_exported_models_compute_what_pytorch_computes(name: str, opset: int) -> None:
    """At opset 20 attention is written out, at opset 23 it is an operator."""
    torch.manual_seed(1)
    module, inputs = SMALL[name]()
    for key, tensor in module.named_buffers():
        if key.endswith("running_var"):
            torch.nn.init.uniform_(tensor, 0.5, 1.5)
    for key, tensor in module.named_parameters():
        if key.endswith("bias"):
            # The exporter leaves out a bias of zeros.
            torch.nn.init.uniform_(tensor, -0.5, 0.5)
    model = export_module(module, inputs, opset_version=opset)
    graph = read_onnx(model, name=name)
    assert not [node for node in graph.nodes if node.kind == "opaque"]
    layers = build_model(graph)
    assert layers.fused is not None
    with torch.no_grad():
        expected = module(**inputs)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    arrays = flatten_inputs(inputs.values())
    for results in (evaluate(graph, arrays), execute_fused(layers.fused, arrays)):
        for given, tensor in zip(results, wanted, strict=True):
            np.testing.assert_allclose(given, to_numpy(tensor), 1e-4, 1e-4)
    key = f"{name} {opset}" if f"{name} {opset}" in OTHER_FORMS else name
    check_layers(key, layers, from_torch(module, inputs, name=name))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", model_zoo.MODELS)
def test_well_known_models_have_the_layers_of_the_pytorch_reader(name: str) -> None:
    example = model_zoo.MODELS[name](**({"layers": 1} if name in BLOCKS else {}))
    wanted = from_torch(example.module, example.inputs, dtype=example.dtype, name=name)
    module: Any = give_memory(example.module)
    found = from_onnx(export_module(module, make_zeros(example.inputs)), dtype=example.dtype, name=name)
    check_coverage(name, found)
    check_layers(name, found, wanted)
