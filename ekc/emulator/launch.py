"""`launch`: run a kernel's PTX on NumPy arrays, check it, count it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np

from ekc.emulator.batch import Batch, Tally
from ekc.emulator.counters import Counters, SiteCount, summed
from ekc.emulator.decoding.decode import Decoded, decode
from ekc.emulator.geometry import Shape
from ekc.emulator.plan import Plan
from ekc.emulator.ptx.kinds import kind_of
from ekc.emulator.ptx.parse import parse
from ekc.emulator.ptx.program import Instruction, Module
from ekc.emulator.report import Report
from ekc.errors import InvalidInput

LANES = 16384
"""Lanes of a batch: enough that NumPy's calls cost little, few enough that rows stay in the cache."""
MAX_INSTRUCTIONS = 5_000_000
"""Instructions that one batch may issue: about those of its slowest thread."""
MOST_COUNT = 2**63 - 1
"""The largest count that a launch takes."""


def launch(
    ptx_text: str,
    kernel_name: str,
    *,
    grid: Sequence[int],
    block: Sequence[int],
    args: Sequence[Any],
    dynamic_shared: int = 0,
    blocks: Iterable[int] | None = None,
    sanitize: bool = True,
    max_instructions: int = MAX_INSTRUCTIONS,
) -> Report:
    """Run a kernel; NumPy arrays in `args` are updated in place, numbers take the parameter's type.

    `blocks` runs only the blocks of these linear numbers (x fastest). `EkcError` for what cannot be run:
    malformed PTX, an unknown kernel or instruction, arguments that do not fit, a grid beyond the limits,
    or a kernel that goes over `max_instructions`.
    """
    for what, text in (("ptx_text", ptx_text), ("kernel_name", kernel_name)):
        if not isinstance(text, str):
            raise InvalidInput(f"{what} must be a text, not of type {type(text).__name__}")
    if not isinstance(args, Sequence) or isinstance(args, str | bytes):
        raise InvalidInput(f"args must be a list of arrays and numbers, not of type {type(args).__name__}")
    if not isinstance(sanitize, bool | np.bool_):
        raise InvalidInput(f"sanitize must be True or False, not of type {type(sanitize).__name__}")
    decoded = _decoded(ptx_text, kernel_name)
    plan = Plan(
        decoded,
        _shape("grid", grid),
        _shape("block", block),
        args,
        _count("dynamic_shared", dynamic_shared),
        bool(sanitize),
        _count("max_instructions", max_instructions),
    )
    total = plan.grid[0] * plan.grid[1] * plan.grid[2]
    ids = _chosen(blocks, total)
    done = _run(decoded, plan, ids)
    plan.finish()
    notes: tuple[str, ...] = ()
    if plan.conflicts is not None and plan.conflicts.fenced:
        notes = ("the kernel has fences: reads of what other blocks wrote were not judged",)
    return Report(kernel_name, plan.findings.all(), _counters(decoded, done), len(ids), total, notes)


@lru_cache(maxsize=16)
def _module(text: str) -> Module:
    return parse(text)


@lru_cache(maxsize=64)
def _decoded(text: str, name: str) -> Decoded:
    return decode(_module(text), name)


def _shape(what: str, given: Sequence[int]) -> Shape:
    try:
        numbers = [_count(what, n) for n in given]
    except TypeError:
        numbers = []
    if not 1 <= len(numbers) <= 3:
        raise InvalidInput(f"{what} must be up to three whole numbers; write {what}=(1, 1, 1)")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def _count(what: str, given: int) -> int:
    try:
        number = index(given)
    except TypeError:
        raise InvalidInput(f"{what} must be a whole number, not of type {type(given).__name__}") from None
    if not 0 <= number <= MOST_COUNT:
        raise InvalidInput(f"{what} is outside 0 to {MOST_COUNT}")
    return number


def _chosen(blocks: Iterable[int] | None, total: int) -> Any:
    if blocks is None:
        return np.arange(total)
    try:
        ids = np.unique(np.fromiter((index(b) for b in blocks), np.int64))
    except (TypeError, OverflowError):
        raise InvalidInput(f"blocks must be whole numbers from 0 to {total - 1}") from None
    if ids.size and not (ids[0] >= 0 and ids[-1] < total):
        raise InvalidInput(f"blocks must be 0 to {total - 1}, not {int(ids[0])} to {int(ids[-1])}")
    return ids


def _run(decoded: Decoded, plan: Plan, ids: Any) -> list[Tally]:
    """All blocks, batch by batch. Threads would not help: NumPy's calls are short and meet at the GIL."""
    size = max(1, LANES // (plan.block[0] * plan.block[1] * plan.block[2]))
    done = []
    for start in range(0, ids.size, size):
        batch = Batch(decoded, plan, ids[start : start + size])
        batch.run()
        done.append(batch.tally())
        batch.close()
    return done


def _counters(decoded: Decoded, done: list[Tally]) -> Counters:
    sites: dict[Instruction, SiteCount] = {}
    for number, block in enumerate(decoded.blocks):
        warps = sum(b.warp_runs[number] for b in done)
        lanes = sum(b.lane_runs[number] for b in done)
        last = [block.exit.instruction] if block.exit.instruction else []
        for one in [*block.code, *last]:
            found = sites.setdefault(one, SiteCount(one.text, one.line, kind_of(one)))
            found.warps += warps
            found.lanes += lanes
    for tally in done:
        for number, requests in enumerate(tally.requests):
            if requests:
                site = decoded.shelf.sites[number]
                found = sites[site.instruction]
                if site.action == "async":
                    found.landed += requests
                else:
                    found.requests += requests
                found.sectors += tally.sectors[number]
                found.wavefronts += tally.wavefronts[number]
                found.conflicts += tally.conflicts[number]
                found.bytes += tally.bytes[number]
    barriers, divergent = sum(b.barriers for b in done), sum(b.divergent for b in done)
    return summed(sorted(sites.values(), key=lambda one: one.line), barriers, divergent)
