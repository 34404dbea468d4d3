"""Structures with `wgmma`: for which operators they exist, and that most genomes can be repaired."""

from __future__ import annotations

import numpy as np
import pytest

import ekc.ir.operators as o
from ekc import devices
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.operator import Operator
from ekc.search.cost_model import analytic
from ekc.search.sketches.multi_level_tiling import derive_structures
from ekc.search.space.space import Space

H200, A100 = devices.open("h200"), devices.open("a100")
HALF = {"dtype": "float16"}
NAMED: dict[str, tuple[Operator, tuple[str, ...]]] = {
    "stored order": (o.matmul(128, 128, 128, **HALF), ("warpgroup flying",)),
    "bfloat16, both transposed": (
        o.matmul(128, 128, 128, dtype="bfloat16", transpose_a=True, transpose_b=True), ("warpgroup flying",),
    ),
    "tf32": (o.matmul(128, 128, 128, dtype="tf32"), ()),
    "int8": (o.matmul(128, 128, 128, dtype="int8"), ()),
    "rows of an odd length": (o.matmul(128, 129, 128, **HALF), ()),
    "few rows": (o.matmul(32, 128, 128, **HALF), ()),
    "few columns": (o.matmul(128, 32, 128, **HALF), ()),
    "channels last": (
        o.conv2d(2, 64, 9, 9, out_channels=64, padding=1, layout="NHWC", **HALF), ("warpgroup view flying",),
    ),
    "channels first": (
        o.conv2d(2, 64, 9, 9, out_channels=64, padding=1, **HALF), ("packed X W, Y/warpgroup view flying",),
    ),
    "depth in the middle": (o.einsum("mkb,nk->bmn", (64, 64, 2), (64, 64), **HALF), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_wgmma_structures_exist_where_wgmma_fits(name: str) -> None:
    op, expected = NAMED[name]
    found = [s.name for s in derive_structures(op, H200.limits)]
    assert tuple(n for n in found if "warpgroup" in n) == expected
    others = tuple(n for n in found if "warpgroup" not in n)
    assert others == tuple(s.name for s in derive_structures(op, A100.limits))


def test_most_wgmma_genomes_are_repaired() -> None:
    space, rng = Space(o.matmul(1024, 1024, 1024, **HALF), H200.limits), np.random.default_rng(0)
    number = [s.name for s in space.structures].index("warpgroup flying")
    drawn = space.sample(rng, 2000)
    mine = drawn[np.flatnonzero(drawn.structure == number)]
    legal, _ = space.repair(rng, mine)
    assert len(legal) > 0.95 * len(mine) > 50


def test_prior_latency_prefers_wgmma_on_hopper() -> None:
    """By the prior, the best `wgmma` schedule is faster than the best `mma` schedule."""
    op = o.matmul(4096, 4096, 4096, **HALF)
    space, rng = Space(op, H200.limits), np.random.default_rng(0)
    legal, _ = space.repair(rng, space.sample(rng, 600))
    named = [space.get_structure_name(legal, row) for row in range(len(legal))]
    expected = analytic.predict_latency_s(space.compute_quantities(legal), H200.peaks)
    best = {n: float(expected[[x == n for x in named]].min()) for n in ("warpgroup flying", "tensor flying")}
    assert best["warpgroup flying"] < best["tensor flying"]
    assert H200.peaks.mma_share < 0.7 < A100.peaks.mma_share == 1.0


def test_analysis_counts_wgmma_work() -> None:
    """Every `wgmma` schedule multiplies all the tiles that it covers."""
    op = o.matmul(256, 256, 256, **HALF)
    space, rng = Space(op, H200.limits), np.random.default_rng(3)
    legal, _ = space.repair(rng, space.sample(rng, 400))
    figures = analyse_program(space.build_schedule(legal, 0).program, H200.limits)
    assert {"total_tensor_products", "total_group_products"} <= set(figures)
    for row in range(len(legal)):
        if "warpgroup" in space.get_structure_name(legal, row):
            found = analyse_program(space.build_schedule(legal, row).program, H200.limits)
            # 16 rows by 8 columns by 16 terms each; tiles may reach over the edges.
            assert found["total_group_products"][0] * 16 * 8 * 16 >= 256**3
            assert found["total_group_products"][0] * 16 * 8 * 16 == found["total_fma"][0]
            assert found["total_tensor_products"][0] == 0
