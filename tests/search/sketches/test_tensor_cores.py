"""Structures with `mma` and `wgmma`: their operators, legality after repair, right results."""

from __future__ import annotations

import numpy as np
import pytest

import ekc.ir.operators as o
from ekc import devices
from ekc.codegen.generate import generate
from ekc.devices.simulated import memory_traffic
from ekc.ir import expr as ex
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.search.sketches.multi_level_tiling import derive_structures
from ekc.search.space.space import Space
from tests.emulator.generated import run
from tests.search.helpers import check_quantities, sample_legal

A100, TURING = devices.open("a100").limits, devices.open("rtx2080ti").limits
HALF = {"dtype": "float16"}
DRAWN: dict[str, tuple[Operator, tuple[str, ...]]] = {
    "stored order": (o.matmul(64, 64, 64, **HALF), ("tensor flying", "tensor")),
    "float32": (o.matmul(64, 64, 64), ()),
    "tf32": (
        o.matmul(64, 64, 64, dtype="tf32"), ("tensor flying", "tensor", "tensor B' flying", "tensor B'"),
    ),
    "int8, rows along the depth": (
        o.matmul(64, 64, 64, dtype="int8", transpose_b=True), ("tensor flying", "tensor"),
    ),
    "no columns": (o.matvec(64, 64, **HALF), ()),
    "a batch": (o.batch_matmul(3, 32, 32, 32, **HALF), ("tensor flying", "tensor")),
    "a window": (
        o.conv2d(1, 32, 12, 12, out_channels=32, padding=1, **HALF),
        tuple(f"tensor{v}{t}" for v in (" view", "") for t in ("", " X'", " W'", " W' X'")),
    ),
    "a tensor times itself": (o.compute(
        "gram", axes={"i": 32, "j": 32}, reduce={"k": 32}, inputs={"A": (32, 32)}, output="C", **HALF,
        body=lambda A, i, j, k: A[i, k] * A[j, k],
    ), ()),
    "a batch along memory": (o.einsum("kbma,nkb->anmb", (32, 4, 4, 4), (8, 32, 4), **HALF), tuple(
        f"tensor{t}" for t in (" view", " view A'", " view B'", " view A' B'", "", " B'")
    )),
    "rows of two axes, the first along memory": (
        o.einsum("kma,nk->anm", (32, 4, 4), (8, 32), **HALF),
        ("tensor view", "tensor view A'", "tensor", "tensor A'"),
    ),
    "rows of an odd length": (o.matmul(33, 35, 37, **HALF), ("tensor",)),
}  # fmt: skip
RUN: dict[str, Operator] = {
    name: op for name, (op, structures) in DRAWN.items() if structures
} | {
    "an epilogue": o.matmul(48, 40, 32, **HALF).epilogue(lambda c, bias: ex.relu(c + bias), bias=(40,)),
    "columns first": o.einsum("ik,jk->ji", (48, 32), (40, 32), **HALF),
    "sums over two axes": o.einsum("ikl,kjl->ij", (32, 16, 3), (16, 24, 3), **HALF),
    "rows of two axes, the first along memory": o.einsum("kma,nk->anm", (32, 4, 4), (8, 32), **HALF),
    "channels last": o.conv2d(1, 32, 9, 9, out_channels=32, padding=1, layout="NHWC", **HALF),
}  # fmt: skip


def test_unfit_depth_has_no_tensor_core_structure() -> None:
    """Every launch but the largest has one structure; if that were illegal, no schedule would be legal."""
    window = o.conv2d(1, 1, 8, 8, out_channels=8, kernel=7, padding=3, **HALF)
    outer = o.matmul(32, 32, 1, **HALF)
    for first in (window, outer):
        assert not [s for s in derive_structures(first, A100) if "tensor" in s.name]
    op = outer.then(
        "D", axes={"u": 32, "v": 32}, reduce={"w": 32}, inputs={"E": (32, 32)},
        body=lambda C, E, u, v, w: C[u, w] * E[w, v],
    )  # fmt: skip
    assert len(sample_legal(Space(op, A100), 200))


def test_operator_with_unfit_copies_has_legal_schedules() -> None:
    """The same for asynchronous copies of 4 bytes whose elements belong to different tiles."""
    op = o.einsum("kbma,nkb->anmb", (32, 4, 4, 4), (8, 32, 4), **HALF).then(
        "D", axes={"u": 32, "v": 64}, reduce={"w": 8, "y": 4, "x": 4}, inputs={"F": (32, 64, 8, 4, 4)},
        body=lambda C, F, u, v, w, x, y: C[x, w, y, 0] * F[u, v, w, x, y],
    )  # fmt: skip
    assert len(sample_legal(Space(op, A100), 200)) > 150


def tensor_structures(space: Space) -> list[int]:
    return [i for i, s in enumerate(space.structures) if "tensor" in s.name]


@pytest.mark.parametrize("name", DRAWN)
def test_mma_structures_exist_where_mma_fits(name: str) -> None:
    op, expected = DRAWN[name]
    found = [s.name for s in derive_structures(op, A100) if "tensor" in s.name and "packed" not in s.name]
    assert sorted(found) == sorted(expected)
    assert not [s.name for s in derive_structures(op, TURING) if "tensor" in s.name]


