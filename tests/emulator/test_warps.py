"""Instructions of whole warps: the lanes that must take part, and the memory of matrices."""

# ruff: noqa: E501 (CUDA text)
from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.case import find_kinds, zeros

MATRIX = """void k(unsigned* c) { __shared__ __align__(16) unsigned s[128]; __align__(16) unsigned l[4] = {c[0], 0, 0, 0}; int t = threadIdx.x;
    for (int i = t; i < 128; i += 32) s[i] = i; __syncthreads(); unsigned r = 0;
    LOAD
    c[t] = r + l[t % 4]; }"""
LOAD = 'asm volatile("ldmatrix.sync.aligned.m8n8.x1SPACE.b16 {%0}, [%1];" : "=r"(r) : CONSTRAINT(ADDRESS));'


def load(space: str, constraint: str, address: str) -> str:
    return LOAD.replace("SPACE", space).replace("CONSTRAINT", f'"{constraint}"').replace("ADDRESS", address)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (load(".shared", "r", "(unsigned)__cvta_generic_to_shared(s + 4 * (t % 8))"), set()),
        (load("", "l", "s + 4 * (t % 8)"), set()),
        # Only the first eight lanes point at rows.
        (load("", "l", "t < 8 ? s + 4 * t : c"), set()),
        (load("", "l", "c"), {"out-of-bounds"}),
        ("if (t < 8) " + load("", "l", "s + 4 * (t % 8)"), {"warp"}),
        ("if (t < 40) " + load("", "l", "s + 4 * (t % 8)"), set()),
    ],
)
def test_ldmatrix_needs_shared_memory_and_a_whole_warp(text: str, kinds: set[str]) -> None:
    found = np.zeros(32, np.uint32)
    assert find_kinds(MATRIX.replace("LOAD", text), [found], 32) == kinds
    if not kinds:
        assert found.tolist() == list(range(32))


PRODUCT = """void k(float* c) { int t = threadIdx.x; unsigned one = 0x3c003c00; float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    CONDITION asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%4,%4,%4},{%4,%4},{%0,%1,%2,%3};"
    : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(one)); c[t] = d0; }"""


@pytest.mark.parametrize(
    ("condition", "kinds"),
    [
        ("", set()),
        ("if (t / 32 == 1)", set()),
        ("if (c[t] == 0 && t % 32 < 16)", {"warp"}),
        ("if (c[0] == 1 && t == 3)", set()),
        ("if (t == 3) return;", {"warp"}),
    ],
)
def test_mma_needs_a_whole_warp(condition: str, kinds: set[str]) -> None:
    assert find_kinds(PRODUCT.replace("CONDITION", condition), [zeros(64)], 64) == kinds


def test_mma_waits_for_late_lanes() -> None:
    """Every lane takes its own path to the product."""
    way = "for (int i = 0; i < t % 32; ++i) { if (c[i] > 5) d0 += c[i]; }"
    assert find_kinds(PRODUCT.replace("CONDITION", way), [zeros(64)], 64) == set()
