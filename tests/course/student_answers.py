"""Answers that several tests of exercises give: schedules, a function and the text of a kernel."""

from __future__ import annotations

from typing import Any

import ekc
from ekc.course import rung

TREE = """__shared__ float part[256]; part[t] = x[t]; __syncthreads();
for (int d = 128; d > 0; d /= 2) { STEP } if (t == 0) y[0] = part[0];"""
"""Body of a kernel of exercise 10d, with STEP in place of the body of its loop."""


def bound(
    rows: int, columns: int, x: str = "j.1", y: str = "i.1", shape: tuple[int, ...] = (512,) * 3
) -> Any:
    cut = ekc.Schedule(ekc.matmul(*shape)).split("i", (rows,)).split("j", (columns,))
    cut = cut.reorder("i.0", "j.0", "i.1", "j.1", "k").bind("i.0", "block.y").bind("j.0", "block.x")
    return cut.bind(x, "thread.x").bind(y, "thread.y")


def turned(pad: int = 0, order: tuple[int, ...] = (1, 0)) -> Any:
    steps = [s for s in rung("shared memory").steps if type(s).__name__ != "CacheRead"]
    schedule = ekc.Schedule(ekc.matmul(512, 512, 512)).apply_steps(*steps)
    return schedule.cache_read("A", "shared", at="k.0", order=order, pad=pad).cache_read(
        "B", "shared", at="k.0"
    )


def count_warps(threads: int, registers: int, shared: int, reserve: int = 1024, most_blocks: int = 32) -> int:
    """Warps of an SM by the table of lesson 5."""
    each = threads // 32
    by_shared = 167936 // (shared + reserve) if shared + reserve else 32
    return each * min(64 // each, most_blocks, 65536 // (registers * threads), by_shared)


def sum_kernel(body: str) -> str:
    """The text of a kernel of exercise 10d."""
    return f'extern "C" __global__ void sum(const float* x, float* y)\n{{\n int t = threadIdx.x;\n{body}\n}}'
