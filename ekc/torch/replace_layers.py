"""`ekc.torch.compile`: kernels of ekc in place of the layers of a module.

The result of `ekc.tune_model` or a record file says which kernel computes a layer. PyTorch's fused attention
stays unless the three kernels of ekc are faster on this GPU: a product, a softmax and a second product, which
write and read the scores in memory. PyTorch has one kernel for all three.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ekc import devices
from ekc.argument_checks import check_choice, check_path, format_value
from ekc.errors import EkcError, InvalidInput
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.models.build import build_model, derive_layers
from ekc.models.graph import Graph, Node, Value
from ekc.models.model import LayerCall, Model, UncoveredNode
from ekc.runtime.kernel import Kernel
from ekc.runtime.kernel import compile as compile_kernel
from ekc.search.data.trial import Trial
from ekc.search.database.database import RecordStore
from ekc.search.database.query import choose_best
from ekc.torch.compiled_module import (
    CompiledModule,
    LayerReplacement,
    ReplacementReport,
    get_fused,
    list_calls,
)
from ekc.torch.module_graph import ModuleGraph, collect_constants, read_module
from ekc.torch.node_functions import apply_node, find_torch_dtype, keep_node
from ekc.torch.operators import register_layer

NOT_TUNED = "not tuned"


@dataclass(frozen=True)
class TunedLayers:
    """Best schedules of operators on one device, and why others have none. Keys are digests."""

    label: str
    """Printed name of the device: "a100 (simulated)"."""
    simulated: bool
    arch: str
    limits: LaunchLimits | None
    trials: Mapping[str, Trial]
    failures: Mapping[str, str] = field(default_factory=dict)
    """Why tuning failed, a line each."""

    def compile(self, op: Operator) -> Kernel | str:
        """The kernel of a layer, or in one line why it has none."""
        if op.digest in self.failures:
            return self.failures[op.digest]
        if op.digest not in self.trials:
            return NOT_TUNED
        try:
            # No device: tensors on the CPU are computed by the PTX machine.
            return compile_kernel(self.trials[op.digest].schedule, arch=self.arch, limits=self.limits)
        except EkcError as problem:
            return f"not compiled: {problem}"


def read_records(ops: Iterable[Operator], records: str | Path, target: str) -> TunedLayers:
    """Best schedules of a record file, by the rule of `ekc.best`.

    Raises `RecordError` for the file, `DeviceError` for the target, `InvalidInput` for arguments.
    """
    path, device, trials = check_path("records", records), devices.open(target), dict[str, Trial]()
    with RecordStore(path, create=False):
        # Raises for a file that is no record file, whatever the operators are.
        pass
    for op in ops:
        try:
            trials[op.digest] = choose_best(op, path, device)
        except InvalidInput:
            # No metered schedule under these conditions.
            continue
    return TunedLayers(device.label, device.simulated, device.arch, device.limits, trials)


def read_result(result: Any) -> TunedLayers:
    """Best schedules of a result of `ekc.tune_model`. Raises `InvalidInput` for anything else."""
    layers, device = getattr(result, "layers", None), getattr(result, "device", None)
    if not isinstance(layers, tuple) or device is None:
        raise InvalidInput(
            f"result: {format_value(result)} is no result of ekc.tune_model; "
            'give one, or records="tuning.db" and target="a100"'
        )
    tuned = {one.layer.op.digest: one.result.best for one in layers if one.result is not None}
    failures = {one.layer.op.digest: one.failure for one in layers if one.result is None}
    return TunedLayers(device.label, device.simulated, device.arch, device.limits, tuned, failures)


CHOICES = ("auto", "pytorch", "ekc")
KEPT_REASON = "fused attention of PyTorch"
_CALLS, _SAMPLES = 20, 7


@dataclass(frozen=True)
class AttentionChoice:
    """Which attention nodes PyTorch computes, and why in a sentence; "" where the module has no attention."""

    kept: frozenset[str]
    """Outputs of the nodes that stay."""
    note: str = ""


def choose_attention(
    graph: Graph, calls: Sequence[LayerCall], tuned: TunedLayers, device: torch.device, choice: str
) -> AttentionChoice:
    """Choose what computes the attention nodes of a graph; `calls` are those of the graph fused with all of
    them as layers of ekc.

    choice: "pytorch" keeps all, "ekc" none that has kernels, "auto" compares the measured latency of the
        kernels with a timing of PyTorch's function, on a GPU, and keeps all without one.
    """
    check_choice("attention", choice, CHOICES)
    nodes = [node for node in graph.nodes if node.kind == "attention"]
    every = frozenset(node.output for node in nodes)
    if not nodes or choice == "pytorch":
        return AttentionChoice(every)
    own = {node.output: list_attention_calls(node, calls) for node in nodes}
    missing = {output for output, found in own.items() if not has_kernels(found, tuned)}
    if choice == "ekc":
        return AttentionChoice(frozenset(missing))
    if device.type != "cuda" or tuned.simulated:
        why = "the figures are simulated" if tuned.simulated else "the module is not on a GPU"
        note = f'Attention stays PyTorch\'s: {why}; attention="ekc" takes the kernels of ekc.'
        return AttentionChoice(every, note)
    slower, times = missing, dict[tuple[object, ...], float]()
    for node in nodes:
        key = _describe_call(node, graph.values)
        if key not in times:
            times[key] = time_attention(node, graph.values, device)
        if node.output not in slower and sum_latency(own[node.output], tuned) >= times[key]:
            slower.add(node.output)
    count = len(nodes) - len(slower)
    note = f"Attention: the kernels of ekc are faster than PyTorch's in {count} of {len(nodes)}."
    return AttentionChoice(frozenset(slower), note)


def list_attention_calls(node: Node, calls: Sequence[LayerCall]) -> tuple[LayerCall, ...]:
    """The calls of layers that compute an attention node: fusion names the values in between after it."""
    prefix = f"{node.output}."
    return tuple(
        call
        for call in calls
        if any(part.output == node.output or part.output.startswith(prefix) for part in call.nodes)
    )


def has_kernels(calls: Sequence[LayerCall], tuned: TunedLayers) -> bool:
    """Whether every call has a kernel."""
    return bool(calls) and all(call.op.digest in tuned.trials for call in calls)


def sum_latency(calls: Sequence[LayerCall], tuned: TunedLayers) -> float:
    """Seconds of the kernels of calls; infinite where one was not timed."""
    times = [tuned.trials[call.op.digest].latency_s for call in calls]
    return sum(float("inf") if time is None else time for time in times)


def _describe_call(node: Node, values: Mapping[str, Value]) -> tuple[object, ...]:
    """The facts that the time of an attention depends on."""
    inputs = tuple((values[name].shape, values[name].dtype.name) for name in node.inputs)
    return (inputs, node.attributes["is_causal"])


def time_attention(node: Node, values: Mapping[str, Value], device: torch.device) -> float:
    """Seconds of PyTorch's function for an attention node on a GPU: median of means of back-to-back calls."""
    inputs = [
        torch.zeros(values[name].shape, dtype=find_torch_dtype(values[name].dtype.name), device=device)
        for name in node.inputs
    ]
    samples = []
    with torch.no_grad(), torch.cuda.device(device):
        for _ in range(_SAMPLES + 1):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(_CALLS):
                apply_node(node, values, inputs)
            end.record()
            end.synchronize()
            samples.append(1e-3 * start.elapsed_time(end) / _CALLS)
    # The first sample warms up.
    return float(median(samples[1:]))


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
    model = derive_layers(keep_nodes(read.graph, choice))[0] if choice.kept else full
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
