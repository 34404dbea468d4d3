"""Races in shared memory between two barriers, and accesses that are none."""

# ruff: noqa: E501 (CUDA text)
from __future__ import annotations

import pytest

from tests.emulator.case import find_kinds, integers

HARMLESS = """void k(int* o) { __shared__ int s[CELLS + 64]; int t = threadIdx.x;
    s[t % CELLS] = 1; s[CELLS + t % 64] = VALUE; __syncthreads(); o[t] = s[t % CELLS] + s[CELLS + t % 64]; }"""


@pytest.mark.parametrize("cells", ["8", "64", "128"])
@pytest.mark.parametrize(("value", "kinds"), [("5", set()), ("t", {"race"})])
def test_cells_with_equal_writes_hide_no_race(cells: str, value: str, kinds: set[str]) -> None:
    source = HARMLESS.replace("CELLS", cells).replace("VALUE", value)
    assert find_kinds(source, [integers(256)], 256) == kinds


ORDERED = """void k(int* o) { __shared__ int s[512]; int t = threadIdx.x;
    s[t] = t; __syncwarp(); int v = s[t ^ 1]; SECOND __syncthreads(); o[t] = v + s[511 - t]; }"""


@pytest.mark.parametrize(
    ("second", "kinds"),
    [
        ("s[256 + t] = v;", set()),
        ("s[256 + t] = v; v += s[256 + (t ^ 32)];", {"race", "uninitialised"}),
        ("__syncwarp(); s[t] = v; s[256 + t] = 1;", set()),
        ("s[t] = v; s[256 + t] = 1;", {"race"}),
    ],
)
def test_cells_ordered_by_a_warp_hide_no_race(second: str, kinds: set[str]) -> None:
    """256 cells are shared by two lanes each, in order."""
    found = find_kinds(ORDERED.replace("SECOND", second), [integers(256)], 256)
    assert ("race" in found) == ("race" in kinds)
    assert found <= kinds


@pytest.mark.parametrize(
    ("between", "kinds"),
    [
        ("int v = ((volatile int*)s)[t] + s[63 - t];", set()),
        ("atomicAdd(&s[t], 1); int v = ((volatile int*)s)[63 - t];", set()),
        ("atomicAdd(&s[t], 1); int v = s[63 - t];", {"race"}),
        ("s[t] = 2; int v = ((volatile int*)s)[63 - t];", {"race"}),
        ("((volatile int*)s)[t] = 2; int v = s[63 - t];", {"race"}),
    ],
)
def test_volatile_reads_may_meet_atomics_and_reads(between: str, kinds: set[str]) -> None:
    source = """void k(int* o) { __shared__ int s[64]; int t = threadIdx.x; s[t] = 1; __syncthreads();
        BETWEEN __syncthreads(); o[t] = v + s[t]; }"""
    assert find_kinds(source.replace("BETWEEN", between), [integers(64)], 64) == kinds


@pytest.mark.parametrize(("atomic", "kinds"), [("Exch", set()), ("Add", {"uninitialised"})])
def test_exchange_may_be_the_first_store(atomic: str, kinds: set[str]) -> None:
    source = f"""void k(int* o) {{ __shared__ int s[64]; int t = threadIdx.x; atomic{atomic}(&s[t], t);
        __syncthreads(); o[t] = s[63 - t]; }}"""
    assert find_kinds(source, [integers(64)], 64) == kinds


HALVES = """void k(int* o) { __shared__ int s[32]; int t = threadIdx.x; s[t] = 0; __syncthreads(); int v;
    BODY __syncthreads(); o[t] = v; }"""
PARTS = "if (t < 16) { s[t] = t; __syncwarp(LOW); v = s[t ^ 1]; } else { __syncwarp(HIGH); v = s[t - 16]; }"


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        # Each half synchronises alone, which orders nothing between the two.
        (PARTS.replace("LOW", "0xffffu").replace("HIGH", "0xffff0000u"), {"race"}),
        # Within a half it orders accesses.
        ("s[t] = t; __syncwarp(t < 16 ? 0xffffu : 0xffff0000u); v = s[t ^ 1];", set()),
        ("s[t] = t; __syncwarp(t < 16 ? 0xffffu : 0xffff0000u); v = s[t ^ 16];", {"race"}),
        ("s[t] = t; __syncwarp(); v = s[t ^ 16];", set()),
        ("if (t < 16) { s[t] = t; __syncwarp(0xffffu); v = s[t ^ 1]; } else v = 0;", set()),
        # Ordered through lanes of a third group.
        ("""if (t < 8) s[t] = t; if (t < 16) __syncwarp(0xffffu); if (t >= 8) __syncwarp(0xffffff00u);
            v = t >= 16 ? s[t % 8] : 0;""", set()),
    ],
)  # fmt: skip
def test_syncwarp_orders_only_lanes_of_its_mask(body: str, kinds: set[str]) -> None:
    assert find_kinds(HALVES.replace("BODY", body), [integers(32)], 32) == kinds


def test_guarded_syncwarp_orders_converged_lanes() -> None:
    source = """void k(int* o) { __shared__ int s[32]; int t = threadIdx.x; s[t] = t;
        asm volatile("{ .reg .pred p; setp.ne.s32 p, %0, 99; @p bar.warp.sync -1; }" :: "r"(t) : "memory");
        o[t] = s[t ^ 1]; }"""
    assert find_kinds(source, [integers(32)], 32) == set()
