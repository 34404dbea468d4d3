"""Schedules whose pictures are golden files, from the naive one to tensor cores."""

from __future__ import annotations

from collections.abc import Callable

import ekc.ir.operators as o
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from tests.codegen import samples
from tests.ir.async_examples import async_matmul
from tests.ir.tensor_examples import half_matmul, swizzled_matmul
from tests.ir.warpgroup_examples import half_group_matmul

SCHEDULES: dict[str, Callable[[], Schedule]] = {
    "naive": lambda: make_naive_schedule(o.matmul(512, 512, 512)),
    "tiles": lambda: samples.matmul(512, 512, 512, pipeline=False),
    "double_buffer": lambda: samples.matmul(512, 512, 512),
    "cp_async": lambda: async_matmul(64, 64, 64, stages=4),
    "atomic": lambda: samples.shared_sum(100, 60, 4096),
    "padded_mma": half_matmul,
    "swizzled_mma": swizzled_matmul,
    "wgmma": half_group_matmul,
    "conv2d": samples.conv2d,
    "softmax": lambda: samples.softmax(1000, 1000),
    "argmax": samples.argmax_over_lanes,
}
GOLDEN = (
    ("naive", "overview"),
    ("tiles", "loops"),
    ("tiles", "threads"),
    ("double_buffer", "staging"),
    ("cp_async", "staging"),
    ("atomic", "loops"),
    ("padded_mma", "banks"),
    ("padded_mma", "fragments"),
    ("swizzled_mma", "banks"),
    ("wgmma", "fragments"),
    ("wgmma", "threads"),
    ("conv2d", "overview"),
    ("softmax", "staging"),
    ("argmax", "overview"),
)
"""(schedule, picture) of the golden files."""
