"""Blocks in groups of rows, for reuse in L2, by split, reorder and bind: seen by all models."""

from __future__ import annotations

import pytest

import ekc.ir.operators as o
from ekc.codegen.footprints import list_footprints
from ekc.devices.simulated import memory_traffic
from ekc.devices.simulated.specs import A100
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.checks import check_tree


def product(n: int, group: int, tile: tuple[int, int] = (16, 4)) -> Schedule:
    """blockIdx.x runs down a group of block rows, then to the next column, then to the next group."""
    s = Schedule(o.matmul(n, n, n)).split("i", tile).split("j", tile).split("k", (8,))
    rows = ["i.0"]
    if group > 1:
        s, rows = s.split("i.0", (group,)), ["i.0.0", "i.0.1"]
    blocks = [rows[0], "j.0", *rows[1:]]
    s = s.reorder(*blocks, "i.1", "j.1", "k.0", "k.1", "i.2", "j.2")
    for loop in blocks:
        s = s.bind(loop, "block.x")
    s = s.bind("i.1", "thread.x").bind("j.1", "thread.x").cache_write("C")
    return s.cache_read("A", "shared", at="k.0").cache_read("B", "shared", at="k.0")


@pytest.mark.parametrize(("n", "group"), [(32, 2), (45, 2), (50, 3)])
def test_grouped_grid_computes_the_same(n: int, group: int) -> None:
    check_tree(product(n, group, (4, 2)))


def test_groups_fetch_less_from_dram() -> None:
    fetched, foretold = {}, {}
    for group in (1, 16):
        schedule = product(8192, group)
        (kernel,) = derive_launches(schedule.program)
        fetched[group] = sum(
            memory_traffic.compute_dram_bytes(list_footprints(kernel), 4 * A100.sms, A100.l2_bytes)
        )
        foretold[group] = float(analyse_program(schedule.program, A100.limits())["dram_bytes"][0])
    assert fetched[16] < 0.6 * fetched[1]
    assert foretold[16] < 0.6 * foretold[1]
