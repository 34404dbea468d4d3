"""What the templates print: one small record of C text per node of the tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class NodeView:
    """One node for the templates: its kind and the C text it needs."""

    kind: str
    text: dict[str, Any] = field(default_factory=dict)
    body: tuple[NodeView, ...] = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self.text[name]
        except KeyError:
            raise AttributeError(name) from None
