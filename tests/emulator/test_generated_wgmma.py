"""Generated kernels with `wgmma`: the description of the instruction, results, and predicted traffic."""

from __future__ import annotations

import numpy as np
import pytest

import ekc.ir.operators as o
from ekc.codegen import nvrtc
from ekc.codegen.generate import generate
from ekc.emulator.numerics import wgmma
from ekc.ir.hardware.mma import LANE_GROUPS, LANES_PER_GROUP, MMA_ROWS, SUMS_PER_LANE
from ekc.ir.hardware.wgmma import (
    STRIP_COLUMNS,
    WARPGROUP_WARPS,
    WGMMA_FAMILIES,
    WgmmaFamily,
    WgmmaInstruction,
)
from ekc.ir.schedule.schedule import Schedule
from ekc.search.space.space import Space
from tests.drawn.checks import check_tree
from tests.emulator.generated import run
from tests.emulator.predicted import check_traffic, count_traffic
from tests.ir.warpgroup_examples import ARCH, HOPPER, GroupCut, by_taps, group_matmul, half_group_matmul

COUNTED = (
    "shared_store_requests", "shared_store_wavefronts", "shared_load_wavefronts",
    "global_load_requests", "global_load_sectors", "global_store_requests", "global_store_sectors",
    "barriers",
)  # fmt: skip


@pytest.mark.parametrize("product", WGMMA_FAMILIES, ids=lambda p: str(p.dtype))
@pytest.mark.parametrize("strips", [1, 13, 32])
def test_wgmma_description_computes_as_the_machine(product: WgmmaFamily, strips: int) -> None:
    """The sum in each register of each thread of a warpgroup: ekc.ir beside the PTX machine."""
    rng, rows, columns = np.random.default_rng(7), WARPGROUP_WARPS * MMA_ROWS, STRIP_COLUMNS * strips
    a = rng.standard_normal((3, rows, product.depth)).astype(product.dtype.numpy_dtype)
    b = rng.standard_normal((3, product.depth, columns)).astype(product.dtype.numpy_dtype)
    meant = np.matmul(a.astype(np.float32), b.astype(np.float32))
    machine = wgmma.multiply_factors(a.astype(np.float64), b.swapaxes(1, 2).astype(np.float64), False)
    warp, lane = np.divmod(np.arange(WARPGROUP_WARPS * 32), 32)
    group, place = np.divmod(lane, LANES_PER_GROUP)
    for element in range(SUMS_PER_LANE * strips):
        strip, half, pair = product.find_sum_element(element)
        row, column = MMA_ROWS * warp + LANE_GROUPS * half + group, STRIP_COLUMNS * strip + 2 * place + pair
        ours = meant[:, row, column].ravel()
        np.testing.assert_allclose(ours, machine[element], rtol=1e-5, atol=1e-5)
    kind = {"float16": "f16", "bfloat16": "bf16"}[product.dtype.name]
    assert f".m64n{columns}k16.f32.{kind}.{kind} " in WgmmaInstruction(product, strips, False, True).ptx


def test_example_is_right_with_predicted_traffic() -> None:
    """float16, 256^3: compiled, executed under the sanitizer, right, and with the predicted work."""
    schedule = half_group_matmul()
    check_tree(schedule)
    ran = run(schedule, ARCH, limits=HOPPER)
    ran.check()
    (report,) = ran.reports
    # One instruction of a warpgroup is one of each of its four warps.
    assert report.counters.warp_instructions["wgmma"] == 4 * 256**3 // (64 * 128 * 16)
    check_traffic(ran, COUNTED, HOPPER, rel=1e-6)
    assert count_traffic(ran)["fma"] == 0


OPERATORS = {
    "product": o.matmul(200, 264, 136, dtype="float16"),
    "both turned": o.matmul(136, 130, 72, dtype="bfloat16", transpose_a=True, transpose_b=True),
    "batch": o.batch_matmul(2, 64, 72, 80, dtype="float16"),
    "channels last": o.conv2d(
        2, 64, 7, 7, out_channels=64, kernel=3, padding=1, dtype="float16", layout="NHWC"
    ),
    "packed": o.conv2d(2, 64, 7, 7, out_channels=64, kernel=3, padding=1, dtype="float16"),
    "epilogue": o.matmul(128, 128, 64, dtype="float16").epilogue(lambda c, bias: c + bias, bias=(128,)),
}


