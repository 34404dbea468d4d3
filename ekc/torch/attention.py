"""PyTorch's fused attention: it stays unless the three kernels of ekc are faster on this GPU.

ekc computes attention as a product, a softmax and a second product, which write and read the scores in
memory. PyTorch has one kernel for all three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from ekc.argument_checks import check_choice
from ekc.models.graph import Graph, Node, Value
from ekc.models.model import LayerCall
from ekc.torch.node_functions import apply_node, find_torch_dtype
from ekc.torch.tuned_layers import TunedLayers

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
