"""Every kind of operator through NVRTC and the PTX machine: naive schedules, and what the search draws."""

from __future__ import annotations

import numpy as np
import pytest

import ekc.ir.operators as o
from ekc import devices
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.space.space import Space
from tests.emulator.generated import run

LIMITS = devices.open("a100").limits
OPERATORS = {
    "conv1d dilated": o.conv1d(2, 3, 19, out_channels=5, kernel=3, padding=2, dilation=2),
    "conv2d NHWC": o.conv2d(1, 8, 7, 6, out_channels=8, kernel=3, padding=1, groups=2, layout="NHWC"),
    "conv2d depthwise": o.conv2d(1, 12, 9, 9, out_channels=12, kernel=3, stride=2, padding=1, groups=12),
    "conv3d": o.conv3d(1, 4, 4, 5, 6, out_channels=6, kernel=(1, 3, 2), padding=(0, 1, 0), dtype="float16"),
    "conv_transpose1d": o.conv_transpose1d(1, 4, 9, out_channels=6, kernel=3, stride=4, dilation=6, groups=2),
    "conv_transpose2d": o.conv_transpose2d(1, 8, 5, 6, out_channels=8, kernel=4, stride=2, padding=1),
    "conv_transpose2d NHWC": o.conv_transpose2d(
        1, 4, 5, 6, out_channels=8, stride=2, padding=1, output_padding=1, dilation=3, layout="NHWC"
    ),
    "conv_transpose3d": o.conv_transpose3d(1, 2, 2, 3, 3, out_channels=3, kernel=2, stride=2),
    "einsum attention": o.einsum("bqhd,bkhd->bhqk", (1, 12, 2, 16), (1, 10, 2, 16), dtype="float16"),
    "einsum diagonal": o.einsum("aab,bc->ac", (6, 6, 40), (40, 5)),
    "einsum outer": o.einsum("a,b->ab", (13,), (20,)),
    "einsum alone": o.einsum("abb->a", (9, 33, 33)),
    "reduce rows": o.reduce((13, 70), -1, "max"),
    "reduce columns": o.reduce((70, 13), 0, "mean", keepdims=True, dtype="float16"),
    "reduce all": o.reduce((9, 40), combine="min"),
    "softmax": o.softmax((5, 70)),
    "softmax columns": o.softmax((2, 40, 5), 1, dtype="float16"),
    "layer_norm": o.layer_norm((5, 70)),
    "rms_norm": o.rms_norm((3, 5, 70), dtype="float16"),
}


SIMILAR = {"conv1d dilated", "conv3d", "conv_transpose1d", "conv_transpose2d", "softmax columns"}
"""Operators that differ from others in their rank or order of axes alone."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in SIMILAR)) for name in OPERATORS]
)
def test_naive_and_drawn_schedules_match_reference(name: str) -> None:
    op = OPERATORS[name]
    run(make_naive_schedule(op)).check()
    space, random = Space(op, LIMITS), np.random.default_rng(1)
    drawn = space.repair(random, space.sample(random, 8))[0]
    assert len(drawn) >= 7
    for row in (0, len(drawn) - 1):
        run(space.build_schedule(drawn, row)).check()
