"""The samples that the kit checks: instructions that no GPU has run yet come first."""

from __future__ import annotations

import pytest

from benchmarks.gpu.check import DRAWN, POPULATION
from benchmarks.gpu.items import CHECKED
from benchmarks.gpu.sampling import draws
from ekc import devices
from ekc.ir.schedule import Tensorize

H200 = devices.open("h200")


@pytest.mark.parametrize("name", ["matmul", "matmul, both transposed", "conv2d, 64 channels, NHWC"])
def test_samples_have_each_tensor_core_instruction(name: str) -> None:
    drawn = draws(CHECKED[name]("float16"), H200.limits, H200.peaks, 0, POPULATION, 1 + DRAWN)
    found = [[s.instruction for s in x.steps if isinstance(s, Tensorize)] for x in drawn]
    assert found == [[], ["wgmma.m64nNk16"], ["mma.m16n8k16"], []]
