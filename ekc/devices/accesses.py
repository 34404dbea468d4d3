"""How one launch touches memory, told from its compiled PTX.

How often each instruction runs comes from the loops of the PTX; how the lanes of a warp lie together
comes from the PTX machine, which runs the address arithmetic of a few blocks. Nothing here knows the
schedule, so it can disagree with the analysis that the models see.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ekc.codegen.compiled import CompiledKernel, Launch
from ekc.devices.occupancy import WARP
from ekc.devices.ptx.counts import Counts, count, runs
from ekc.emulator.survey import Survey, Touch, survey

LANES = 2048
"""Lanes to survey, roughly: blocks are alike but at the edges."""
FEWEST, MOST = 2, 16
"""Blocks to survey, where there are so many."""


@dataclass(frozen=True)
class Access:
    """Accesses of one kind: same tensor, same width, same pattern."""

    tensor: str
    """Argument they touch; "" in shared memory."""
    space: str
    """"global" or "shared"."""
    kind: str
    """"load", "store" or "atomic"."""
    bytes_per_lane: int
    requests: float
    """Warp-level requests of one block over its whole life."""
    sectors: float
    """32-byte sectors per request (global)."""
    wavefronts: float
    """Passes per request through the banks that shared memory and L1 share."""
    trips: float
    """Most runs of one such instruction by one warp."""
    asynchronous: bool = False
    """Whether an asynchronous copy makes it: the data pass no register."""


@dataclass(frozen=True)
class Executed:
    """What one launch executes."""

    counts: Counts
    """Instructions of one thread."""
    accesses: tuple[Access, ...]
    live_lines: float
    """128-byte lines of global memory that a block reads more than once in two trips of its loops."""


def executed(kernel: CompiledKernel) -> tuple[Executed, ...]:
    """One entry per launch. Raises `EkcError` for PTX that cannot be counted or is not known."""
    return tuple(_of_launch(kernel.ptx, launch) for launch in kernel.launches)


def _of_launch(ptx: str, launch: Launch) -> Executed:
    ran = runs(ptx, launch.name)
    times = {one.line: often for one, often in ran}
    copies = {one.line for one, _ in ran if one.opcode[:2] == ("cp", "async")}
    seen = survey(
        ptx,
        launch.name,
        grid=launch.grid,
        block=launch.block,
        sizes=launch.argument_bytes,
        dynamic_shared=launch.shared_bytes,
        blocks=_sample(launch),
    )
    return Executed(count(ptx, launch.name), _accesses(launch, seen, times, copies), seen.live_lines)


def _sample(launch: Launch) -> Iterable[int]:
    """Some blocks of the grid, drawn evenly; the same ones every time."""
    total = launch.grid[0] * launch.grid[1] * launch.grid[2]
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    number = min(total, MOST, max(FEWEST, LANES // threads))
    return np.random.default_rng(0).choice(total, number, replace=False) if number < total else range(total)


def _accesses(launch: Launch, seen: Survey, times: dict[int, float], copies: set[int]) -> tuple[Access, ...]:
    warps = -(-(launch.block[0] * launch.block[1] * launch.block[2]) // WARP)
    groups: dict[tuple[object, ...], list[tuple[Touch, float]]] = {}
    for touch in seen.touches:
        if touch.space in ("global", "shared"):
            kind = _kind(touch)
            key = (touch.space, kind, touch.argument, touch.bytes_per_lane, touch.line in copies)
            groups.setdefault((*key, touch.sectors, touch.wavefronts), []).append((touch, times[touch.line]))
    return tuple(_access(launch, group, warps, copies) for group in groups.values())


def _kind(touch: Touch) -> str:
    if touch.atomic:
        return "atomic"
    return "store" if touch.writes else "load"


def _access(launch: Launch, group: list[tuple[Touch, float]], warps: int, copies: set[int]) -> Access:
    one = group[0][0]
    return Access(
        tensor=launch.arguments[one.argument] if one.argument is not None else "",
        space=one.space,
        kind=_kind(one),
        bytes_per_lane=one.bytes_per_lane,
        requests=sum(often * touch.share * touch.requests for touch, often in group) * warps,
        sectors=one.sectors,
        wavefronts=one.wavefronts,
        trips=max(often for _, often in group),
        asynchronous=one.line in copies,
    )
