"""`ekc.torch.compile`: kernels of ekc in place of the layers of a module."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ekc.errors import InvalidInput
from ekc.models.build import build_model, find_layers
from ekc.models.graph import Graph
from ekc.models.model import Model, UncoveredNode
from ekc.runtime.kernel import Kernel
from ekc.torch.compiled_module import (
    CompiledModule,
    LayerReplacement,
    ReplacementReport,
    get_fused,
    list_calls,
)
from ekc.torch.module_graph import ModuleGraph, collect_constants, read_module
from ekc.torch.node_functions import find_torch_dtype, keep_node
from ekc.torch.operators import register_layer
from ekc.torch.tuned_layers import (
    KEPT_REASON,
    AttentionChoice,
    TunedLayers,
    choose_attention,
    list_attention_calls,
    read_records,
    read_result,
)

NO_KERNEL_NOTE = (
    "No layer has a kernel. Shapes and types must be those that were tuned: a module that was tuned as "
    "float16 takes float16 after module.half()."
)


def compile(
    module: torch.nn.Module,
    result: Any = None,
    *,
    records: str | Path | None = None,
    target: str = "auto",
    example_inputs: Any = None,
    attention: str = "auto",
) -> CompiledModule:
    """A module that computes what `module` does, with kernels of ekc for the layers that were tuned. All else
    stays PyTorch's: `print` of the result, or its `ekc_report`, counts both and says why.

    Inference only, at the shapes and types of the example inputs. Calls with other shapes are refused, and so
    are an input that needs a gradient and `train()`. `module` itself is not changed. Weights are shared with
    it, but for those that are folded (batch norm into a convolution), cast or laid out in another order:
    compile again after a change of weights.

    result: of `ekc.tune_model`. Or records: a record file, whose best schedules for `target` ("auto",
        "cuda:0", "a100") are taken by the rule of `ekc.best`.
    example_inputs: a tensor, a tuple of positional arguments, or a dict of arguments by name, as for
        `ekc.models.from_torch`. By default zeros of the shapes of the tuned model's inputs, by position.
    attention: "auto" keeps PyTorch's fused attention, unless the module is on a GPU and the kernels of ekc,
        by their figures measured there, are faster than PyTorch's timed now. "pytorch" keeps it always, "ekc"
        never where there are kernels.

    Tensors on the CPU are computed by the PTX machine, every thread of every kernel: small shapes only.
    Warns where no layer has a kernel.

    Raises `InvalidInput` for arguments, for a module in training mode, one that writes to its buffers and one
    that cannot be exported; `RecordError` for the file, `DeviceError` for the target.
    """
    if (result is None) == (records is None):
        raise InvalidInput('ekc.torch.compile: give a result of ekc.tune_model, or records="tuning.db"')
    if example_inputs is None:
        example_inputs = make_example_inputs(result)
    read = read_module(module, example_inputs)
    full = build_model(read.graph)
    if records is None:
        tuned = read_result(result)
    else:
        tuned = read_records([layer.op for layer in full.layers], records, target)
    fast = replace_layers(module, read, full, tuned, attention)
    if not fast.operators:
        said = " ".join((f"ekc.torch: {fast.ekc_report.title}.", *fast.ekc_report.notes))
        warnings.warn(said, stacklevel=2)
    return fast


def make_example_inputs(result: Any) -> tuple[torch.Tensor, ...]:
    """Zeros of the shapes of the inputs of a tuned model. Raises `InvalidInput` where they are not known."""
    if result is not None:
        # Raises for what is no result, such as a model.
        read_result(result)
    fused = getattr(getattr(result, "model", None), "fused", None)
    if fused is None:
        raise InvalidInput(
            "example_inputs: missing; give a tensor, a tuple of arguments or a dict of arguments by name"
        )
    values = [fused.graph.values[name] for name in fused.graph.inputs]
    return tuple(torch.zeros(x.shape, dtype=find_torch_dtype(x.dtype.name)) for x in values)


def replace_layers(
    module: torch.nn.Module, read: ModuleGraph, full: Model, tuned: TunedLayers, attention: str = "auto"
) -> CompiledModule:
    """Compile the kernels, and put them into the graph of the module. `full` is the model of that graph."""
    device = find_device(module)
    choice = choose_attention(read.graph, list_calls(get_fused(full)), tuned, device, attention)
    model = find_layers(keep_nodes(read.graph, choice))[0] if choice.kept else full
    kernels = {layer.op.digest: tuned.compile(layer.op) for layer in model.layers}
    operators = {
        digest: register_layer(kernel) for digest, kernel in kernels.items() if isinstance(kernel, Kernel)
    }
    missing = NO_KERNEL_NOTE if kernels and not operators else ""
    notes = tuple(note for note in (choice.note, missing) if note)
    uncovered = count_attention(read.graph, choice, full, model.uncovered)
    report = ReplacementReport(tuned.label, list_replacements(model, kernels), uncovered, notes)
    fused = get_fused(model)
    constants = collect_constants(fused.graph, read.graph, module, device)
    weights = dict(module.named_parameters()) | dict(module.named_buffers())
    return CompiledModule(fused, constants, operators, read.structure, report, weights)


def keep_nodes(graph: Graph, choice: AttentionChoice) -> Graph:
    """The graph with the chosen attention nodes left to PyTorch."""
    nodes = (keep_node(node, KEPT_REASON) if node.output in choice.kept else node for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def count_attention(
    graph: Graph, choice: AttentionChoice, full: Model, uncovered: tuple[UncoveredNode, ...]
) -> tuple[UncoveredNode, ...]:
    """The uncovered nodes, the attention that PyTorch computes with the operations of the layers that it
    replaces."""
    kept = [node for node in graph.nodes if node.output in choice.kept]
    calls = list_calls(get_fused(full))
    flops = sum(call.flops for node in kept for call in list_attention_calls(node, calls))
    return tuple(
        replace(node, flops=flops, knows_flops=True) if node.reason == KEPT_REASON else node
        for node in uncovered
    )


def list_replacements(model: Model, kernels: Mapping[str, Kernel | str]) -> tuple[LayerReplacement, ...]:
    """The kernel of each call, or the reason why it has none."""
    found = []
    for call in list_calls(get_fused(model)):
        made = kernels[call.op.digest]
        kernel, reason = (None, made) if isinstance(made, str) else (made, "")
        found.append(LayerReplacement(call.name, call.op, call.flops, call.bytes, kernel, reason))
    return tuple(found)


def find_device(module: torch.nn.Module) -> torch.device:
    """The device of the weights of a module; the CPU for one without weights."""
    tensors = (*module.parameters(), *module.buffers())
    return tensors[0].device if tensors else torch.device("cpu")