SIMILAR = {
    "a batch", "a batch along memory", "rows of two axes, the first along memory", "columns first",
    "sums over two axes", "channels last",
}  # fmt: skip
"""Operators whose structures were executed for others."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in SIMILAR)) for name in RUN]
)
def test_repaired_schedules_match_reference(name: str) -> None:
    """Two schedules of each, compiled and executed under the sanitizer."""
    space = Space(RUN[name], A100)
    legal = sample_legal(space, 3000, seed=4, among=tensor_structures(space))
    for row in np.random.default_rng(4).choice(len(legal), 2, replace=False):
        run(space.build_schedule(legal, int(row))).check()


def test_population_counts_equal_single_programs() -> None:
    space = Space(o.matmul(100, 72, 90, dtype="tf32", transpose_b=True), A100)
    genomes = sample_legal(space, 600, among=tensor_structures(space), most=40)
    assert len(genomes) >= 20
    check_quantities(space, genomes)
    assert space.compute_quantities(genomes)["total_tensor_products"].min() > 0


def _rastered(blocks: int) -> Schedule:
    """A wide matrix product with this raster size."""
    op = o.matmul(4096, 16384, 1024, **HALF)
    structure = next(s for s in derive_structures(op, A100) if s.name == "tensor flying")
    tiles = {"tile.tensor.i": (blocks, 2, 4, 2, 8), "tile.tensor.j": (2, 8, 4, 2), "tile.tensor.k": (2, 16)}
    values: dict[str, int] = {}
    for d in structure.decisions:
        values |= dict(zip(d.holes, tiles.get(d.name, d.get_values(0)), strict=True))
    return Schedule(op).apply_steps(*(step.fill_holes(values) for step in structure.steps))


def test_raster_reduces_dram_traffic() -> None:
    """By the analysis of the models, and by the L2 model of simulated devices."""
    sample, simulated = [], []
    for blocks in (1, 8):
        schedule = _rastered(blocks)
        sample.append(float(analyse_program(schedule.program, A100)["dram_bytes"][0]))
        touched = generate(schedule, A100).launches[0].footprints
        simulated.append(sum(memory_traffic.compute_dram_bytes(touched, A100.sms, 8 * 2**20)))
    assert sample[1] < 0.8 * sample[0]
    assert simulated[1] < 0.8 * simulated[0]


H200_DEVICE, A100_DEVICE = devices.open("h200"), devices.open("a100")
WGMMA_CASES: dict[str, tuple[Operator, tuple[str, ...]]] = {
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


@pytest.mark.parametrize("name", WGMMA_CASES)
def test_wgmma_structures_exist_where_wgmma_fits(name: str) -> None:
    op, expected = WGMMA_CASES[name]
    found = [s.name for s in derive_structures(op, H200_DEVICE.limits)]
    assert tuple(n for n in found if "warpgroup" in n) == expected
    others = tuple(n for n in found if "warpgroup" not in n)
    assert others == tuple(s.name for s in derive_structures(op, A100_DEVICE.limits))


def test_most_wgmma_genomes_are_repaired() -> None:
    space = Space(o.matmul(1024, 1024, 1024, **HALF), H200_DEVICE.limits)
    number = [s.name for s in space.structures].index("warpgroup flying")
    assert len(sample_legal(space, 2000, among=[number])) > 50


def test_prior_latency_prefers_wgmma_on_hopper() -> None:
    """By the prior, the best `wgmma` schedule is faster than the best `mma` schedule."""
    op = o.matmul(4096, 4096, 4096, **HALF)
    space = Space(op, H200_DEVICE.limits)
    legal = sample_legal(space, 600)
    named = [space.get_structure_name(legal, row) for row in range(len(legal))]
    expected = H200_DEVICE.prior(space.compute_quantities(legal)).latency_s
    best = {n: float(expected[[x == n for x in named]].min()) for n in ("warpgroup flying", "tensor flying")}
    assert best["warpgroup flying"] < best["tensor flying"]
    assert H200_DEVICE.peaks.mma_share < 0.7 < A100_DEVICE.peaks.mma_share == 1.0


def test_analysis_counts_wgmma_work() -> None:
    """Every `wgmma` schedule multiplies all the tiles that it covers."""
    space = Space(o.matmul(256, 256, 256, **HALF), H200_DEVICE.limits)
    legal = sample_legal(space, 400, seed=3)
    figures = analyse_program(space.build_schedule(legal, 0).program, H200_DEVICE.limits)
    assert {"total_tensor_products", "total_group_products"} <= set(figures)
    for row in range(len(legal)):
        if "warpgroup" in space.get_structure_name(legal, row):
            found = analyse_program(space.build_schedule(legal, row).program, H200_DEVICE.limits)
            # 16 rows by 8 columns by 16 terms each; tiles may reach over the edges.
            assert found["total_group_products"][0] * 16 * 8 * 16 >= 256**3
            assert found["total_group_products"][0] * 16 * 8 * 16 == found["total_fma"][0]
            assert found["total_tensor_products"][0] == 0
