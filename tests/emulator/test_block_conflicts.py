"""Global memory: blocks that conflict, the read-only cache, and memory that is read-only."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.case import find_kinds, integers

CONFLICT = {"block-conflict"}


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        # A fence of the block orders no other block.
        ("g[b] = 1; FENCE o[b] = g[(b + 3) % 4];", {"": CONFLICT, "_block": CONFLICT, "full": set()}),
        # An atomic does not see a plain store behind a fence of its own.
        ("FENCE if (b) atomicAdd(g, 1); else *g = 5;", {"": CONFLICT, "_block": CONFLICT, "full": CONFLICT}),
        # The last block that arrives sets the counter back.
        ("FENCE if (atomicAdd(g, 1) == 3) *g = 0;", {"": CONFLICT, "_block": CONFLICT, "full": set()}),
    ],
)
@pytest.mark.parametrize("fence", ["", "_block", "full"])
def test_only_fences_beyond_the_block_order_blocks(text: str, kinds: dict[str, set[str]], fence: str) -> None:
    call = f"__threadfence{fence.removeprefix('full')}();" if fence else ""
    source = "void k(int* g, int* o) { int b = blockIdx.x; " + text.replace("FENCE", call) + " }"
    assert find_kinds(source, [integers(4), integers(4)], 1, blocks=4) == kinds[fence]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("if (b == 0) *(volatile int*)g = 7; else o[b] = g[0];", CONFLICT),
        ("if (b == 0) *(volatile int*)g = 7; else o[b] = *(volatile int*)g;", set()),
        ("if (b == 0) *(volatile int*)g = 7; else *g = 8;", CONFLICT),
        ("((volatile int*)g)[b] = b; o[b] = g[b];", set()),
    ],
)
def test_volatile_store_does_not_order_plain_accesses(text: str, kinds: set[str]) -> None:
    source = "void k(int* g, int* o) { int b = blockIdx.x; " + text + " }"
    assert find_kinds(source, [integers(4), integers(4)], 1, blocks=4) == kinds


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("o[t] = __ldg(g + t);", set()),
        ("g[t] = t; o[t] = g[t];", set()),
        ("g[t] = t + 1; __syncthreads(); o[t] = __ldg(g + (t ^ 1));", {"read-only-cache"}),
        ("o[t] = __ldg(g + t); __syncthreads(); g[t ^ 1] = 5;", {"read-only-cache"}),
        ("o[t] = __ldg(g + t); __syncthreads(); atomicAdd(g + t, 5);", {"read-only-cache"}),
        ("if (t < 32) g[t] = 5; else o[t] = __ldg(g + t);", set()),
    ],
)
def test_read_only_cache_needs_unchanged_memory(text: str, kinds: set[str]) -> None:
    source = "void k(int* g, int* o) { int t = threadIdx.x; " + text + " }"
    assert find_kinds(source, [integers(64), integers(64)], 64) == kinds


COPY = "void k(const int* __restrict__ a, int* b) { int t = threadIdx.x; b[t] = a[t]; CHANGE }"


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ("", set()),
        ("const_cast<int*>(a)[t] = 7;", {"read-only"}),
        ("atomicAdd(const_cast<int*>(a) + t, 7);", {"read-only"}),
        ("if (t == 3) *(t > 2 ? const_cast<int*>(a) : b) = 7;", {"read-only"}),
        ("(t % 2 ? const_cast<int*>(a) : b)[t] = 7;", {"read-only"}),
    ],
)
@pytest.mark.parametrize("protected", [True, False])
def test_change_of_a_read_only_array_is_found(change: str, kinds: set[str], protected: bool) -> None:
    given = np.arange(32, dtype=np.int32)
    given.flags.writeable = not protected
    assert find_kinds(COPY.replace("CHANGE", change), [given, integers(32)], 32) == (
        kinds if protected else set()
    )
