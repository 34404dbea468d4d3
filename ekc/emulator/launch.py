"""`launch`: run a kernel's PTX on NumPy arrays, with checks and counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np

from ekc.emulator.batch import Batch
from ekc.emulator.counters import Counters, LaunchCounts, SiteCount, sum_site_counts
from ekc.emulator.decode.decode import DecodedKernel, decode_kernel
from ekc.emulator.geometry import Shape
from ekc.emulator.plan import LaunchPlan
from ekc.emulator.report import Report
from ekc.errors import InvalidInput
from ekc.ptx.module import Instruction, classify_instruction
from ekc.ptx.parser import parse_module

BATCH_LANES = 16384
"""Lanes of a batch: enough that NumPy's calls cost little, few enough that rows stay in the cache."""
MAX_INSTRUCTIONS = 5_000_000
"""Instructions that one batch may issue: about those of its slowest thread."""
MAX_COUNT = 2**63 - 1
"""The largest number that `launch` accepts for a count."""


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
    argument_names: Sequence[str] = (),
) -> Report:
    """Run a kernel; NumPy arrays in `args` are updated in place, numbers take the parameter's type.

    `blocks` runs only the blocks of these linear numbers (x fastest). Findings name the arguments by
    `argument_names`, in order, and by number where there is no name. `EkcError` for what cannot be run:
    malformed PTX, an unknown kernel or instruction, arguments that do not fit, a grid beyond the limits, or a
    kernel that goes over `max_instructions`.
    """
    for argument, text in (("ptx_text", ptx_text), ("kernel_name", kernel_name)):
        if not isinstance(text, str):
            raise InvalidInput(f"{argument} must be a text, not of type {type(text).__name__}")
    if not isinstance(args, Sequence) or isinstance(args, str | bytes):
        raise InvalidInput(f"args must be a list of arrays and numbers, not of type {type(args).__name__}")
    if not isinstance(sanitize, bool | np.bool_):
        raise InvalidInput(f"sanitize must be True or False, not of type {type(sanitize).__name__}")
    decoded = _decode_cached(ptx_text, kernel_name)
    plan = LaunchPlan(
        decoded,
        _check_shape("grid", grid),
        _check_shape("block", block),
        args,
        _check_count("dynamic_shared", dynamic_shared),
        bool(sanitize),
        _check_count("max_instructions", max_instructions),
        _check_names(argument_names),
    )
    total = plan.grid[0] * plan.grid[1] * plan.grid[2]
    ids = _select_blocks(blocks, total)
    _run_batches(decoded, plan, ids)
    plan.copy_back()
    notes: tuple[str, ...] = ()
    if plan.block_races is not None and plan.block_races.has_fences:
        notes = ("the kernel has fences: reads of what other blocks wrote were not judged",)
    findings, counters = plan.findings.list_findings(), _collect_counters(decoded, plan.counts)
    return Report(kernel_name, findings, counters, len(ids), total, notes)


@lru_cache(maxsize=64)
def _decode_cached(text: str, name: str) -> DecodedKernel:
    return decode_kernel(parse_module(text), name)


def _check_shape(argument: str, value: Sequence[int]) -> Shape:
    try:
        numbers = [_check_count(argument, n) for n in value]
    except TypeError:
        numbers = []
    if not 1 <= len(numbers) <= 3:
        raise InvalidInput(f"{argument} must be up to three whole numbers; write {argument}=(1, 1, 1)")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def _check_names(value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(x, str) for x in value):
        return tuple(value)
    raise InvalidInput('argument_names must be a list of texts; write argument_names=["A", "B"]')


def _check_count(argument: str, value: int) -> int:
    try:
        number = index(value)
    except TypeError:
        raise InvalidInput(f"{argument} must be a whole number, not of type {type(value).__name__}") from None
    if not 0 <= number <= MAX_COUNT:
        raise InvalidInput(f"{argument} is outside 0 to {MAX_COUNT}")
    return number


def _select_blocks(blocks: Iterable[int] | None, total: int) -> Any:
    if blocks is None:
        return np.arange(total)
    try:
        ids = np.unique(np.fromiter((index(b) for b in blocks), np.int64))
    except (TypeError, OverflowError):
        raise InvalidInput(f"blocks must be whole numbers from 0 to {total - 1}") from None
    if ids.size and not (ids[0] >= 0 and ids[-1] < total):
        last = total - 1
        raise InvalidInput(f"blocks: {int(ids[0])} to {int(ids[-1])}, at most {last}; use 0 to {last}")
    return ids


def _run_batches(decoded: DecodedKernel, plan: LaunchPlan, ids: Any) -> None:
    """All blocks, batch by batch. Threads would not help: NumPy's calls are short and meet at the GIL."""
    size = max(1, BATCH_LANES // (plan.block[0] * plan.block[1] * plan.block[2]))
    for start in range(0, ids.size, size):
        batch = Batch(decoded, plan, ids[start : start + size])
        batch.run()
        batch.close()


def _collect_counters(decoded: DecodedKernel, counts: LaunchCounts) -> Counters:
    sites: dict[Instruction, SiteCount] = {}
    for block, warps, lanes in zip(decoded.blocks, counts.warp_runs, counts.lane_runs, strict=True):
        for one in block.instructions:
            sites[one] = SiteCount(one.text, one.line, classify_instruction(one), warps, lanes)
    for number, requests in counts.requests.items():
        site = decoded.context.sites[number]
        site_count = sites[site.instruction]
        if site.action == "async":
            site_count.landed += requests
        else:
            site_count.requests += requests
        site_count.sectors += counts.sectors[number]
        site_count.wavefronts += counts.wavefronts[number]
        site_count.conflicts += counts.conflicts[number]
        site_count.bytes += counts.bytes[number]
    ordered = sorted(sites.values(), key=lambda one: one.line)
    return sum_site_counts(ordered, counts.passed_barriers, counts.divergent_branches)
