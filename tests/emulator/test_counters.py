"""Passes through the banks of shared memory: the machine and the analysis count alike."""

from __future__ import annotations

import numpy as np
import pytest

import ekc.emulator as emulator
from ekc.emulator.counters import count_wavefronts
from ekc.ir.analysis import bank_conflicts
from tests.emulator.case import ptx

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
        # Steps of 64 bytes: eight lanes of a quarter in two groups of banks. Recorded on CLBlast, with every
        # quarter alone: 71 ms on an RTX 3090 and 154 ms on an RTX 2080 Ti; one pass less would halve that.
        ((8, 4), (64, 0), 16, 16),
        ((8, 4), (64, 0), 4, 4),
        ((32, 1), (128, 0), 4, 32),
    ],
)
def test_wavefronts_of_access_patterns(
    extents: tuple[int, int], steps: tuple[int, int], size: int, passes: int
) -> None:
    address = LANES % extents[0] * steps[0] + LANES // extents[0] % extents[1] * steps[1]
    assert count_wavefronts(address, np.zeros(32, np.int64), size)[0] == passes
    pattern = bank_conflicts.WarpAccessPattern(itemsize=1, vector=size, extents=extents, steps=steps)
    assert np.asarray(bank_conflicts.count_wavefronts(pattern, 32)) == passes


def test_wavefronts_of_warps_add() -> None:
    address = np.concatenate([LANES * 16, LANES * 0, LANES[:8] * 16])
    warps = np.repeat([3, 4, 7], [32, 32, 8])
    passes, beyond = count_wavefronts(address, warps, 16)
    assert passes == 4 + 2 + 1
    assert beyond == 0


HALVES = """
extern "C" __global__ void k(unsigned short* o)
{
    __shared__ unsigned short s[32 * 33 + 8];
    const int t = threadIdx.x;
    for (int i = t; i < 32 * 33 + 8; i += 32) s[i] = i;
    __syncthreads();
    unsigned r = 0;
    READS
    o[t] = r;
}
"""


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_wavefronts_of_halves_depend_on_their_words(order: tuple[int, ...]) -> None:
    """Rows of 33 halves: every other lane is in the upper half of a word, and a step of one half makes lanes
    share other words. So counts of one access must not be reused for the next."""
    reads = " ".join(f'r += s[t * 33 + {i}]; asm volatile("" ::: "memory");' for i in order)
    report = emulator.launch(
        ptx(HALVES.replace("READS", reads)), "k", grid=(1,), block=(32,), args=[np.zeros(32, np.uint16)]
    )
    loads = [one for one in report.counters.instructions.values() if one.kind == "load.shared"]
    lane = np.arange(32)
    expected = [count_wavefronts(66 * lane + 2 * i, 0 * lane, 2)[0] for i in order]
    assert [one.wavefronts for one in loads] == expected
    assert len(set(expected)) == 2
