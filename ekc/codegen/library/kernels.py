"""Data of a bundle: boards, compiled kernels with their figures, and the functions that select among them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ekc.codegen.compiled import CompiledKernel
from ekc.ir.hardware.target import parse_arch_number
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule

ROLES = ("latency", "energy", "both", "between")
"""Preference that a kernel serves: the fastest, the one of least energy, both, or a point between them."""


@dataclass(frozen=True)
class TargetBoard:
    """A device that figures are of, measured or simulated."""

    name: str
    arch: str
    """Architecture that its kernels are compiled for, such as "sm_90a"."""
    is_simulated: bool
    multiprocessors: int = 0
    """Multiprocessors of the device; 0 if that is not known, as of a real one in a record file."""

    @property
    def source(self) -> str:
        """Source of the figures: "measured" or "simulated"."""
        return "simulated" if self.is_simulated else "measured"

    @property
    def label(self) -> str:
        """Name for messages: "a100 (simulated)"."""
        return f"{self.name}{' (simulated)' if self.is_simulated else ''}"

    @property
    def capability(self) -> int:
        """Compute capability as 10 * major + minor."""
        return parse_arch_number(self.arch)

    @property
    def is_exact(self) -> bool:
        """Whether code for the architecture runs on its capability alone, as that for sm_90a."""
        return not self.arch[-1].isdigit()


@dataclass(frozen=True)
class KernelFigures:
    """Latency and energy of a kernel on a board, with their sources."""

    latency_s: float | None = None
    """Seconds of a call; None if it was not timed."""
    energy_j: float | None = None
    """Joules of a call; None if they were neither metered nor predicted."""
    is_metered: bool = False
    """Whether the joules were metered; otherwise they are a prediction of the energy model."""
    provenance: Mapping[str, str] = field(default_factory=dict)
    """Facts for the record and the comments, such as the conditions of the figures and the verdict of the
    check."""
    conditions: str = ""
    """Conditions of the figures where they are not those of the compiler and simulator here; else ""."""

    @property
    def energy_source(self) -> str:
        """Source of the joules: "metered", "predicted" or "unknown"."""
        return "unknown" if self.energy_j is None else "metered" if self.is_metered else "predicted"


@dataclass(frozen=True)
class BundleKernel:
    """A compiled kernel of one operator, with its figures on one board."""

    function: str
    """Name of the function that it was collected for; a part of its symbols."""
    op: Operator
    schedule: Schedule
    compiled: CompiledKernel
    board: TargetBoard
    figures: KernelFigures
    role: str = "both"
    """One of `ROLES`."""

    @property
    def arch(self) -> str:
        """Architecture that the kernel is compiled for."""
        return self.board.arch

    @property
    def symbol(self) -> str:
        """C name of its launcher; those of its kernels begin so."""
        return f"ekc_{self.compiled.name}"


@dataclass(frozen=True)
class BundleShape:
    """One operator of a function with its kernels, by board, then latency."""

    op: Operator
    kernels: tuple[BundleKernel, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """Extents of the axes of the first compute: no two shapes of a function have the same."""
        return list_extents(self.op)


@dataclass(frozen=True)
class BundleFunction:
    """A function of the library: operators that differ in extents alone, smallest extents first."""

    name: str
    signature: str
    """Text of the operator without its extents, by `describe_signature`."""
    shapes: tuple[BundleShape, ...]
    layers: tuple[str, ...] = ()
    """Names of the layers that it is for; none where it is named after its operator."""

    @property
    def types(self) -> str:
        """Element types of inputs and output: "float16, float16 -> float32"."""
        inputs, outputs = (", ".join(str(t.dtype) for t in ts) for ts in (self.op.inputs, self.op.outputs))
        return f"{inputs} -> {outputs}"

    @property
    def op(self) -> Operator:
        """The operator of the first shape: names and types are those of all."""
        return self.shapes[0].op

    @cached_property
    def id(self) -> int:
        """Number of the function, 64 bits. It depends on name and operator, not on the other functions: a
        program that was compiled with an earlier bundle calls the same function or gets an error."""
        digest = hashlib.sha256(f"{self.name} {self.signature}".encode()).digest()
        return int.from_bytes(digest[:8], "big")


@dataclass(frozen=True)
class Bundle:
    """All that a library is written from."""

    name: str
    version: str
    boards: tuple[TargetBoard, ...]
    """Boards in the order of preference: measured ones first, then as they were asked for."""
    functions: tuple[BundleFunction, ...]

    @cached_property
    def kernels(self) -> tuple[BundleKernel, ...]:
        """Rows of the table. Functions of one operator share them; two boards of one architecture may have
        figures of one launcher."""
        by_operator = {s.op.digest: s.kernels for f in self.functions for s in f.shapes}
        return tuple(k for kernels in by_operator.values() for k in kernels)

    @property
    def archs(self) -> tuple[str, ...]:
        """Architectures, lowest first."""
        return tuple(sorted({k.arch for k in self.kernels}, key=lambda a: (parse_arch_number(a), a)))


def list_extents(op: Operator) -> tuple[int, ...]:
    """List the extents of the axes of the first compute, reductions last."""
    return tuple(axis.extent for axis in op.computes[0].axes)


_WORKSPACE_ALIGNMENT_BYTES = 256
"""Bytes between the starts of workspace tensors, as cudaMalloc gives."""


def lay_out_workspace(op: Operator, compiled: CompiledKernel) -> tuple[tuple[str, ...], dict[str, int], int]:
    """Lay out the workspace of a kernel: the tensors that its launches use, the offset of each intermediate
    one in bytes, and the bytes of all. `op`: the operator of the program, with the tensors that steps of the
    schedule add, such as parts of a sum."""
    offsets, total = {}, 0
    used = dict.fromkeys(a for launch in compiled.launches for a in launch.arguments)
    given = {t.name for t in (*op.inputs, *op.outputs)}
    for name in used:
        if name not in given:
            offsets[name] = total
            size = op.tensors[name].bytes
            total += -(-size // _WORKSPACE_ALIGNMENT_BYTES) * _WORKSPACE_ALIGNMENT_BYTES
    return tuple(used), offsets, total
