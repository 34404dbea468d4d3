"""Kernels of one operator that compile fast and differ where it is known: tile, staging, order of threads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import ekc
from ekc import devices
from ekc.codegen.generate import compile_schedule
from ekc.devices.recording import RecordingWriter
from ekc.ir.analysis.analysis import analyse_program

OP = ekc.matmul(256, 256, 256)
TILES = ((16, 16), (8, 32), (32, 8), (32, 32), (8, 8), (4, 64))
Name = tuple[int, int, int, bool, bool]
"""Rows and columns of a block, depth of a tile, whether both inputs are staged, whether neighbouring threads
read neighbouring rows (not coalesced, and with bank conflicts where staged) instead of columns."""


def kernels() -> dict[Name, ekc.Schedule]:
    """By name."""
    return {name: _schedule(*name) for name in _names()}


def _names() -> Iterator[Name]:
    for (rows, columns), staged, rowwise in itertools.product(TILES, (False, True), (False, True)):
        for depth in (8, 32) if staged else (16,):
            yield rows, columns, depth, staged, rowwise


def _schedule(rows: int, columns: int, depth: int, staged: bool, rowwise: bool) -> ekc.Schedule:
    tiled = (
        ekc.Schedule(OP)
        .split("i", (rows,))
        .split("j", (columns,))
        .split("k", (depth,))
        .reorder("i.0", "j.0", "i.1", "j.1", "k.0", "k.1")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.1", "thread.x" if rowwise else "thread.y")
        .bind("j.1", "thread.y" if rowwise else "thread.x")
        .cache_write("C")
    )
    if not staged:
        return tiled
    return tiled.cache_read("A", "shared", at="k.0").cache_read("B", "shared", at="k.0")


def record(path: Path, target: str) -> Path:
    """All of them, compiled, timed and metered on a device."""
    device = devices.open(target)
    with RecordingWriter(path, device) as writer:
        for schedule in kernels().values():
            kernel = compile_schedule(schedule, device.arch, device.limits)
            writer.add_schedule(
                schedule, "made by hand", analyse_program(schedule.program, device.limits), kernel
            )
            writer.add_timing(schedule, device.time(kernel))
            writer.add_metering(schedule, device.meter(kernel))
    return path