SIMILAR = {"both turned", "batch", "packed"}
"""Operators whose kernels have the parts of others."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in SIMILAR)) for name in OPERATORS]
)
def test_members_of_the_search_space_match_reference(name: str) -> None:
    """Three of those that the search would draw."""
    space, rng = Space(OPERATORS[name], HOPPER), np.random.default_rng(1)
    legal = space.repair(rng, space.sample(rng, 600))[0]
    found = [row for row in range(len(legal)) if "warpgroup" in space.get_structure_name(legal, row)]
    for row in found[:3]:
        run(space.build_schedule(legal, row), ARCH, limits=HOPPER).check()
    assert len(found) >= 3


@pytest.mark.parametrize(
    ("mistake", "word"),
    [
        (("fence_async_proxy();", ""), "fence.proxy.async"),
        (("    wait_for_products<64>(&C_acc[0][0][0][0]);\n", ""), "wgmma.wait_group"),
        (("begin_products();\n", ""), "wgmma.fence"),
        (("make_descriptor<0x4000004000010000>", "make_descriptor<0x4000002000010000>"), None),
    ],
)
def test_mistake_in_the_text_is_found(mistake: tuple[str, str], word: str | None) -> None:
    """The machine knows the instructions from the ISA, not from the text that makes them."""
    schedule = half_group_matmul()
    source = generate(schedule, HOPPER).source
    start = source.index('extern "C"')
    assert mistake[0] in source[start:]
    changed = source[:start] + source[start:].replace(*mistake)
    ran = run(schedule, ARCH, lambda *_: nvrtc.compile(changed, ARCH).ptx, HOPPER)
    if word is None:
        # A stride of half a pattern: other elements, all written, so that only the result is wrong.
        assert not np.allclose(ran.found[0].astype(float), ran.expected[0], rtol=2e-2, atol=2e-2)
        return
    assert any(word in f"{found.message} {found.hint}" for report in ran.reports for found in report.findings)


def flip_taps(rows: int) -> Schedule:
    """Two taps of A in one tile, the last first: a loop inside leads back by whole rows."""
    op = o.compute(
        "flip",
        axes={"i": rows, "j": 64},
        reduce={"r": 2, "k": 64},
        inputs={"A": (2, 64, rows), "B": (2, 64, 64)},
        body=lambda A, B, i, j, r, k: A[1 - r, k, i] * B[r, k, j],
        output="C",
        dtype="float16",
    )
    return by_taps(
        op, GroupCut(rows // 64, strips=8, stages=2), ("k.0", "r", "k.1"), {"A": "k.0", "B": "k.0"}
    )


@pytest.mark.parametrize("rows", [128, 192, 256])
def test_inner_loop_may_step_back_by_whole_rows(rows: int) -> None:
    run(flip_taps(rows), ARCH, limits=HOPPER).check()


@pytest.mark.parametrize(("a", "b"), [("r", "k.0"), ("k.0", "r")])
def test_factors_may_be_copied_in_loops_of_their_own(a: str, b: str) -> None:
    """One tile stays while several of the other pass: copies of both loops are in flight together."""
    op = o.einsum("rik,rjk->ij", (2, 64, 128), (2, 64, 128), dtype="float16")
    schedule = by_taps(op, GroupCut(1, strips=8, stages=2), ("r", "k.0", "k.1"), {"A": a, "B": b})
    check_tree(schedule)
    run(schedule, ARCH, limits=HOPPER).check()


def test_two_products_may_share_a_tile_of_a() -> None:
    """Panels side by side: the second product begins at another panel of B."""
    schedule = group_matmul(o.matmul(128, 256, 128, dtype="bfloat16"), GroupCut(1, (2, 2), 8))
    check_tree(schedule)
    run(schedule, ARCH, limits=HOPPER).check()
