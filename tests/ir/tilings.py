"""Parts of schedules that many schedules have."""

from __future__ import annotations

from collections.abc import Mapping

from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule

Sizes = tuple[int, ...]
TILES = {"i.0": "block.y", "j.0": "block.x", "i.1": "thread.y", "j.1": "thread.x"}
"""Rows and columns in two pieces: a tile for each block."""


def bind_loops(schedule: Schedule, levels: Mapping[str, str]) -> Schedule:
    """Bind several loops, in order."""
    for loop, level in levels.items():
        schedule = schedule.bind(loop, level)
    return schedule


def tile_matmul(op: Operator, rows: Sizes, columns: Sizes, depth: int) -> Schedule:
    """A matmul with rows and columns over blocks, virtual threads, threads and registers (the last three are
    given), and its depth in tiles."""
    s = Schedule(op).split("i", rows).split("j", columns).split("k", (depth,))
    s = s.reorder("i.0", "j.0", "k.0", "i.2", "j.2", "k.1", "i.1", "i.3", "j.1", "j.3")
    levels = {"i.0": "block.y", "j.0": "block.x", "i.2": "thread.y", "j.2": "thread.x"}
    return bind_loops(s, levels | {"i.1": "vthread", "j.1": "vthread"})


def reduce_over_lanes(
    schedule: Schedule,
    output: str,
    row: str,
    column: str,
    lanes: Sizes = (8, 4),
    rows: int = 4,
    outer: str = "",
) -> Schedule:
    """Rows of a block, each reduced in registers, then across lanes; an outer loop is over blocks."""
    i, k = [f"{row}.{n}" for n in range(2)], [f"{column}.{n}" for n in range(3)]
    s = schedule.split(row, (rows,)).split(column, lanes)
    s = s.reorder(*[outer] * bool(outer), *i, k[1], k[0], k[2])
    levels = {i[0]: "block.x", i[1]: "thread.y", k[1]: "thread.x"}
    return bind_loops(s, {outer: "block.y"} | levels if outer else levels).cache_write(output)
