"""What the analysis says that blocks ask of L2: what one reads again is still in L1."""

from __future__ import annotations

import numpy as np
import pytest

from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.hardware.limits import Limits
from ekc.ir.hardware.memory import SECTOR_BYTES
from ekc.ir.operators import matmul, matvec
from ekc.ir.schedule.schedule import Schedule
from tests.ir.examples import tiled_matmul, two_launches
from tests.search.spaces import legal, space

N = 128


def _from_global(side: int) -> Schedule:
    """Blocks of side x side threads, each with a value of its own: nothing is kept in shared memory."""
    return (
        Schedule(matmul(N, N, N))
        .split("i", (side,))
        .split("j", (side,))
        .reorder("i.0", "j.0", "i.1", "j.1", "k")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("j.1", "thread.x")
        .cache_write("C")
    )


def _figure(schedule: Schedule, name: str) -> float:
    return float(analyse_program(schedule.program, Limits())[name][0])


def _sectors(figures: dict[str, np.ndarray]) -> np.ndarray:
    return figures["total_global_load_sectors"] + figures["total_global_store_sectors"]


@pytest.mark.parametrize("side", [8, 16, 32])
def test_a_block_asks_for_its_rows_and_columns_once(side: int) -> None:
    blocks, panel = (N // side) ** 2, 4 * side * N
    asked = SECTOR_BYTES * _sectors(analyse_program(_from_global(side).program, Limits()))[0]
    assert _figure(_from_global(side), "l2_bytes") == blocks * (2 * panel + 4 * side * side) < asked


def test_what_shared_memory_keeps_is_asked_for_once_anyway() -> None:
    schedule = tiled_matmul(256, 256, 256)
    asked = SECTOR_BYTES * _sectors(analyse_program(schedule.program, Limits()))[0]
    assert _figure(schedule, "l2_bytes") == asked


def test_what_is_written_passes_through_l1() -> None:
    """A row of threads down a column of C: each writes into a sector of its own, each of them whole."""
    down = (
        Schedule(matmul(N, N, N))
        .split("i", (32,))
        .reorder("i.0", "j", "i.1", "k")
        .bind("i.0", "block.y")
        .bind("j", "block.x")
        .bind("i.1", "thread.x")
        .cache_write("C")
    )
    blocks, read = N // 32 * N, 4 * (32 * N + N)
    assert _figure(down, "total_global_store_sectors") == N * N
    assert _figure(down, "l2_bytes") == blocks * read + SECTOR_BYTES * N * N


def test_l2_reads_what_an_atomic_changes() -> None:
    """Four blocks share the sum of each 32 rows of y; another launch clears it."""
    schedule = Schedule(matvec(N, N)).cache_write("y").atomic("y").split("k", (32,)).split("i", (32,))
    schedule = schedule.reorder("k.0", "i.0", "i.1", "k.1").bind("k.0", "block.y").bind("i.0", "block.x")
    schedule = schedule.bind("i.1", "thread.x")
    blocks, y = 16, 4 * 32
    cleared = 4 * N
    assert _figure(schedule, "l2_bytes") == blocks * (4 * (32 * 32 + 32) + 2 * y) + cleared


def test_launches_add_up() -> None:
    """The first reads X and writes T, the second reads T and B and writes C."""
    x, t, b, c = 20 * 18, 20 * 18, 18 * 24, 20 * 24
    assert _figure(two_launches(), "l2_bytes") >= 4 * (x + t + t + b + c)


@pytest.mark.parametrize("name", ["matmul", "matvec", "conv stride 2", "fp16", "two computes", "softmax"])
def test_no_more_than_all_sectors(name: str) -> None:
    figures = space(name).compute_quantities(legal(name, 200))
    most = SECTOR_BYTES * _sectors(figures)
    assert (figures["l2_bytes"] <= most * (1 + 1e-9)).all()
    assert (figures["l2_bytes"] > 0).all()
    assert (figures["l2_bytes"] < 0.9 * most).any()
