"""A module whose covered layers are kernels: for inference, at the shapes of its example inputs; and the
report of what was replaced."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ekc.argument_checks import format_value
from ekc.display import format_html_table, format_line
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.models.graph import Value
from ekc.models.model import FusedGraph, LayerCall, Model, UncoveredNode
from ekc.runtime.execute import EXECUTED_BY
from ekc.runtime.kernel import Kernel
from ekc.tables import count_nouns, format_table, group_pairs
from ekc.torch.graph_module import build_graph_module
from ekc.torch.module_graph import CallStructure, list_versions
from ekc.torch.node_functions import find_torch_dtype

KERNELS = "kernels of ekc"
_HEADERS = ("computed by", "calls", "% of operations", "% of bytes")


@dataclass(frozen=True)
class LayerReplacement:
    """One call of a layer: the kernel that computes it, or why PyTorch does."""

    name: str
    op: Operator
    flops: float
    bytes: int
    kernel: Kernel | None = None
    reason: str = ""
    """Why there is no kernel; "" where there is one."""


@dataclass(frozen=True)
class ReplacementReport:
    """The account of what computes each part of a module. Shares are from 0 to 1, of one call."""

    device: str
    """Label of the device that the kernels were tuned for."""
    layers: tuple[LayerReplacement, ...]
    uncovered: tuple[UncoveredNode, ...] = ()
    """Nodes that no layer covers; PyTorch computes them."""
    notes: tuple[str, ...] = ()

    @property
    def replaced(self) -> tuple[LayerReplacement, ...]:
        """Calls of layers that are kernels."""
        return tuple(layer for layer in self.layers if layer.kernel is not None)

    @property
    def kept(self) -> tuple[LayerReplacement, ...]:
        """Calls of layers that PyTorch computes."""
        return tuple(layer for layer in self.layers if layer.kernel is None)

    @property
    def replaced_flops(self) -> float:
        """Share of the arithmetic operations that kernels compute."""
        return _share(self.replaced, (*self.layers, *self.uncovered), "flops")

    @property
    def replaced_bytes(self) -> float:
        """Share of the bytes that kernels read and write."""
        return _share(self.replaced, (*self.layers, *self.uncovered), "bytes")

    def __str__(self) -> str:
        return "\n".join([format_table(_HEADERS, self._list_rows(), self.title), *self.notes])

    def _repr_html_(self) -> str:
        return format_html_table(_HEADERS, self._list_rows(), self.title, " ".join(self.notes))

    @property
    def title(self) -> str:
        """The counts in one line."""
        return f"{len(self.replaced)} of {len(self.layers)} layers are kernels, tuned for {self.device}"

    def _list_rows(self) -> list[tuple[str, ...]]:
        """Rows: the kernels, then PyTorch by reason, the largest share of the operations first."""
        every: tuple[_Part, ...] = (*self.layers, *self.uncovered)
        kept: list[tuple[str, _Part]] = [(layer.reason, layer) for layer in self.kept]
        nodes = [(f"{node.target}: {node.reason}", node) for node in self.uncovered]
        groups = group_pairs((f"PyTorch: {reason}", part) for reason, part in (*kept, *nodes))
        ordered = sorted(groups.items(), key=lambda item: -_sum(item[1], "flops"))
        return [_format_row(KERNELS, self.replaced, every)] + [
            _format_row(title, parts, every) for title, parts in ordered
        ]


_Part = LayerReplacement | UncoveredNode


def _format_row(title: str, parts: Sequence[_Part], every: Sequence[_Part]) -> tuple[str, ...]:
    calls = sum(part.count if isinstance(part, UncoveredNode) else 1 for part in parts)
    flops, size = (f"{100 * _share(parts, every, unit):.1f}" for unit in ("flops", "bytes"))
    is_known = all(part.knows_flops for part in parts if isinstance(part, UncoveredNode))
    return (title, str(calls), flops if is_known else "unknown", size)


def _sum(parts: Iterable[_Part], unit: str) -> float:
    return float(sum(getattr(part, unit) for part in parts))


def _share(parts: Iterable[_Part], every: Iterable[_Part], unit: str) -> float:
    total = _sum(every, unit)
    return _sum(parts, unit) / total if total else 0.0


class CompiledModule(torch.nn.Module):  # type: ignore[misc]
    """A module in which kernels of ekc compute the covered layers, and PyTorch the rest.

    Inference only: a call that needs a gradient is refused, and so is `train()`. Shapes and types are those
    of the example inputs. `graph_module` is the module of `torch.fx` that runs; its `code` is readable.
    """

    def __init__(
        self,
        fused: FusedGraph,
        constants: dict[str, torch.Tensor],
        operators: Mapping[str, Any],
        structure: CallStructure,
        report: ReplacementReport,
        weights: Mapping[str, torch.Tensor],
    ) -> None:
        super().__init__()
        self.training = False
        self.graph_module = build_graph_module(fused, operators, constants)
        self.ekc_report = report
        self.fused, self.constants, self.operators = fused, constants, operators
        self._structure = structure
        # The module's weights may be freed with the module, as far as they are not shared.
        self._weights = {name: weakref.ref(x) for name, x in weights.items()}
        self._versions = dict(zip(weights, list_versions(weights.values()), strict=True))
        self._has_warned = not operators

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the module for inputs of the shapes and types that it was compiled for.

        Raises `InvalidInput` for other shapes or types, for an input that needs a gradient, and where weights
        of the original module were written to since.
        """
        tensors = self.flatten(args, kwargs)
        if not torch.compiler.is_compiling():
            self._check_weights()
        self._warn_on_cpu(tensors)
        with torch.no_grad():
            return self._structure.unflatten(self.graph_module(*tensors))

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors of a call, in the order of the graph's inputs. Raises `InvalidInput` as a call."""
        tensors = self._structure.flatten(args, kwargs)
        values = self.fused.graph.values
        for name, tensor in zip(self.fused.graph.inputs, tensors, strict=True):
            _check_input(values[name], tensor)
        return tensors

    def _check_weights(self) -> None:
        """Refuse a call after a change of the module's weights, some of which were folded or copied."""
        for name, reference in self._weights.items():
            tensor = reference()
            if tensor is not None and list_versions((tensor,)) != (self._versions[name],):
                raise InvalidInput(
                    f"{name} was changed after ekc.torch.compile, which folds weights; compile again"
                )

    def _warn_on_cpu(self, tensors: Sequence[torch.Tensor]) -> None:
        """Warn once that the CPU computes the kernels."""
        if self._has_warned or any(x.device.type != "cpu" for x in tensors):
            return
        self._has_warned = True
        warnings.warn(
            f"ekc.torch: {count_nouns(len(self.operators), 'kernel')} of this module are computed by "
            f"{EXECUTED_BY}, as its tensors are on the CPU; that shows the result, not the speed",
            stacklevel=3,
        )

    def train(self, mode: bool = True) -> CompiledModule:
        """Refuse training: the kernels have no gradient. `eval()` changes nothing."""
        if mode:
            raise InvalidInput("a module of ekc.torch.compile is for inference; train the original module")
        super().train(False)
        return self

    def __repr__(self) -> str:
        return format_line(self, self.ekc_report.title)

    def __str__(self) -> str:
        return str(self.ekc_report)

    def _repr_html_(self) -> str:
        return self.ekc_report._repr_html_()


def _check_input(value: Value, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise InvalidInput(f"{value.name} is {format_value(tensor)}, needed a tensor")
    if tuple(tensor.shape) != value.shape:
        raise InvalidInput(
            f"{value.name} has shape {tuple(tensor.shape)}, compiled for {value.shape}; "
            "compile again with example_inputs of that shape"
        )
    if tensor.dtype != find_torch_dtype(value.dtype.name):
        raise InvalidInput(
            f"{value.name} is {tensor.dtype}, compiled for {find_torch_dtype(value.dtype.name)}"
        )
    if tensor.requires_grad and torch.is_grad_enabled():
        raise InvalidInput(
            f"{value.name} requires a gradient, and the kernels have none: call it under torch.no_grad(), "
            "or use the original module"
        )


def get_fused(model: Model) -> FusedGraph:
    """The fused graph of a model. Raises `InvalidInput` for a model of a layer file, which has none."""
    if model.fused is None:
        raise InvalidInput(f"{model.name}: a model of a layer file has no graph; read the module")
    return model.fused


def list_calls(fused: FusedGraph) -> list[LayerCall]:
    """Calls of layers, in order."""
    return [step for step in fused.steps if isinstance(step, LayerCall)]
