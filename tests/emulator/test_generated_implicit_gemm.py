"""Generated convolutions as implicit GEMM (fused pixels): results, masks of windows, and predicted
traffic."""

from __future__ import annotations

import pytest

import ekc.ir.operators as o
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule import Unroll
from ekc.ir.schedule.schedule import Schedule
from tests.emulator.generated import run
from tests.emulator.predicted import check_traffic
from tests.ir.tensor_examples import Cut, tile_fragments
from tests.ir.view_examples import PIXELS, fused_pixels, half_conv2d, tensor_conv2d

EXACT = (
    "shared_load_requests", "shared_load_wavefronts", "shared_store_requests", "global_store_requests",
    "global_store_sectors",
)  # fmt: skip


def test_traffic_is_predicted() -> None:
    """Traffic of guarded copies is predicted nearly: the lanes of a warp beyond an edge are a mean."""
    ran = run(half_conv2d())
    check_traffic(ran, EXACT)
    check_traffic(ran, ["global_load_sectors"], rel=0.02)
    check_traffic(ran, ["global_load_requests"], rel=0.05)


def test_tile_accesses_have_no_bank_conflict() -> None:
    op = o.conv2d(2, 64, 14, 14, out_channels=64, padding=1, layout="NHWC", dtype="float16")
    ran = run(tensor_conv2d(op, Cut((1, 1), (2, 4), 4, stages=2, pad=8)))
    ran.check()
    sites = [s for r in ran.reports for s in r.counters.instructions.values() if "ldmatrix" in s.instruction]
    assert sites
    assert all(s.wavefronts == 4 * s.requests for s in sites)


def test_pipelined_loop_may_be_unrolled() -> None:
    """Unrolled completely, as the search does, and in part."""
    schedule = half_conv2d(depth=1)
    for factor in (2, 3):
        steps = (*schedule.steps[:-1], Unroll("c.0", factor), schedule.steps[-1])
        run(type(schedule)(schedule.op).apply_steps(*steps)).check()


def test_fragments_may_be_read_along_a_fused_loop() -> None:
    """Taps fused too, all of them in the tile: quotients and remainders of the loop they are read in."""
    op = o.conv2d(1, 32, 6, 6, out_channels=32, padding=1, layout="NHWC", dtype="float16")
    cut, loops = Cut((1, 1), (2, 1), 1), ("c.0", "c.1", "r_s")
    schedule = tile_fragments(fused_pixels(op).fuse("r", "s"), PIXELS, "o", cut, ("c", 16), loops)
    schedule = schedule.cache_write("Y", "register")
    schedule = schedule.cache_read("X", "shared", at="c.0").cache_read("W", "shared", at="c.0")
    schedule = schedule.cache_read("X.shared", "fragment", at="r_s").cache_read(
        "W.shared", "fragment", at="r_s"
    )
    schedule = schedule.tensorize("c.2", "mma.m16n8k16")
    enforce_rules(schedule.program, LaunchLimits())
    run(schedule).check()


def test_pixels_and_taps_may_both_be_tiled() -> None:
    """Two joint loops move through the same dimensions of the image."""
    op = o.conv2d(1, 4, 6, 6, out_channels=4, padding=1, layout="NHWC")
    schedule = (
        Schedule(op).fuse("p", "q").fuse("r", "s").split("p_q", (8,)).split("r_s", (3,))
        .reorder("n", "p_q.0", "o", "r_s.0", "p_q.1", "r_s.1", "c").bind("n", "block.y")
        .bind("p_q.0", "block.x").cache_write("Y").cache_read("X", "shared", at="r_s.0")
        .cache_read("W", "shared", at="r_s.0").cache_read("X.shared", "register", at="r_s.1")
    )  # fmt: skip
    enforce_rules(schedule.program, LaunchLimits())
    ran = run(schedule)
    ran.check()
    assert "p_q = p_q_0 * 8 : 8, r_s = r_s_0 * 3 : 3 -> X_shared" in ran.made.source


def test_window_outside_the_image_is_a_mask() -> None:
    """A bit for each turn of `r` and of `s`, computed before all loops."""
    source = run(half_conv2d()).made.source
    assert "out_of_bounds_mask<3, 1>(((n_p_q_0 * 64 + n_p_q) % 14) - 1, 14) << 3 : ~0u" in source
    assert "X_shared_inside[round] = (X_shared_outside[round] & (1u << r | 1u << (s + 3))) == 0;" in source
    assert source.index("out_of_bounds_mask<3, 1>(") < source.index("for (int r = 0;")


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize(("taps", "cut"), [(6, ()), (6, (2,)), (32, ()), (33, ()), (33, (3,))])
def test_windows_of_any_length_match_reference(taps: int, cut: tuple[int, ...], dilation: int) -> None:
    """A mask has 32 bits; longer windows are checked in every round."""
    op = o.conv1d(2, 16, 9, out_channels=16, kernel=taps, padding=taps * dilation // 2, dilation=dilation,
                  layout="NWC", dtype="float16")  # fmt: skip
    schedule = Schedule(op).fuse("n", "q")
    schedule = schedule.split("s", cut) if cut else schedule
    loops = (*(("s.0", "s.1") if cut else ("s",)), "c.0", "c.1")
    schedule = tile_fragments(schedule, "n_q", "o", Cut((1, 1), (1, 1), 1), ("c", 16), loops)
    schedule = schedule.cache_write("Y", "register")
    for tensor in "XW":
        schedule = schedule.cache_read(tensor, "shared", at="c.0", vector=8)
    for tensor in "XW":
        schedule = schedule.cache_read(f"{tensor}.shared", "fragment", at="c.1")
    schedule = schedule.pipeline("c.0", stages=2, copy="async").tensorize("c.2", "mma.m16n8k16")
    ran = run(schedule)
    ran.check()
    assert ("out_of_bounds_mask" in ran.made.source) == (taps <= 32 and not cut)


@pytest.mark.parametrize(
    ("level", "pixels"),
    [
        ("serial", False),
        ("vthread", True),
        pytest.param("serial", True, marks=pytest.mark.exhaustive),
        pytest.param("vthread", False, marks=pytest.mark.exhaustive),
    ],
)
def test_other_loops_may_enclose_the_taps(level: str, pixels: bool) -> None:
    """A loop over channels adds to an index. A piece of the pixels is in quotients, for which there is no
    mask."""
    op = o.conv2d(2, 8, 6, 6, out_channels=16, padding=1, layout="NHWC")
    i, j = [f"n_p_q.{n}" for n in range(4)], [f"o.{n}" for n in range(4)]
    around = i[1] if pixels else j[1]
    inside = [x for x in (i[1], j[1]) if x != around]
    schedule = (
        fused_pixels(op).split(PIXELS, (2, 8, 2)).split("o", (2, 4, 2)).split("c", (4,))
        .reorder(i[0], j[0], around, i[2], j[2], "r", "s", "c.0", "c.1", *inside, i[3], j[3])
        .bind(i[0], "block.x").bind(j[0], "block.x").bind(i[2], "thread.x").bind(j[2], "thread.x")
        .cache_read("X", "shared", at="c.0").cache_read("W", "shared", at="c.0").pipeline("c.0", stages=2)
    )  # fmt: skip
    schedule = schedule.bind(around, level) if level != "serial" else schedule
    ran = run(schedule)
    ran.check()
    assert "W_shared_offset_base" in ran.made.source
    assert ("out_of_bounds_mask" in ran.made.source) == (not pixels)
