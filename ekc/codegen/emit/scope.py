"""The text of one node as data, and what all kinds of nodes need for it: names, reads, loops over a tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ekc.codegen.emit.names import CNames
from ekc.codegen.emit.strength_reduction import uses_pointer_increments
from ekc.codegen.emit.types import Arithmetic, format_conversion, format_zero
from ekc.ir.affine import AffineForm, find_atom_variables
from ekc.ir.compute import Compute
from ekc.ir.dtypes import INT8, INT32, DType, find_read_type
from ekc.ir.expr import Load
from ekc.ir.lowering.buffers import TensorAccess
from ekc.ir.lowering.nodes import LaunchTree, LoopNode
from ekc.ir.lowering.regions import Region


@dataclass(frozen=True)
class NodeText:
    """One node of the tree for the templates: its kind, and fields that are mostly C text."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    body: tuple[NodeText, ...] = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass
class Scope:
    """State that the texts of one kernel share while they are built."""

    kernel: LaunchTree
    names: CNames
    thread_count: int
    uses_pointer_increments: bool
    copy_indices: dict[str, str] = field(default_factory=dict)
    """Index of the copy in use, in C, by buffer name."""
    fragment_rows: dict[str, str] = field(default_factory=dict)
    """C text of the address of a lane's rows, by buffer of a fragment, where it is computed before a loop."""
    preamble: list[dict[str, Any]] = field(default_factory=list)
    """Values of copies that no loop changes, computed before all loops."""

    @classmethod
    def for_kernel(cls, kernel: LaunchTree) -> Scope:
        """The scope of a kernel before any text is built."""
        names, increments = CNames.for_kernel(kernel), uses_pointer_increments(kernel)
        return cls(kernel, names, int(kernel.thread_count), increments)

    def format_read(self, access: TensorAccess, acc: DType, names: CNames) -> str:
        """C text of a value read in the body, in the type of the arithmetic; 0 outside the tensor."""
        kind = find_read_type(access.dtype, acc)
        text = self.format_widened(self.format_access(access, names), access, kind)
        guard = names.format_condition(access.guards)
        return f"({guard} ? {text} : {format_zero(kind)})" if guard else text

    def format_widened(self, value: str, access: TensorAccess, target: DType) -> str:
        """C text of a value of an access in another type; an int8 in steps of two bytes by `widen_int8`."""
        if access.dtype is INT8 and target is INT32 and self._is_unrolled_by_two_bytes(access):
            return f"widen_int8({value})"
        return format_conversion(value, access.dtype, target)

    def _is_unrolled_by_two_bytes(self, access: TensorAccess) -> bool:
        """Whether an unrolled loop reads every second int8, where NVRTC 13.5 makes wrong dot products.

        B[k][2] by k: bytes 0 and 2 of one word, which `dp2a` then takes as 16 bits with the bytes between.
        """
        return any(
            abs(int(step)) == 2 and not self._rolled_loops.issuperset(find_atom_variables(atom))
            for atom, step in access.address.terms
        )

    @cached_property
    def _rolled_loops(self) -> frozenset[str]:
        """Loops of the kernel whose variable is not a constant after unrolling."""
        nodes = [n for n in self.kernel.nodes if isinstance(n, LoopNode)]
        unrolled = {n.loop.name for n in nodes if n.must_unroll or int(n.loop.unroll) > 1}
        return frozenset(x.name for x in self.kernel.nest.loops) - unrolled

    def format_access(self, access: TensorAccess, names: CNames) -> str:
        """C text of the element that is read or written: of a buffer (in its copy in use), or of a tensor."""
        if access.buffer is None:
            return names.format_element(access)
        copy = self.copy_indices.get(access.buffer.name, "")
        return names.format_cell(access.buffer, access.segment_coordinates, copy)

    def make_arithmetic(self, compute: Compute) -> Arithmetic:
        """The arithmetic of a compute of the launch."""
        return Arithmetic.for_compute(compute, self.kernel.tensors)

    def format_body(
        self,
        compute: Compute,
        axes: Mapping[str, AffineForm],
        reads: Mapping[Load, TensorAccess],
        names: CNames,
    ) -> str:
        """C text of a compute's body at some axes, in the type of its accumulator."""
        return names.format_value(
            compute.body,
            self.make_arithmetic(compute),
            axes,
            lambda x: self.format_read(reads[x], compute.acc_dtype, names),
        )

    def make_tile_loops(
        self, region: Region, segment: int | None, vector: int
    ) -> tuple[CNames, list[dict[str, Any]]]:
        """Names inside the loops over a thread's tile, and these loops but those of one iteration."""
        steps = [vector if i == segment else 1 for i in range(len(region.segments))]
        once = frozenset(f"#{i}" for i, s in enumerate(region.segments) if int(s.extent) == steps[i])
        names = self.names.for_region(region, self.names.name_thread_coordinates(region), once)
        loops = [
            {"name": names[f"#{i}"], "extent": int(s.extent), "step": steps[i]}
            for i, s in enumerate(region.segments)
            if f"#{i}" not in once
        ]
        return names, loops
