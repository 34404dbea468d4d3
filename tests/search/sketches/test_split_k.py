"""Split-K: long sums whose outputs are too few to fill the device."""

from __future__ import annotations

import re

import pytest

import ekc
from ekc.ir.hardware.target import LaunchLimits
from ekc.search.sketches.multi_level_tiling import derive_structures

A100 = LaunchLimits(sms=108)


def parts(op: ekc.Operator, limits: LaunchLimits = A100) -> set[tuple[int, str]]:
    """(axis, number of parts) of each split among the structures."""
    found = (re.match(r"(\d+) parts of (\w+), ", s.name) for s in derive_structures(op, limits))
    return {(int(x[1]), x[2]) for x in found if x}


CASES = {
    "few tiles": (ekc.matmul(64, 64, 16384), {(128, "k"), (32, "k")}),
    "few rows": (ekc.matvec(64, 65536), {(128, "k"), (32, "k")}),
    "small maps": (ekc.conv2d(1, 512, 7, 7, out_channels=512, kernel=3, padding=1), {(16, "c"), (4, "c")}),
    "gradient of a weight": (ekc.einsum("nyxc,nyxd->cd", (64, 14, 14, 64), (64, 14, 14, 64)), {(32, "n")}),
    "one number": (ekc.einsum("a,a->", (2**20,), (2**20,)), {(8192, "a"), (2048, "a")}),
    "many tiles": (ekc.matmul(4096, 4096, 4096), set()),
    "many rows": (ekc.matvec(8192, 8192), set()),
    "short sums": (ekc.matmul(64, 64, 1024), set()),
    "a prime": (ekc.matmul(64, 64, 16381), set()),
    "no sum": (ekc.einsum("a,b->ab", (64,), (64,)), set()),
}


@pytest.mark.parametrize("name", CASES)
def test_splits_follow_from_the_expression(name: str) -> None:
    op, expected = CASES[name]
    assert parts(op) == expected


def test_larger_device_has_more_parts() -> None:
    op = ekc.matmul(256, 256, 16384)
    assert max(parts(op)) < max(parts(op, LaunchLimits(sms=132 * 4)))


def test_split_structures_have_the_tiles_of_the_unsplit_ones() -> None:
    found = derive_structures(ekc.matmul(64, 64, 16384, dtype="float16"), A100)
    unsplit = [s for s in found if " parts of " not in s.name]
    parted = [s for s in found if s.name.startswith("128 parts of k, C_parts/")]
    assert [s.name.partition("/")[2] for s in parted] == [s.name for s in unsplit]
    assert "tensor flying" in parted[0].name
    for a, b in zip(unsplit, parted, strict=True):
        names = [{d.name.removeprefix("128parts/") for d in s.decisions} for s in (a, b)]
        tiles = {name for name in names[0] if name.startswith("tile")}
        assert tiles <= names[1]
