"""Kernels of which tests count the instructions."""

from __future__ import annotations

import pytest

from ekc.codegen import nvrtc
from ekc.ptx.counting.counts import InstructionCounts, count_instructions

BOTH_COMPILERS = pytest.mark.parametrize("arch", ["sm_80", "sm_100"])
"""Two targets for which NVRTC lays out loops in different ways."""
TOUCH = "s += *(volatile const float*)&a[{}];"
"""A volatile load, which is neither removed nor merged: it counts the trips."""


def count_body(body: str, arch: str = "sm_80") -> InstructionCounts:
    """Counts of a kernel with this body, which may read `a`, write `c` and use `s` and `t`."""
    source = (
        'extern "C" __global__ void k(const float* __restrict__ a, float* c) {\n'
        f"const int t = threadIdx.x; float s = 0;\n{body}\nc[t] = s; }}"
    )
    return count_instructions(nvrtc.compile(source, arch).ptx, "k")


def make_loop(head: str, inner: str, unroll: str = "1") -> str:
    """CUDA text of a loop with an unroll pragma."""
    return f"\n#pragma unroll {unroll}\nfor ({head}) {{\n{inner}\n}}"
