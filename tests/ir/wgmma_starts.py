"""Schedules on wgmma with one step changed, each a mistake of `mistakes.txt`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ekc.ir.operators as o
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule import CacheRead, Reorder, Split, Step
from ekc.ir.schedule.schedule import Schedule
from tests.ir.starts import change_steps
from tests.ir.tensor_examples import tensor_matmul
from tests.ir.warpgroup_examples import HOPPER, INSTRUCTION, GroupCut, by_taps, group_matmul, untouched

HALF = o.matmul(256, 256, 256, dtype="float16")
WHOLE = f"tensorize {INSTRUCTION}"


def changed(change: Callable[[Step], Step | None], op: Operator = HALF) -> Schedule:
    """`group_matmul` with changed steps, and the rules enforced."""
    schedule = change_steps(group_matmul(HALF), change, op)
    enforce_rules(schedule.program, HOPPER)
    return schedule


def staged(**layout: Any) -> Schedule:
    """`group_matmul` with another layout of the tile of B."""
    return changed(lambda s: replace(s, **layout) if isinstance(s, CacheRead) and s.source == "B" else s)


def split(axis: str, *factors: int) -> Schedule:
    """`group_matmul` with another split of one axis."""
    return changed(lambda s: replace(s, factors=factors) if isinstance(s, Split) and s.loop == axis else s)


def elsewhere() -> Schedule:
    """`group_matmul` on a target that has mma but no wgmma."""
    schedule = group_matmul(HALF)
    enforce_rules(schedule.program, LaunchLimits(shared_bytes_per_block=HOPPER.shared_bytes_per_block))
    return schedule


def in_fragments() -> Schedule:
    """`group_matmul` with factors in fragments, as mma has them."""
    steps = [replace(s, panel=0) if isinstance(s, CacheRead) else s for s in untouched(HALF).steps]
    held = Schedule(HALF).apply_steps(*steps).cache_read("A.shared", "fragment", at="k.1")
    return held.tensorize("k.2", INSTRUCTION)


def reordered(moves: dict[str, str]) -> Schedule:
    """`group_matmul` with exchanged loops."""
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
    """mma with shared tiles stored in panels, as wgmma has them."""
    steps = tensor_matmul(HALF).steps
    stored = [replace(s, panel=64) if isinstance(s, CacheRead) and s.scope == "shared" else s for s in steps]
    return Schedule(HALF).apply_steps(*stored)
