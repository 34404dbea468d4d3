"""A compiled kernel as data: text, PTX, CUBIN, resources, launches, and the footprint of a block in each
tensor.

It cannot be called; `ekc.runtime.Kernel` can.

Identity of a compiled kernel: a digest of its text, or of text and machine code.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ekc.display import format_line, shorten

if TYPE_CHECKING:
    from ekc.ir.compute import TensorSpec


@dataclass(frozen=True)
class Resources:
    """Resources of one kernel, as ptxas reports them."""

    registers: int
    shared_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int


@dataclass(frozen=True)
class Footprint:
    """The part of a global tensor that one block accesses, from which a device model derives reuse in L2."""

    tensor: str
    kind: str
    """Kind of access: "load", "store" or "atomic"."""
    tensor_bytes: int
    block_bytes: float
    """Distinct bytes that one block accesses."""
    block_loops: tuple[tuple[int, bool], ...]
    """(extent, whether the accessed region depends on the loop) of each block loop, fastest first."""
    block_sectors: float = 0.0
    """Distinct sectors of 32 bytes that one block accesses; 0 where only the bytes are known."""
    block_pairs: float = 0.0
    """Distinct pairs of sectors, 64 bytes, that one block accesses; 0 likewise."""


@dataclass(frozen=True)
class Launch:
    """One `__global__` function and how to start it."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    """Dynamic shared memory; static shared memory is in `Resources`."""
    arguments: tuple[str, ...]
    """Names of the parameters in their order: tensors, as device pointers, and the `scalars`."""
    argument_bytes: tuple[int, ...]
    """Bytes of each of the `arguments`; 0 for a number."""
    footprints: tuple[Footprint, ...] = ()
    scalars: tuple[tuple[str, int | float], ...] = ()
    """Name and value of each argument that is a number: in foreign kernels only."""

    def __repr__(self) -> str:
        return format_line(self, f"{shorten(self.name)}, grid {self.grid}, block {self.block}")


@dataclass(frozen=True)
class CompiledKernel:
    """CUDA text with the output of NVRTC and ptxas."""

    name: str
    cuda_source: str
    ptx: str
    cubin: bytes
    arch: str
    log: str
    nvrtc_version: str
    launches: tuple[Launch, ...]
    resources: tuple[Resources, ...]
    """Resources of each launch, in order."""
    workspace_bytes: int
    flops: float
    """Useful floating-point operations of the operator (a multiply-add counts two)."""
    min_bytes: float
    """Compulsory traffic: every input read once, every output written once."""
    inputs: tuple[TensorSpec, ...] = ()
    """Shapes and types of the operator's inputs; a device that executes the kernel allocates them."""
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Facts that the compile job found out for a device, by name, such as what a launch executes."""

    def __repr__(self) -> str:
        registers = ", ".join(str(one.registers) for one in self.resources)
        launches = ", ".join(shorten(one.name) for one in self.launches)
        return format_line(self, f"{shorten(self.name)} for {self.arch}: {launches}; registers {registers}")


_LEADING_COMMENTS = re.compile(r"\A(?:\s+|//[^\n]*(?:\n|\Z)|/\*.*?\*/)*", re.DOTALL)


def digest_kernel(kernel: CompiledKernel) -> str:
    """SHA-256 of the CUDA text without its leading comments, or of the cubin if there is no more text."""
    return _hash_sha256(_strip_comments(kernel.cuda_source) or kernel.cubin)


def identify_kernel(kernel: CompiledKernel) -> str:
    """The digest and that of the machine code, because one text is compiled for several GPUs. Data about a
    compiled kernel are kept by this key; random draws for it are seeded by the text alone."""
    return f"{digest_kernel(kernel)} {_hash_sha256(kernel.cubin)}"


def digest_cuda_source(cuda_source: str) -> str:
    """Digest of the kernel that a CUDA text compiles to; the text has more than comments."""
    return _hash_sha256(_strip_comments(cuda_source))


def _strip_comments(cuda_source: str) -> bytes:
    return _LEADING_COMMENTS.sub("", cuda_source, count=1).encode()


def _hash_sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
