"""Passes through the banks of shared memory: the machine and the analysis count alike."""

from __future__ import annotations

import numpy as np
import pytest

from ekc.emulator.counters import wavefronts
from ekc.ir import warp

LANES = np.arange(32)


@pytest.mark.parametrize(
    ("extents", "steps", "size", "passes"),
    [
        # (lanes of the inner and outer loop), (bytes a step), bytes a lane. Side by side: a register a pass.
        ((32, 1), (4, 0), 4, 1),
        ((32, 1), (8, 0), 8, 2),
        ((32, 1), (16, 0), 16, 4),
        # All the same: one register each, or two at once.
        ((32, 1), (0, 0), 4, 1),
        ((32, 1), (0, 0), 8, 1),
        ((32, 1), (0, 0), 16, 2),
        # Neighbours agree in pairs, or in every other lane.
        ((16, 2), (0, 16), 16, 2),
        ((2, 16), (0, 16), 16, 2),
        ((4, 8), (16, 64), 16, 4),
        # 64 bytes apart: eight lanes of a quarter in two groups of banks. Recorded on CLBlast, with every
        # quarter alone: 71 ms on an RTX 3090 and 154 ms on an RTX 2080 Ti; one pass less would halve that.
        ((8, 4), (64, 0), 16, 16),
        ((8, 4), (64, 0), 4, 4),
        ((32, 1), (128, 0), 4, 32),
    ],
)
def test_known_patterns(extents: tuple[int, int], steps: tuple[int, int], size: int, passes: int) -> None:
    address = LANES % extents[0] * steps[0] + LANES // extents[0] % extents[1] * steps[1]
    assert wavefronts(address, np.zeros(32, np.int64), size)[0] == passes
    pattern = warp.Pattern(itemsize=1, vector=size, extents=extents, steps=steps)
    assert np.asarray(warp.wavefronts(pattern, 32)) == passes


def test_warps_count_apart() -> None:
    address = np.concatenate([LANES * 16, LANES * 0, LANES[:8] * 16])
    warps = np.repeat([3, 4, 7], [32, 32, 8])
    passes, beyond = wavefronts(address, warps, 16)
    assert passes == 4 + 2 + 1
    assert beyond == 0
