"""Quantities of the analysis: operations, and traffic of L2."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc.ir.analysis.analysis import analyse_program, quantities
from ekc.ir.hardware.memory import SECTOR_BYTES
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.operators import matmul, matvec
from ekc.ir.schedule.schedule import Schedule
from tests.ir.examples import tiled_matmul, two_launches
from tests.ir.tilings import TILES, bind_loops
from tests.search.helpers import legal, space


def operations(schedule: Schedule) -> float:
    return float(quantities(schedule.program, LaunchLimits())["total_operations"])


@pytest.mark.parametrize(
    ("body", "count"), [(lambda c: c * 0.5, 1), (lambda c: ex.relu(c + 1), 2), (ex.silu, 4), (ex.gelu, 5)]
)
def test_constants_of_an_epilogue_are_no_operations(body: Callable[[ex.Expr], ex.Expr], count: int) -> None:
    plain = o.matmul(8, 8, 8)
    op = plain.epilogue(body)
    more = operations(Schedule(op).cache_write("C").compute_inline("C")) - operations(
        Schedule(plain).cache_write("C")
    )
    assert (more, op.flops - plain.flops) == (64 * count, 64 * count)


def test_expression_that_is_index_and_value_counts_as_value() -> None:
    def shifted(share: bool) -> Operator:
        def body(A, i):  # type: ignore[no-untyped-def]
            x = i + 1
            return A[x] * (x if share else i + 1)

        return o.compute("shifted", axes={"i": 8}, inputs={"A": (9,)}, body=body)

    assert operations(Schedule(shifted(True))) == operations(Schedule(shifted(False))) == 16


N = 128


def _from_global(side: int) -> Schedule:
    """Blocks of side x side threads, an output element each, without shared memory."""
    s = Schedule(matmul(N, N, N)).split("i", (side,)).split("j", (side,))
    return bind_loops(s.reorder("i.0", "j.0", "i.1", "j.1", "k"), TILES).cache_write("C")


def _figure(schedule: Schedule, name: str) -> float:
    return float(analyse_program(schedule.program, LaunchLimits())[name][0])


def _sectors(figures: dict[str, np.ndarray]) -> np.ndarray:
    return figures["total_global_load_sectors"] + figures["total_global_store_sectors"]


@pytest.mark.parametrize("side", [8, 16, 32])
def test_l2_bytes_count_rows_and_columns_of_a_block_once(side: int) -> None:
    blocks, panel = (N // side) ** 2, 4 * side * N
    asked = SECTOR_BYTES * _sectors(analyse_program(_from_global(side).program, LaunchLimits()))[0]
    assert _figure(_from_global(side), "l2_bytes") == blocks * (2 * panel + 4 * side * side) < asked


def test_l2_bytes_of_shared_tiles_are_all_sectors() -> None:
    schedule = tiled_matmul(256, 256, 256)
    asked = SECTOR_BYTES * _sectors(analyse_program(schedule.program, LaunchLimits()))[0]
    assert _figure(schedule, "l2_bytes") == asked


def test_l2_bytes_count_every_stored_sector() -> None:
    """Threads of a block run down a column of C, so each store is a sector of its own."""
    down = Schedule(matmul(N, N, N)).split("i", (32,)).reorder("i.0", "j", "i.1", "k")
    down = bind_loops(down, {"i.0": "block.y", "j": "block.x", "i.1": "thread.x"}).cache_write("C")
    blocks, read = N // 32 * N, 4 * (32 * N + N)
    assert _figure(down, "total_global_store_sectors") == N * N
    assert _figure(down, "l2_bytes") == blocks * read + SECTOR_BYTES * N * N


def test_l2_bytes_of_an_atomic_sum_count_reads() -> None:
    """Four blocks add to each 32 rows of y; another launch zeroes it."""
    schedule = Schedule(matvec(N, N)).cache_write("y").atomic("y").split("k", (32,)).split("i", (32,))
    schedule = schedule.reorder("k.0", "i.0", "i.1", "k.1").bind("k.0", "block.y").bind("i.0", "block.x")
    schedule = schedule.bind("i.1", "thread.x")
    blocks, y = 16, 4 * 32
    cleared = 4 * N
    assert _figure(schedule, "l2_bytes") == blocks * (4 * (32 * 32 + 32) + 2 * y) + cleared


def test_l2_bytes_of_launches_add_up() -> None:
    """The first reads X and writes T, the second reads T and B and writes C."""
    x, t, b, c = 20 * 18, 20 * 18, 18 * 24, 20 * 24
    assert _figure(two_launches(), "l2_bytes") >= 4 * (x + t + t + b + c)


@pytest.mark.parametrize("name", ["matmul", "matvec", "conv stride 2", "fp16", "two computes", "softmax"])
def test_l2_bytes_are_at_most_all_sectors(name: str) -> None:
    figures = space(name).compute_quantities(legal(name, 200))
    most = SECTOR_BYTES * _sectors(figures)
    assert (figures["l2_bytes"] <= most * (1 + 1e-9)).all()
    assert (figures["l2_bytes"] > 0).all()
    assert (figures["l2_bytes"] < 0.9 * most).any()
