"""Benchmarks of the PTX machine: its rate, and passes and sectors beyond need."""

from __future__ import annotations

import pytest

from benchmarks.emulator import rate
from benchmarks.emulator.memory_efficiency import MemoryEfficiency, measure_memory_efficiency
from ekc.codegen import nvrtc
from ekc.codegen.generate import compile_schedule
from ekc.ir.schedule.schedule import Schedule
from tests.benchmarks.helpers import Run
from tests.ir.examples import depth_lanes, tiled_matmul


@pytest.mark.slow
def test_kernels_are_right_and_counted(run: Run) -> None:
    text, figures = run("emulator.rate", "--side", "128", "--large", "256", "--naive", "20", "--seed", "3")
    whole, unwatched, chosen, *naives = figures["lines"]
    assert "lane instr./s" in text
    assert "CUDA simulator" in text
    assert [whole["sanitize"], unwatched["sanitize"]] == [True, False]
    assert whole["lane_instructions"] == unwatched["lane_instructions"] > 128**3
    assert whole["blocks_run"] == whole["total_blocks"] == 1
    assert chosen["blocks_run"] == chosen["total_blocks"] == 4
    assert naives[0]["lane_instructions"] > 20**3
    assert whole["bar"] == {"seconds": 4.0, "peak_bytes": 2**30}
    assert chosen["bar"]["seconds"] == 10.0
    for line in figures["lines"]:
        assert line["right"]
        assert line["findings"] == []
        assert line["peak_bytes"] > 2**20
        assert line["lane_instructions_per_s"] == pytest.approx(line["lane_instructions"] / line["seconds"])
    assert figures["pass"] == all(line["pass"] for line in figures["lines"])
    if figures["numba"] is None:
        assert "not installed (pip install numba" in text
    else:
        assert figures["numba"]["right"]


def test_slow_large_or_wrong_run_fails_its_bar() -> None:
    good = {"right": True, "findings": [], "seconds": 3.9, "peak_bytes": 2**29}
    for change in ({}, {"seconds": 4.1}, {"peak_bytes": 2**30}, {"right": False}, {"findings": ["race"]}):
        assert rate.judge(good | change, rate.WHOLE_BAR_S, rate.MEMORY_BAR)["pass"] == (not change)
    a, b = rate.make_operands(8, 0)
    assert rate.matches_product(a @ b, a, b)
    assert not rate.matches_product(a @ b + 1e-4, a, b)
    assert rate.choose_blocks(3, 4, 0) == [0, 1, 2]
    assert len(rate.choose_blocks(100, 4, 0)) == 4


TEXT = """
extern "C" __global__ void k(const float* x, const float4* v, const short* h, float* y) {
  __shared__ float s[4096];
  int t = threadIdx.x;
  float4 four = v[t];
  s[t] = x[2 * t] + four.x + four.y + four.z + four.w;
  s[1024 + 8 * t] = h[t / 4];
  __syncthreads();
  const float4 w = reinterpret_cast<float4*>(s)[t / 8];
  y[t] = s[t ^ 1] + s[1024 + 8 * (t ^ 2)] + s[t / 16] + w.x + w.y + w.z + w.w;
}
"""


def test_requests_take_passes_and_sectors_beyond_need() -> None:
    ptx = nvrtc.compile(TEXT, "sm_80").ptx
    found = measure_memory_efficiency(
        ptx, "k", grid=(2, 1, 1), block=(64, 1, 1), sizes=(512, 1024, 32, 256), blocks=range(2)
    )

    def seen(space: str, writes: bool) -> list[tuple[int, float, float]]:
        chosen = [x for x in found if (x.space, x.is_write) == (space, writes)]
        return sorted((x.bytes_per_lane, x.units_taken, x.units_needed) for x in chosen)

    # Eight neighbours of two bytes are 16 of a sector; every other float, half of 8; vectors, all of 16.
    assert seen("global", False) == [(2, 1.0, 1.0), (4, 8.0, 4.0), (16, 16.0, 16.0)]
    assert seen("global", True) == [(4, 4.0, 4.0)]
    # Steps of 8 words meet in four banks; two words that all lanes share fill no pass, nor do four vectors,
    # which take two.
    assert seen("shared", True) == [(4, 1.0, 1.0), (4, 8.0, 1.0)]
    assert seen("shared", False) == [(4, 1.0, 1.0), (4, 1.0, 1.0), (4, 8.0, 1.0), (16, 2.0, 1.0)]
    # Only what meets in a bank is a conflict.
    assert sorted(x.conflicts for x in found if x.space == "shared") == [0, 0, 0, 0, 7, 7]
    assert not any(x.conflicts for x in found if x.space == "global")
    assert all(isinstance(x, MemoryEfficiency) and ptx.splitlines()[x.line - 1].strip() for x in found)


def test_lanes_that_share_the_depth_take_no_spare_pass() -> None:
    def spare(schedule: Schedule) -> set[float]:
        kernel = compile_schedule(schedule, "sm_80")
        one = kernel.launches[0]
        found = measure_memory_efficiency(
            kernel.ptx, one.name, grid=one.grid, block=one.block, sizes=one.argument_bytes
        )
        loads = [x for x in found if x.space == "shared" and not x.is_write]
        assert {x.bytes_per_lane for x in loads} == {16}
        return {x.units_taken - x.units_needed for x in loads}

    assert spare(depth_lanes(64, 64, 64)) == {0}
    assert spare(tiled_matmul(256, 128, 64)) == {1, 2}
