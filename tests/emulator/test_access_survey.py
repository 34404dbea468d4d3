"""The survey of memory accesses, which does not run a kernel's arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

import ekc.ir.operators as o
from ekc.codegen import nvrtc
from ekc.codegen.generate import generate
from ekc.emulator import launch
from ekc.emulator.access_survey import survey_accesses
from ekc.emulator.paged_memory import BlankArray
from ekc.errors import EkcError
from ekc.ir.schedule.schedule import Schedule

STRIDED = """
extern "C" __global__ void k(const float* x, const int* pick, float* y) {
  __shared__ float s[32 * 33];
  float sum = 0;
  for (int i = 0; i < 1000; ++i) sum += x[(threadIdx.x * 1000 + i) * STRIDE];
  s[threadIdx.x * 33] = sum;
  __syncthreads();
  if (threadIdx.x < 32) y[pick[threadIdx.x]] = s[threadIdx.x * 32 % 1056] * expf(sum);
}
"""


def survey_touches(
    stride: int, threads: int = 64
) -> dict[tuple[str, bool, int | None], tuple[float, float, float]]:
    ptx = nvrtc.compile(
        STRIDED.replace("STRIDE", str(stride)).replace("x.x * 33", "x.x % 32 * 33"), "sm_80"
    ).ptx
    arrays = [BlankArray(size) for size in (4 * 1000 * 64 * stride, 4 * 32, 4)]
    seen = survey_accesses(ptx, "k", grid=(3, 1, 1), block=(threads, 1, 1), arguments=arrays, blocks=(0, 2))
    return {
        (t.space, t.is_write, t.argument_number): (t.requests, t.sectors, t.wavefronts) for t in seen.profiles
    }


def test_survey_counts_requests_sectors_and_wavefronts_of_each_argument() -> None:
    found = survey_touches(stride=1)
    # Rows of 4000 bytes: every lane in a sector and a line of its own.
    assert found["global", False, 0] == (1.0, 32.0, 32.0)
    # One of the two warps picks and writes; all indices are 0 in a survey.
    assert found["global", False, 1] == (1.0, 4.0, 1.0)
    assert found["global", True, 2] == (1.0, 1.0, 1.0)
    # The store uses 32 banks, the load one.
    assert found["shared", True, None] == (1.0, 0.0, 1.0)
    assert found["shared", False, None] == (1.0, 0.0, 32.0)


def test_long_loop_runs_a_few_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    ptx = nvrtc.compile(STRIDED.replace("STRIDE", "1"), "sm_80").ptx
    monkeypatch.setattr("ekc.emulator.access_survey._BUDGET", 400)
    blank = [BlankArray(size) for size in (4 * 1000 * 64, 4 * 32, 4)]
    survey_accesses(ptx, "k", grid=(1, 1, 1), block=(64, 1, 1), arguments=blank)
    arrays = [np.zeros(1000 * 64, np.float32), np.zeros(32, np.int32), np.zeros(1, np.float32)]
    with pytest.raises(EkcError, match="more than 400 instructions"):
        launch(ptx, "k", grid=(1,), block=(64,), args=arrays, max_instructions=400)


def test_unknown_kernel_is_refused() -> None:
    ptx = nvrtc.compile(STRIDED.replace("STRIDE", "1"), "sm_80").ptx
    with pytest.raises(EkcError, match="no 'other' in this PTX; kernels are k"):
        survey_accesses(ptx, "other", grid=(1, 1, 1), block=(64, 1, 1), arguments=[BlankArray(4)] * 3)


def test_fused_loop_may_exceed_int32() -> None:
    """Block 2**21 begins at 2**31, which is i = 32768, j = 0."""
    op = o.compute(
        "far", axes={"c": 4}, reduce={"i": 65536, "j": 65536}, inputs={"A": (16, 16)},
        body=lambda A, c, i, j: A[i // 4096, j // 4096] + c,
    )  # fmt: skip
    made = generate(
        Schedule(op).cache_write("C").atomic("C").fuse("i", "j").split("i_j", (1024,))
        .reorder("i_j.0", "c", "i_j.1").bind("i_j.0", "block.x")
    )  # fmt: skip
    one = made.launches[-1]
    ptx = nvrtc.compile(made.source, "sm_80").ptx
    for number in (2**21 - 1, 2**21):
        arrays = [BlankArray(1024), BlankArray(16)]
        seen = survey_accesses(
            ptx, one.name, grid=one.grid, block=one.block, arguments=arrays, blocks=(number,)
        )
        assert {(t.argument_number, t.is_atomic) for t in seen.profiles} == {(0, False), (1, True)}
