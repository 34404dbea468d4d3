"""A compiled kernel as data: text, PTX, CUBIN, resources, launches, and the footprint of a block in each
tensor.

It cannot be called; `ekc.runtime.Kernel` can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # NVRTC alone must load without NumPy.
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


@dataclass(frozen=True)
class Launch:
    """One `__global__` function and how to start it."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    """Dynamic shared memory; static shared memory is in `Resources`."""
    arguments: tuple[str, ...]
    """Tensor names in parameter order, device pointers all."""
    argument_bytes: tuple[int, ...]
    """Bytes of each of the `arguments`."""
    footprints: tuple[Footprint, ...] = ()


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
    """Facts that the compile job found out for a device by name, e.g. what a launch executes; may be
    empty."""
