"""The account of a compiled module: layers that are kernels, layers that PyTorch computes, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ekc.display import format_html_table
from ekc.ir.operator import Operator
from ekc.models.model import UncoveredNode
from ekc.runtime.kernel import Kernel
from ekc.tables import format_table

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
        groups: dict[str, list[LayerReplacement | UncoveredNode]] = {}
        for layer in self.kept:
            groups.setdefault(f"PyTorch: {layer.reason}", []).append(layer)
        for node in self.uncovered:
            groups.setdefault(f"PyTorch: {node.target}: {node.reason}", []).append(node)
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
