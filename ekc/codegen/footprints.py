"""What one block touches of each global tensor: what a device model needs to know of the reuse in its L2."""

from __future__ import annotations

from ekc.codegen.compiled import Footprint
from ekc.ir.lowering.memory_access import count_block_elements, find_global_reads, find_global_writes
from ekc.ir.lowering.nodes import LaunchTree


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
