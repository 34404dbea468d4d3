"""Asynchronous copies by hand: what may not be touched while they fly, and what they may read."""

# ruff: noqa: E501 (CUDA text)
from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.case import integers, told

FLIGHT = """void k(const int* a, int* o) {
    __shared__ int s[2][64]; int t = threadIdx.x; const int n = 4; s[0][t] = s[1][t] = -1; __syncthreads();
    unsigned p = (unsigned)__cvta_generic_to_shared(&s[0][t]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(p), "l"(a + t) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    MEANWHILE asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 0;" ::: "memory"); __syncthreads();
    AFTERWARDS
    o[t] = s[0][t] + s[1][t]; }"""
SECOND = 'asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(p + PLACE), "l"(a + SOURCE) : "memory");'


def second(place: str, source: str) -> str:
    return SECOND.replace("PLACE", place).replace("SOURCE", source)


@pytest.mark.parametrize(
    ("meanwhile", "afterwards", "kinds"),
    [
        ("", "", set()),
        ("s[0][t] = 5;", "", {"async-copy"}),
        ("__syncthreads(); s[0][63 - t] = 5; __syncthreads();", "", {"async-copy"}),
        ("__syncthreads(); atomicAdd(&s[0][63 - t], 5); __syncthreads();", "", {"async-copy"}),
        (second("0", "63 - t"), "", {"async-copy"}),
        # Another stage, the same bytes, or after the wait: all fine.
        ("s[1][t] = 5; atomicAdd(&s[1][t], 1);", "", set()),
        (second("256", "63 - t"), "", set()),
        (second("0", "t"), "", set()),
        ("", "s[0][63 - t] = 5; __syncthreads();", set()),
    ],
)
def test_nothing_is_written_where_a_copy_flies(meanwhile: str, afterwards: str, kinds: set[str]) -> None:
    source = FLIGHT.replace("MEANWHILE", meanwhile).replace("AFTERWARDS", afterwards)
    assert told(source, [np.arange(64, dtype=np.int32), integers(64)], 64) == kinds
