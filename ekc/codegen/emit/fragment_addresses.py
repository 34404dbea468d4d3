"""Addresses of fragment rows, computed before the loop that loads the tiles.

The address of the row that a lane gives to `ldmatrix` is computed in the first copy of the tile. The loop
adds the offset of the copy in use, and constants that an instruction can hold. Written as one index, LLVM
computes the address again in every iteration, or builds it from bits that nothing can be added to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ekc.codegen.emit.mma import count_filled_fragments
from ekc.codegen.emit.names import CNames
from ekc.codegen.emit.strength_reduction import HoistedAddress, format_copy_offset, keep_address_in_register
from ekc.ir.affine import AffineForm
from ekc.ir.hardware.memory import find_swizzle_period
from ekc.ir.lowering.buffers import TensorAccess
from ekc.ir.lowering.nodes import FragmentNode, LoopNode


def hoist_fragment_rows(
    node: FragmentNode, row: TensorAccess, names: CNames, loops: Mapping[str, LoopNode], copy: str
) -> HoistedAddress | None:
    """Hoist the row addresses of a fragment; None where a loop that is not unrolled moves them not by a sum.

    `loops` are the loops between the tile loop and the use of the tile.

        &A_shared[k_0_copy][i_1 * 64 + i_2 * 16 + ..]   ->   A_fragment_address + k_0_copy * 4096 + i_2 * 1024
    """
    buffer = row.buffer
    assert buffer is not None
    steps = {a: int(c) for a, c in row.address.terms if isinstance(a, str) and a in loops}
    period = find_swizzle_period(int(buffer.swizzle), buffer.dtype.bytes)
    swizzle_loops = [name for name in loops if steps.get(name, 0) % period]
    joint = any(not isinstance(a, str) and a.find_variables() & loops.keys() for a, _ in row.address.terms)
    if joint or not all(_is_unrolled(loops[name]) for name in swizzle_loops):
        return None
    innermost, filled = {x.name for x in node.fragment_loops[-1:]}, count_filled_fragments(node)
    plain = {name: step for name, step in steps.items() if name not in swizzle_loops}
    (start,) = names.find_free_names([f"{names[node.stage.buffer.name]}_address"])
    first = replace(names, zero=names.zero | plain.keys())
    extents = [int(loops[name].loop.extent) for name in swizzle_loops]
    picked = start + "".join(f"[{names[name]}]" for name in swizzle_loops)
    further = names.format_linear(AffineForm(tuple(plain.items())).scale(buffer.dtype.bytes))
    text = {
        "declare": f"unsigned int {start}{''.join(f'[{n}]' for n in extents)};",
        "loops": [
            {"name": names[name], "extent": extent, "step": filled if name in innermost else 1}
            for name, extent in zip(swizzle_loops, extents, strict=True)
        ],
        "target": picked,
        "value": keep_address_in_register(first.format_cell(buffer, row.segment_coordinates, "0")),
        "what": names[node.stage.buffer.name],
    }
    place = f"{picked} + {format_copy_offset(buffer, copy)}"
    return HoistedAddress(text, place if further == "0" else f"{place} + {further}")


def collect_loops(nodes: Iterable[Any]) -> dict[str, LoopNode]:
    """The loops among nodes, by name, outer ones first."""
    return {n.loop.name: n for n in nodes if isinstance(n, LoopNode)}


def _is_unrolled(node: LoopNode) -> bool:
    return node.must_unroll or int(node.loop.unroll) >= int(node.loop.extent)
