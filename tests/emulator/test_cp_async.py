"""Asynchronous copies: accesses to memory of pending copies, and the bytes that a copy reads."""

# ruff: noqa: E501 (CUDA text)
from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.case import find_kinds, integers

FLIGHT = """void k(const int* a, int* o) {
    __shared__ int s[2][64]; int t = threadIdx.x; const int n = 4; s[0][t] = s[1][t] = -1; __syncthreads();
    unsigned p = (unsigned)__cvta_generic_to_shared(&s[0][t]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(p), "l"(a + t) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    MEANWHILE asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 0;" ::: "memory"); __syncthreads();
    AFTERWARDS
    o[t] = s[0][t] + s[1][t]; }"""
SECOND = (
    'asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(p + PLACE), "l"(a + SOURCE) : "memory");'
)


def copy_again(place: str, source: str) -> str:
    return SECOND.replace("PLACE", place).replace("SOURCE", source)


@pytest.mark.parametrize(
    ("meanwhile", "afterwards", "kinds"),
    [
        ("", "", set()),
        ("s[0][t] = 5;", "", {"async-copy"}),
        ("__syncthreads(); s[0][63 - t] = 5; __syncthreads();", "", {"async-copy"}),
        ("__syncthreads(); atomicAdd(&s[0][63 - t], 5); __syncthreads();", "", {"async-copy"}),
        (copy_again("0", "63 - t"), "", {"async-copy"}),
        # Another stage, the same bytes, or after the wait: all fine.
        ("s[1][t] = 5; atomicAdd(&s[1][t], 1);", "", set()),
        (copy_again("256", "63 - t"), "", set()),
        (copy_again("0", "t"), "", set()),
        ("", "s[0][63 - t] = 5; __syncthreads();", set()),
    ],
)
def test_write_to_the_target_of_a_pending_copy_is_found(
    meanwhile: str, afterwards: str, kinds: set[str]
) -> None:
    source = FLIGHT.replace("MEANWHILE", meanwhile).replace("AFTERWARDS", afterwards)
    assert find_kinds(source, [np.arange(64, dtype=np.int32), integers(64)], 64) == kinds


FILLED = """void k(const int* a, int* o, int n, unsigned long long policy) {
    __shared__ __align__(16) int s[128]; int t = threadIdx.x; unsigned p = (unsigned)__cvta_generic_to_shared(s + 4 * t);
    asm volatile("cp.async.cg.shared.globalHINT [%0], [%1], 16OPERANDS;" :: "r"(p), "l"(a + 4 * t), "r"(n), "l"(policy));
    asm volatile("cp.async.wait_all;" ::: "memory"); for (int i = 0; i < 4; ++i) o[4 * t + i] = s[4 * t + i]; }"""


@pytest.mark.parametrize(
    ("hint", "operands", "size", "length", "landed", "kinds"),
    [
        ("", "", 0, 128, 4, set()),
        ("", ", %2", 16, 128, 4, set()),
        ("", ", %2", 8, 128, 2, set()),
        (".L2::cache_hint", ", %3", 0, 128, 4, set()),
        (".L2::cache_hint", ", %2, %3", 8, 128, 2, set()),
        # More than the copy holds is undefined.
        ("", ", %2", 20, 128, 4, {"async-copy"}),
        # Only the bytes that are read must exist.
        ("", ", %2", 8, 126, 2, set()),
        ("", ", %2", 12, 126, 3, {"out-of-bounds"}),
        ("", "", 0, 126, 4, {"out-of-bounds"}),
    ],
)
def test_copy_reads_its_source_bytes(
    hint: str, operands: str, size: int, length: int, landed: int, kinds: set[str]
) -> None:
    source = FILLED.replace("HINT", hint).replace("OPERANDS", operands)
    given, found = np.arange(1, length + 1, dtype=np.int32), integers(32, 4)
    assert find_kinds(source, [given, found, size, 0x14F0000000000000], 32) == kinds
    expected = np.arange(1, 129, dtype=np.int32).reshape(32, 4) * (np.arange(4) < landed)
    whole = slice(None) if length == 128 else slice(0, 31)
    np.testing.assert_array_equal(found[whole], expected[whole])
    if not kinds:
        np.testing.assert_array_equal(found, expected)
