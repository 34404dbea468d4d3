"""The backend "ekc" of `torch.compile`: kernels of a record file in the graphs that PyTorch finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

import torch

from ekc.argument_checks import check_choice
from ekc.errors import InvalidInput
from ekc.models.build import build_model
from ekc.tables import format_table
from ekc.torch.compiled_module import CompiledModule, ReplacementReport
from ekc.torch.module_graph import list_versions, read_module
from ekc.torch.replace_layers import read_records, replace_layers

NAME, ENTRY_POINT_GROUP = "ekc", "torch_dynamo_backends"
OPTIONS = ("records", "target", "attention")
NO_KERNEL = "no layer has a record"


@dataclass(frozen=True)
class BackendGraph:
    """One graph that `torch.compile` gave to the backend."""

    report: ReplacementReport | None
    """The account of its layers; None for a graph that was not read."""
    reason: str = ""
    """Why the whole graph stays PyTorch's; "" where some layer is a kernel."""


@dataclass(frozen=True)
class BackendCounts:
    """Graphs that the backend was given in this process, and their layers."""

    graphs: tuple[BackendGraph, ...]

    @property
    def replaced_graphs(self) -> int:
        """Graphs in which some layer is a kernel."""
        return sum(not graph.reason for graph in self.graphs)

    @property
    def kept_graphs(self) -> Mapping[str, int]:
        """Reason -> graphs that stay PyTorch's for it."""
        return Counter(graph.reason for graph in self.graphs if graph.reason)

    @property
    def replaced_layers(self) -> int:
        """Layers that are kernels."""
        return sum(len(graph.report.replaced) for graph in self.graphs if graph.report is not None)

    @property
    def kept_layers(self) -> int:
        """Layers that PyTorch computes, of the graphs that were read."""
        return sum(len(graph.report.kept) for graph in self.graphs if graph.report is not None)

    def __str__(self) -> str:
        rows = [("kernels of ekc", str(self.replaced_graphs))]
        rows += [(f"PyTorch: {reason}", str(count)) for reason, count in self.kept_graphs.items()]
        layers = self.replaced_layers + self.kept_layers
        return format_table(
            ("computed by", "graphs"), rows, f"{self.replaced_layers} of {layers} layers are kernels"
        )


_GRAPHS: list[BackendGraph] = []


def counts() -> BackendCounts:
    """The graphs that the backend "ekc" of `torch.compile` was given in this process: how many have kernels,
    how many stay PyTorch's and why, and how many layers are kernels."""
    return BackendCounts(tuple(_GRAPHS))


