"""Which kernel computes a layer: by the result of `ekc.tune_model`, or by a record file. PyTorch's fused
attention stays unless the three kernels of ekc are faster on this GPU.

ekc computes attention as a product, a softmax and a second product, which write and read the scores in
memory. PyTorch has one kernel for all three.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ekc import devices
from ekc.argument_checks import check_choice, check_path, format_value
from ekc.errors import EkcError, InvalidInput
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.models.graph import Graph, Node, Value
from ekc.models.model import LayerCall
from ekc.runtime.kernel import Kernel, compile
from ekc.search.data.trial import Trial
from ekc.search.database.database import RecordStore
from ekc.search.database.query import choose_best
from ekc.torch.node_functions import apply_node, find_torch_dtype

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
            return compile(self.trials[op.digest].schedule, arch=self.arch, limits=self.limits)
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
