"""Matrix products on mma: schedules of the docs, and random ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ekc.ir.operators as o
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.operators import Choose
from tests.ir.tilings import bind_loops

INSTRUCTIONS = {
    "float16": ("mma.m16n8k16", 16), "bfloat16": ("mma.m16n8k16", 16),
    "tf32": ("mma.m16n8k8", 8), "int8": ("mma.m16n8k32", 32),
}  # fmt: skip
"""By element type: the instruction and its depth."""
ROW = {"float16": 8, "bfloat16": 8, "tf32": 4, "int8": 16}
"""Number of elements in 16 bytes, by element type."""


@dataclass(frozen=True)
class Cut:
    """Cut of a product: warps of a block, tiles of a warp, instructions along the depth, and copies of
    tiles."""

    warps: tuple[int, int] = (2, 2)
    tiles: tuple[int, int] = (2, 4)
    depth: int = 2
    stages: int = 2
    copy: str = "async"
    vector: int = 0
    """Elements that a copy moves at once; 0 for 16 bytes."""
    pad: int = 0
    swizzle: int = 1
    order: tuple[int, ...] = ()
    """Order of dimensions of both shared tiles."""
    fragments_at: str = "k.1"
    """Loop of the fragments; with "k.0" a warp has those of the full tile at once."""
    write: int = 2
    unroll: int = 1
    """Unroll factor of the loop over instructions along the depth."""


def tile_fragments(
    schedule: Schedule, rows: str, columns: str, cut: Cut, depth: tuple[str, int], loops: Sequence[str]
) -> Schedule:
    """Rows and columns in pieces for blocks, warps, lanes and registers as mma has them; `depth` is the loop
    along it and the elements of an instruction, `loops` are the reduction loops outside the instruction."""
    i, j = ([f"{axis}.{n}" for n in range(5)] for axis in (rows, columns))
    s = schedule.split(rows, (cut.warps[0], cut.tiles[0], 2, 8))
    s = s.split(columns, (cut.warps[1], cut.tiles[1], 4, 2)).split(depth[0], (cut.depth, depth[1]))
    s = s.reorder(i[0], j[0], i[1], j[1], i[4], j[3], *loops, i[2], j[2], i[3], j[4], f"{depth[0]}.2")
    s = bind_loops(s, {i[0]: "block.y", j[0]: "block.x", i[1]: "thread.y", j[1]: "thread.y"})
    return bind_loops(s, {i[4]: "thread.x", j[3]: "thread.x"})


def tensor_matmul(op: Operator, cut: Cut | None = None) -> Schedule:
    """A matmul operator on tensor cores."""
    cut = cut or Cut()
    dtype = op.inputs[0].dtype.name
    instruction, depth = INSTRUCTIONS[dtype]
    shared: dict[str, Any] = {"vector": cut.vector or ROW[dtype], "pad": cut.pad, "swizzle": cut.swizzle}
    schedule = tile_fragments(Schedule(op), "i", "j", cut, ("k", depth), ("k.0", "k.1"))
    schedule = schedule.cache_write("C", "register", vector=cut.write)
    for tensor in "AB":
        schedule = schedule.cache_read(tensor, "shared", at="k.0", order=cut.order, **shared)
    for tensor in "AB":
        schedule = schedule.cache_read(f"{tensor}.shared", "fragment", at=cut.fragments_at)
    if cut.stages > 1:
        schedule = schedule.pipeline("k.0", stages=cut.stages, copy=cut.copy)
    if cut.unroll > 1:
        schedule = schedule.unroll("k.1", cut.unroll)
    return schedule.tensorize("k.2", instruction)


def half_matmul(m: int = 128, n: int = 128, k: int = 64, **cut: Any) -> Schedule:
    """The example of the docs: float16, padded rows, asynchronous copies."""
    return tensor_matmul(o.matmul(m, n, k, dtype="float16"), Cut(pad=8, **cut))


def swizzled_matmul() -> Schedule:
    """The other way: swizzled tiles that pass through registers, instructions in depth written out."""
    op = o.matmul(128, 128, 128, dtype="float16")
    return tensor_matmul(op, Cut(swizzle=8, copy="register", unroll=2))


def draw_tensor(choose: Choose) -> Schedule:
    """A small product of any type, cut in any way; ragged where its tiles may be."""
    dtype = choose(tuple(INSTRUCTIONS))
    row = ROW[dtype]
    warps, tiles = (choose((1, 2)), choose((1, 2))), (choose((1, 2)), choose((1, 2, 3, 4)))
    depth = choose((1, 2))
    # An edge may cut a tile between vectors only; a copy of one small element cannot be asynchronous.
    vector = choose((row, row, 1))
    is_async = vector * (16 // row) >= 4
    stages, copy = choose(((1, "register"), (2, "register"), *(((2, "async"), (3, "async")) * 2 * is_async)))
    m, n, k = (choose((1, 2, 3)) * 16 + choose((0, 0, 8)) for _ in range(3))
    if vector == 1:
        m, n, k = (extent - choose((0, 1, 3)) for extent in (m, n, k))
    else:
        m, n, k = (max(extent // row, 1) * row for extent in (m, n, k))
    turned = {f"transpose_{x}": choose((False, True)) for x in "ab"}
    pad, swizzle = choose(((0, 1), (row, 1), (row, 1), (0, 8), (0, 4), (1, 1)))
    if vector > 1 and pad == 1:
        pad = row
    cut = Cut(
        warps, tiles, depth, stages, copy, vector, pad, swizzle,
        order=choose(((), (), (1, 0))) if vector == 1 and copy == "register" else (),
        fragments_at=choose(("k.1", "k.1", "k.0")),
        write=2 if n % 2 == 0 else 1,
        unroll=choose((1, depth)),
    )  # fmt: skip
    return tensor_matmul(o.matmul(m, n, k, dtype=dtype, **turned), cut)
