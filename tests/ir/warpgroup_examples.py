"""Matrix products on wgmma: schedules of the docs, and random ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ekc.ir.operators as o
from ekc.ir.hardware.target import LaunchLimits, find_capabilities
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.operators import Choose
from tests.ir.tilings import bind_loops

ARCH = "sm_90a"
HOPPER = LaunchLimits(shared_bytes_per_block=find_capabilities(ARCH).shared_bytes, group_products=True)
INSTRUCTION = "wgmma.m64nNk16"


@dataclass(frozen=True)
class GroupCut:
    """Cut of a product: warpgroups of a block, tiles (rows, columns) of a warpgroup, strips of an
    instruction, and instructions along the depth."""

    groups: int = 2
    tiles: tuple[int, int] = (1, 1)
    strips: int = 16
    depth: int = 4
    stages: int = 3
    vector: int = 8
    write: int = 2


def group_matmul(op: Operator, cut: GroupCut | None = None) -> Schedule:
    """A matmul operator of float16 or bfloat16 on products of a warpgroup."""
    cut = cut or GroupCut()
    return untouched(op, cut).tensorize("k.2", INSTRUCTION)


def untouched(op: Operator, cut: GroupCut | None = None) -> Schedule:
    """`group_matmul` before tensorize: loops that any thread could run."""
    cut = cut or GroupCut()
    shared: dict[str, Any] = {"at": "k.0", "vector": cut.vector, "swizzle": 8, "panel": 64}
    schedule = (
        Schedule(op)
        .split("i", (cut.groups, cut.tiles[0], 4, 2, 8))
        .split("j", (cut.tiles[1], cut.strips, 4, 2))
        .split("k", (cut.depth, 16))
        .reorder(
            "i.0", "j.0", "i.1", "i.3", "i.5", "j.3", "k.0", "k.1", "i.2", "j.1", "j.2", "i.4", "j.4", "k.2"
        )
    )
    schedule = bind_group(schedule, "j.3").cache_write("C", vector=cut.write)
    schedule = schedule.cache_read("A", "shared", **shared).cache_read("B", "shared", **shared)
    return schedule.pipeline("k.0", stages=cut.stages, copy="async").unroll("k.1")


def bind_group(schedule: Schedule, lanes: str) -> Schedule:
    """Bind the pieces of rows and columns to blocks, warps and lanes as wgmma has them."""
    levels = {"i.0": "block.y", "j.0": "block.x", "i.1": "thread.y", "i.3": "thread.y", "i.5": "thread.x"}
    return bind_loops(schedule, levels | {lanes: "thread.x"})


def by_taps(
    op: Operator, cut: GroupCut, loops: Sequence[str], at: dict[str, str], fuse: tuple[str, ...] = ()
) -> Schedule:
    """A product with sums over taps and depth. `loops` are the reduction loops from outer to inner, `at`
    gives the loop that stages each factor, and `fuse` names two loops to fuse."""
    joint = "_".join(fuse)
    schedule = (
        Schedule(op)
        .split("i", (cut.groups, cut.tiles[0], 4, 2, 8))
        .split("j", (cut.strips, 4, 2))
        .split("k", (cut.depth, 16))
        .reorder("i.0", "j.0", "i.1", "i.3", "i.5", "j.2", *loops, "i.2", "j.1", "i.4", "j.3", "k.2")
    )
    schedule = schedule.fuse(*fuse) if joint else schedule
    schedule = bind_group(schedule, "j.2").cache_write("C", vector=cut.write)
    for factor, loop in at.items():
        schedule = schedule.cache_read(factor, "shared", at=loop, vector=cut.vector, swizzle=8, panel=64)
    for loop in dict.fromkeys(at.values()):
        schedule = schedule.pipeline(loop, stages=cut.stages, copy="async")
    return schedule.tensorize("k.2", INSTRUCTION)


def half_group_matmul() -> Schedule:
    """The example of the docs: float16, rows of A along the depth and rows of B across it."""
    return group_matmul(o.matmul(256, 256, 256, dtype="float16"))


def draw_group(choose: Choose) -> Schedule:
    """A random small product of either type, with factors stored in any way, and edges in tiles."""
    turned = {f"transpose_{x}": choose((False, True)) for x in "ab"}
    along = {"a": not turned["transpose_a"], "b": turned["transpose_b"]}
    # A tile has full lines: 64 elements of the depth, or 64 rows (columns).
    depth = choose((4, 8)) if any(along.values()) else choose((1, 2, 4))
    strips = choose((1, 4, 8, 13, 16, 32)) if along["b"] else choose((8, 16, 24, 32))
    groups, rows = choose((1, 2, 3)), choose((1, 2))
    columns = choose((1, 1, 2)) if strips < 16 else 1
    cut = GroupCut(groups, (rows, columns), strips, depth, choose((2, 3, 4)), choose((8, 8, 2)))
    m, n, k = (8 * choose(range(1, most)) for most in (24, 24, 16))
    return group_matmul(o.matmul(m, n, k, dtype=choose(("float16", "bfloat16")), **turned), cut)
