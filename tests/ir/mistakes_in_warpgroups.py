"""One mistake each on the way to products of a warpgroup, with the words that must tell it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ekc.ir.operators as o
from ekc.ir.hardware.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule import Bind, CacheRead, CacheWrite, Pipeline, Reorder, Split, Step, Tensorize
from ekc.ir.schedule.schedule import Schedule
from tests.ir.mistakes_in_loops import Case
from tests.ir.tensor_examples import tensor_matmul
from tests.ir.warpgroup_examples import HOPPER, INSTRUCTION, GroupCut, by_taps, group_matmul, untouched

HALF = o.matmul(256, 256, 256, dtype="float16")
WHOLE = f"tensorize {INSTRUCTION}"


def changed(change: Callable[[Step], Step | None], op: Operator = HALF) -> Schedule:
    """The worked example, its steps changed, or left out where the change is None; its rules held."""
    steps = [change(s) for s in group_matmul(HALF).steps]
    schedule = Schedule(op).apply_steps(*(s for s in steps if s is not None))
    enforce_rules(schedule.program, HOPPER)
    return schedule


def staged(**layout: Any) -> Schedule:
    """With another layout of the tile of B."""
    return changed(lambda s: replace(s, **layout) if isinstance(s, CacheRead) and s.source == "B" else s)


def split(axis: str, *factors: int) -> Schedule:
    """With another cut of one axis."""
    return changed(lambda s: replace(s, factors=factors) if isinstance(s, Split) and s.loop == axis else s)


def elsewhere() -> Schedule:
    """On a target that has products of a warp alone."""
    schedule = group_matmul(HALF)
    enforce_rules(schedule.program, Limits(shared_bytes_per_block=HOPPER.shared_bytes_per_block))
    return schedule


def in_fragments() -> Schedule:
    """Factors taken out of shared memory, as a product of a warp has them."""
    steps = [replace(s, panel=0) if isinstance(s, CacheRead) else s for s in untouched(HALF).steps]
    held = Schedule(HALF).apply_steps(*steps).cache_read("A.shared", "fragment", at="k.1")
    return held.tensorize("k.2", INSTRUCTION)


def reordered(moves: dict[str, str]) -> Schedule:
    """With loops in each other's places."""
    return changed(
        lambda s: replace(s, loops=tuple(moves.get(x, x) for x in s.loops)) if isinstance(s, Reorder) else s
    )


def joint_inside() -> Schedule:
    """Two taps fused into one loop within the tile."""
    op = o.einsum("srik,srjk->ij", (2, 2, 64, 64), (2, 2, 64, 64), dtype="float16")
    at = {"A": "k.0", "B": "k.0"}
    schedule = by_taps(op, GroupCut(1, strips=8), ("k.0", "s", "r", "k.1"), at, fuse=("s", "r"))
    enforce_rules(schedule.program, HOPPER)
    return schedule


def panels_for_a_warp() -> Schedule:
    """A product of a warp, its shared tiles stored for one of a warpgroup."""
    steps = tensor_matmul(HALF).steps
    stored = [replace(s, panel=64) if isinstance(s, CacheRead) and s.scope == "shared" else s for s in steps]
    return Schedule(HALF).apply_steps(*stored)


