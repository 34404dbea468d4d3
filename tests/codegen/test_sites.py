"""Sectors and wavefronts of kernels simple enough to count by hand."""

from __future__ import annotations

import pytest

import ekc.ir.operators as o
from ekc.codegen.compiled import AccessSite
from ekc.codegen.generate import generate
from ekc.ir.schedule import Schedule
from tests.codegen import samples


def sites(schedule: Schedule) -> dict[tuple[str, str, str], AccessSite]:
    (launch,) = generate(schedule).launches
    return {(site.buffer, site.space, site.kind): site for site in launch.sites}


def transpose() -> Schedule:
    op = o.compute(
        "transpose", axes={"i": 64, "j": 64}, inputs={"X": (64, 64)}, body=lambda X, i, j: X[j, i], output="Y"
    )
    return (
        Schedule(op)
        .split("i", (32,))
        .split("j", (32,))
        .reorder("i.0", "j.0", "i.1", "j.1")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("j.1", "thread.x")
    )


def test_a_coalesced_copy_asks_for_4_sectors_a_request() -> None:
    found = sites(samples.copy(3, 64))
    for key in (("X", "global", "load"), ("Y", "global", "store")):
        assert found[key].sectors == 4
        assert found[key].bytes_per_lane == 4
        assert found[key].requests == 1


def test_vectors_of_4_ask_for_16_sectors_a_request() -> None:
    found = sites(samples.copy(3, 256, vector=4))
    for key in (("X", "global", "load"), ("Y", "global", "store")):
        assert found[key].sectors == 16
        assert found[key].bytes_per_lane == 16


def test_a_walk_down_a_column_asks_for_32_sectors_a_request() -> None:
    found = sites(transpose())
    assert found["X", "global", "load"].sectors == 32
    assert found["Y", "global", "store"].sectors == 4
    assert found["X", "global", "load"].requests == 32


@pytest.mark.parametrize(("pad", "waves"), [(0, 32), (1, 1), (4, 4)])
def test_a_transposing_stage_meets_its_banks(pad: int, waves: int) -> None:
    found = sites(transpose().cache_read("X", "shared", order=(1, 0), pad=pad))
    assert found["X", "global", "load"].sectors == 4
    assert found["X.shared", "shared", "store"].wavefronts == waves
    assert found["X.shared", "shared", "load"].wavefronts == 1


@pytest.mark.parametrize(("pad", "waves"), [(0, 32), (1, 1)])
def test_a_plain_stage_read_down_a_column_meets_its_banks(pad: int, waves: int) -> None:
    found = sites(transpose().cache_read("X", "shared", pad=pad))
    assert found["X.shared", "shared", "store"].wavefronts == 1
    assert found["X.shared", "shared", "load"].wavefronts == waves


def test_lanes_of_a_row_beyond_the_end_ask_for_nothing() -> None:
    found = sites(samples.copy(1, 8))
    assert found["X", "global", "load"].sectors == 1