def compile_graph(
    graph_module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one graph for `torch.compile(module, backend="ekc", options={"records": "tuning.db", "target":
    "a100"})`. Options are those of `ekc.torch.compile`. A graph without a record stays PyTorch's, and
    `ekc.torch.counts()` counts it. `mode` is that of `torch.compile`; it has no effect.

    Inference only: raises `InvalidInput` where a gradient is needed, and for options.
    """
    records, target, attention = _read_options(options)
    tensors = [x for x in example_inputs if isinstance(x, torch.Tensor)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise InvalidInput(
            'backend "ekc" is for inference, and an input or weight needs a gradient: call the module under '
            "torch.no_grad() or torch.inference_mode()"
        )

    def keep(reason: str, report: ReplacementReport | None = None) -> Callable[..., Any]:
        _GRAPHS.append(BackendGraph(report, reason))
        forward: Callable[..., Any] = graph_module.forward
        return forward

    if len(tensors) < len(example_inputs):
        return keep("open dimensions; torch.compile(..., dynamic=False) fixes shapes")
    wrapped = _FixedWeights(graph_module, tensors)
    try:
        read = read_module(wrapped, wrapped.example_inputs)
        full = build_model(read.graph)
    except InvalidInput as problem:
        return keep(str(problem))
    tuned = read_records([layer.op for layer in full.layers], records, target)
    replaced = replace_layers(wrapped, read, full, tuned, attention)
    if not replaced.operators:
        return keep(NO_KERNEL, replaced.ekc_report)
    _GRAPHS.append(BackendGraph(replaced.ekc_report))

    def build(inputs: Sequence[torch.Tensor]) -> CompiledModule:
        weights = _FixedWeights(graph_module, inputs)
        again = read_module(weights, weights.example_inputs)
        return replace_layers(weights, again, build_model(again.graph), tuned, attention)

    return _GraphCall(tuple(wrapped.weight_places), build, tensors, replaced)


def _read_options(options: Mapping[str, Any] | None) -> tuple[Any, str, str]:
    given = dict(options or {})
    for name in given:
        check_choice('option of backend "ekc"', name, OPTIONS)
    if "records" not in given:
        raise InvalidInput(
            'backend "ekc": no record file; write options={"records": "tuning.db", "target": "cuda:0"}'
        )
    return given["records"], given.get("target", "auto"), given.get("attention", "auto")


class _FixedWeights(torch.nn.Module):  # type: ignore[misc]
    """A graph of `torch.compile` as a module: weights, which it takes as inputs, are buffers."""

    def __init__(self, graph_module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.graph_module = graph_module
        names = [node.name for node in graph_module.graph.nodes if node.op == "placeholder"]
        self.weight_places = {
            place: name for place, (name, x) in enumerate(zip(names, inputs, strict=True)) if _is_weight(x)
        }
        for place, name in self.weight_places.items():
            self.register_buffer(name, inputs[place].detach())
        self.example_inputs = self.select_inputs(inputs)
        self.eval()

    def select_inputs(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The inputs that are no weights."""
        return tuple(x for place, x in enumerate(inputs) if place not in self.weight_places)

    def forward(self, *inputs: Any) -> Any:
        rest, count = iter(inputs), len(inputs) + len(self.weight_places)
        merged = [
            getattr(self, self.weight_places[place]) if place in self.weight_places else next(rest)
            for place in range(count)
        ]
        return self.graph_module(*merged)


def _is_weight(tensor: torch.Tensor) -> bool:
    """Whether an input of a graph is a parameter or buffer of a module."""
    return isinstance(tensor, torch.nn.Parameter) or hasattr(tensor, "_dynamo_static_input_type")


class _GraphCall:
    """Calls a compiled graph. PyTorch calls it with other weights too: of another layer of the same shape, or
    changed ones. Each set of weights gets its own module, as weights are folded."""

    def __init__(
        self,
        places: tuple[int, ...],
        build: Callable[[Sequence[torch.Tensor]], CompiledModule],
        inputs: Sequence[torch.Tensor],
        replaced: CompiledModule,
    ) -> None:
        self._places, self._build = places, build
        self._built: dict[tuple[int, ...], _BuiltModule] = {}
        self._add(inputs, replaced)

    def _add(self, inputs: Sequence[torch.Tensor], replaced: CompiledModule) -> _BuiltModule:
        weights = tuple(inputs[place] for place in self._places)
        found = _BuiltModule(weights, list_versions(weights), replaced)
        self._built[tuple(map(id, weights))] = found
        return found

    def __call__(self, *inputs: torch.Tensor) -> Any:
        weights = tuple(inputs[place] for place in self._places)
        found = self._built.get(tuple(map(id, weights)))
        if found is None or found.versions != list_versions(weights):
            found = self._add(inputs, self._build(inputs))
        rest = (x for place, x in enumerate(inputs) if place not in self._places)
        return found.replaced(*rest)


@dataclass(frozen=True, eq=False)
class _BuiltModule:
    """A compiled graph for one set of weights."""

    weights: tuple[torch.Tensor, ...]
    """Kept, so that no other tensor gets the identity of one."""
    versions: tuple[int, ...]
    replaced: CompiledModule


def register_backend() -> None:
    """Make "ekc" a name that `torch.compile` knows. An installed ekc is found by its entry point."""
    if not entry_points(group=ENTRY_POINT_GROUP, name=NAME):
        from torch._dynamo.backends.registry import register_backend as register

        register(compile_graph, name=NAME)
