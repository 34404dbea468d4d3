"""A survey shows how lanes lie together without running a kernel's arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from ekc.codegen import nvrtc
from ekc.emulator import launch
from ekc.emulator.survey import survey
from ekc.errors import EkcError

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


def touches(stride: int, threads: int = 64) -> dict[tuple[str, bool, int | None], tuple[float, float, float]]:
    ptx = nvrtc.compile(
        STRIDED.replace("STRIDE", str(stride)).replace("x.x * 33", "x.x % 32 * 33"), "sm_80"
    ).ptx
    sizes = (4 * 1000 * 64 * stride, 4 * 32, 4)
    seen = survey(ptx, "k", grid=(3, 1, 1), block=(threads, 1, 1), sizes=sizes, blocks=(0, 2))
    return {(t.space, t.writes, t.argument): (t.share, t.sectors, t.wavefronts) for t in seen.touches}


def test_patterns_shares_and_arguments() -> None:
    found = touches(stride=1)
    # Rows of 4000 bytes: every lane in a sector and a line of its own.
    assert found["global", False, 0] == (1.0, 32.0, 32.0)
    # One of the two warps picks and writes; all indices are 0 in a survey.
    assert found["global", False, 1] == (0.5, 4.0, 1.0)
    assert found["global", True, 2] == (0.5, 1.0, 1.0)
    # The store lies in 32 banks, the load in one.
    assert found["shared", True, None] == (1.0, 0.0, 1.0)
    assert found["shared", False, None] == (0.5, 0.0, 32.0)


def test_a_long_loop_costs_a_few_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    ptx = nvrtc.compile(STRIDED.replace("STRIDE", "1"), "sm_80").ptx
    monkeypatch.setattr("ekc.emulator.survey._BUDGET", 400)
    sizes = (4 * 1000 * 64, 4 * 32, 4)
    survey(ptx, "k", grid=(1, 1, 1), block=(64, 1, 1), sizes=sizes)
    arrays = [np.zeros(1000 * 64, np.float32), np.zeros(32, np.int32), np.zeros(1, np.float32)]
    with pytest.raises(EkcError, match="budget of 400"):
        launch(ptx, "k", grid=(1,), block=(64,), args=arrays, max_instructions=400)


def test_what_cannot_be_surveyed_is_named() -> None:
    ptx = nvrtc.compile(STRIDED.replace("STRIDE", "1"), "sm_80").ptx
    with pytest.raises(EkcError, match="'other' is not in this PTX; it has: k"):
        survey(ptx, "other", grid=(1, 1, 1), block=(64, 1, 1), sizes=(4, 4, 4))
