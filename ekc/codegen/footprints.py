"""What one block touches of each global tensor: what a device model needs to know of the reuse in its L2."""

from __future__ import annotations

from ekc.codegen.compiled import Footprint
from ekc.ir.footprint import block_elements, global_reads, global_writes
from ekc.ir.nodes import Kernel


def footprints(kernel: Kernel) -> tuple[Footprint, ...]:
    """What one block touches of each global tensor, and over which block loops that changes."""
    nest = kernel.nest
    reads = [(tensor, "load", forms) for tensor, forms in global_reads(nest).items()]
    found = []
    how = "atomic" if nest.atomic else "store"
    for tensor, kind, forms in (*reads, (nest.output.name, how, global_writes(nest))):
        spec = kernel.tensors[tensor]
        block_bytes = min(float(block_elements(forms, nest)) * spec.dtype.bytes, float(spec.bytes))
        used = {name for read in forms for form in read for name in form.variables()}
        loops = tuple((int(x.extent), x.name in used) for x in kernel.block_loops)
        found.append(Footprint(tensor, kind, spec.bytes, block_bytes, loops))
    return tuple(found)
