"""A compiled kernel as data: text, PTX, CUBIN, resources and launches. It cannot be called;
`ekc.devices.Kernel` can.

What one block touches of each global tensor: what a device model needs to know of the reuse in its L2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ekc.ir.lowering.memory_access import count_block_elements, find_global_reads, find_global_writes
from ekc.ir.lowering.nodes import LaunchTree

if TYPE_CHECKING:
    from ekc.ir.operator import TensorSpec


@dataclass(frozen=True)
class Resources:
    """What ptxas reports for one kernel."""

    registers: int
    shared_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int


@dataclass(frozen=True)
class Footprint:
    """What a launch touches of one global tensor; lets a device model reuse in its L2."""

    tensor: str
    kind: str
    """"load", "store" or "atomic"."""
    tensor_bytes: int
    block_bytes: float
    """Distinct bytes one block touches."""
    block_loops: tuple[tuple[int, bool], ...]
    """(extent, does the touched region depend on it) per block loop, fastest-running first."""


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
    """Their sizes, in the same order."""
    footprints: tuple[Footprint, ...] = ()


@dataclass(frozen=True)
class CompiledKernel:
    """CUDA text and all that NVRTC and ptxas made of it."""

    name: str
    cuda_source: str
    ptx: str
    cubin: bytes
    arch: str
    log: str
    nvrtc_version: str
    launches: tuple[Launch, ...]
    resources: tuple[Resources, ...]
    """One per launch, in order."""
    workspace_bytes: int
    flops: float
    """Useful floating-point operations of the operator (a multiply-add counts two)."""
    min_bytes: float
    """Compulsory traffic: every input read once, every output written once."""
    inputs: tuple[TensorSpec, ...] = ()
    """Shapes and types of the operator's inputs; a device that really runs the kernel fills them."""
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Facts that the compile job found out for a device by name, e.g. what a launch executes; may be
    empty."""


def list_footprints(kernel: LaunchTree) -> tuple[Footprint, ...]:
    """What one block touches of each global tensor, and over which block loops that changes."""
    nest = kernel.nest
    reads = [(tensor, "load", forms) for tensor, forms in find_global_reads(nest).items()]
    found = []
    how = "atomic" if nest.is_atomic else "store"
    for tensor, kind, forms in (*reads, (nest.output.name, how, find_global_writes(nest))):
        spec = kernel.tensors[tensor]
        block_bytes = min(float(count_block_elements(forms, nest)) * spec.dtype.bytes, float(spec.bytes))
        used = {name for read in forms for form in read for name in form.find_variables()}
        loops = tuple((int(x.extent), x.name in used) for x in kernel.block_loops)
        found.append(Footprint(tensor, kind, spec.bytes, block_bytes, loops))
    return tuple(found)
