"""What all kinds of views need: names, how elements are read, the loops over a tile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ekc.codegen.names import Names
from ekc.codegen.types import converted, zero
from ekc.codegen.walks import walks
from ekc.ir.access import Access
from ekc.ir.dtypes import DType, find_read_type
from ekc.ir.nodes import Kernel
from ekc.ir.region import Region


@dataclass
class Scope:
    """What the views of one kernel share while they are made."""

    kernel: Kernel
    names: Names
    threads: int
    walks: bool
    parity: dict[str, str] = field(default_factory=dict)
    """By buffer: which of its copies is used, as an index."""
    rows: dict[str, str] = field(default_factory=dict)
    """Where a lane's rows of a fragment lie, where that was worked out before."""
    early: list[dict[str, Any]] = field(default_factory=list)
    """What tells of copies that walk and no loop changes."""

    @classmethod
    def of(cls, kernel: Kernel) -> Scope:
        """Of a kernel, before any view is made."""
        return cls(kernel, Names.of(kernel), int(kernel.threads), walks(kernel))

    def read(self, access: Access, acc: DType, names: Names) -> str:
        """A value read in the body, in the type of the arithmetic, 0 outside the tensor."""
        kind = find_read_type(access.dtype, acc)
        text = converted(self.copied(access, names), access.dtype, kind)
        guard = names.condition(access.guards)
        return f"({guard} ? {text} : {zero(kind)})" if guard else text

    def copied(self, access: Access, names: Names) -> str:
        """The place that is read or written: of a buffer, in the copy in use, or of a tensor."""
        if access.buffer is None:
            return names.element(access)
        return names.cell(access.buffer, access.cell, self.parity.get(access.buffer.name, ""))

    def tile_loops(
        self, region: Region, segment: int | None, vector: int
    ) -> tuple[Names, list[dict[str, Any]]]:
        """The loops over a thread's tile, and the names inside; loops of one round are left out."""
        steps = [vector if i == segment else 1 for i in range(len(region.segments))]
        once = frozenset(f"#{i}" for i, s in enumerate(region.segments) if int(s.extent) == steps[i])
        names = self.names.within(region, self.names.own_coordinates(region), once)
        loops = [
            {"name": names[f"#{i}"], "extent": int(s.extent), "step": steps[i]}
            for i, s in enumerate(region.segments)
            if f"#{i}" not in once
        ]
        return names, loops