WARPGROUP_MISTAKES: dict[str, Case] = {
    "wgmma of another target": (elsewhere, WHOLE, INSTRUCTION, "sm_90a alone", "mma.m16n8k16"),
    "wgmma of tf32": (
        lambda: group_matmul(o.matmul(256, 256, 256, dtype="tf32"), GroupCut(vector=4)),
        "cache_read",
        "panel=64",
        "32 of tf32",
        "panel=32",
    ),
    "wgmma of int8": (
        lambda: changed(
            lambda s: replace(s, panel=128, vector=16) if isinstance(s, CacheRead) else s,
            o.matmul(256, 256, 256, dtype="int8"),
        ),
        "tensorize",
        f"instruction '{INSTRUCTION}'",
        "mma.m16n8k32 for int8",
        "'mma.m16n8k32'",
    ),
    "wgmma rows of three warps": (lambda: split("i", 2, 1, 3, 2, 8), WHOLE, "3 iterations of i.3", "4", "4"),
    "wgmma too wide": (
        lambda: split("j", 1, 40, 4, 2),
        WHOLE,
        "40 iterations of j.2, 8 columns each",
        "32",
        "32",
    ),
    "wgmma with its warps in one thread": (
        lambda: changed(lambda s: None if isinstance(s, Bind) and s.loop == "i.3" else s),
        WHOLE,
        "2 iterations of i.1",
        "4",
        "4",
    ),
    "wgmma without strips": (
        lambda: reordered({"j.2": "i.2", "i.2": "j.2"}),
        "tensorize",
        "one of i.2 and i.4 and j.4",
        r"A\[i, k\] and B\[k, j\]",
        r'split\("i", \(.., 4, 2, 8\)\)',
    ),
    "wgmma from fragments": (
        in_fragments,
        "tensorize",
        "A in shared memory",
        "A.fragment is not",
        "leave A.frag",
    ),
    "wgmma without a copy": (
        lambda: changed(lambda s: None if isinstance(s, CacheRead) and s.source == "B" else s),
        "tensorize",
        "B in shared memory",
        "it is not",
        'cache_read."B", "shared"',
    ),
    "wgmma without an accumulator": (
        lambda: changed(lambda s: None if isinstance(s, CacheWrite) else s),
        "tensorize",
        "C held in registers",
        "it is not",
        "cache_write",
    ),
    "wgmma of whole rows": (
        lambda: staged(panel=0),
        WHOLE,
        "B.shared in panels",
        "rows are stored whole",
        "panel=64",
    ),
    "wgmma without a swizzle": (
        lambda: staged(swizzle=1),
        WHOLE,
        "1 chunks to swizzle in B.shared",
        "8",
        "8",
    ),
    "wgmma of padded rows": (
        lambda: staged(pad=8),
        "cache_read B.shared",
        "136 elements in rows of panels",
        "a multiple of 64",
        "64",
    ),
    "wgmma through registers": (
        lambda: changed(lambda s: replace(s, copy="register", stages=2) if isinstance(s, Pipeline) else s),
        WHOLE,
        "A.shared copied by asynchronous copies",
        "it is not",
        'pipeline."k.0", stages=3, copy="async"',
    ),
    "wgmma of half a line": (
        lambda: split("k", 2, 16),
        "cache_read A.shared",
        "32 elements in rows of panels",
        "a multiple of 64",
        "64",
    ),
    "wgmma of columns in half a panel": (
        lambda: split("j", 2, 4, 4, 2),
        WHOLE,
        "32 elements a step of j.1",
        "whole patterns of B.shared",
        "64",
    ),
    "wgmma with a joint loop inside": (
        joint_inside,
        WHOLE,
        "joint loops outside of k.0",
        "s_r inside",
        'fuse outside of "k.0"',
    ),
    "fragments out of panels": (
        panels_for_a_warp,
        "cache_read",
        "A.fragment filled from whole rows",
        "A.shared is in panels",
        "A.shared without panel=",
    ),
    "panels in registers": (
        lambda: Schedule(HALF).cache_read("A", "register", at="k", panel=64),
        "cache_read",
        "panel=64 in scope 'register'",
        "in shared memory",
        "panel=64",
    ),
    "panels of a quarter line": (
        lambda: staged(panel=16),
        "cache_read",
        "panel=16",
        "64 of float16",
        "panel=64",
    ),
    "panels of a fragment": (
        lambda: changed(
            lambda s: CacheRead("B.shared", "fragment", "k.1", panel=64) if isinstance(s, Tensorize) else s
        ),
        "cache_read",
        "panel=64 in scope 'fragment'",
        "in shared memory",
        "panel=64",
    ),
}
