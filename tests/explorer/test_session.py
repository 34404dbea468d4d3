"""A session without a page: the list, the figures, and recordings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import ekc
from ekc.errors import InvalidInput, ScheduleError
from ekc.explorer.path import SchedulePath, apply_text
from ekc.explorer.session import Explorer, Part
from ekc.ir.schedule.naive import make_naive_schedule

RECORDING = Path(__file__).parents[2] / "recordings/h100/recording.jsonl.gz"


def run(schedule: ekc.Schedule, target: str, use: Callable[[Explorer], Awaitable[None]]) -> None:
    """Use a session whose first list and figures are there."""

    async def main() -> None:
        explorer = Explorer(schedule, target)
        try:
            explorer.start()
            await explorer.wait()
            await use(explorer)
        finally:
            explorer.close()

    # The browser of other tests keeps an event loop in this thread.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, main()).result()


def test_list_and_figures_follow_the_path() -> None:
    schedule = apply_text(make_naive_schedule(ekc.matmul(64, 64, 64)), 'split("k", (16,))')
    parts: list[Part] = []

    async def use(explorer: Explorer) -> None:
        assert all(row.latency_s and row.energy_j for row in explorer.rows)
        first, sample = explorer.rows, explorer.sample
        assert sample is not None
        assert len(sample.latency_s) > 100
        explorer.subscribe(parts.append)
        explorer.take(next(row for row in explorer.rows if row.text.startswith('cache_read("A", "shared"')))
        assert explorer.is_listing
        await explorer.wait()
        now, before = explorer.get_figures(explorer.schedule), explorer.get_figures(explorer.previous)
        assert now is not None
        assert before is not None
        assert now.source == "compiled for a100 (simulated)"
        assert "A_shared" in now.cuda_source
        assert sum(joules for *_, joules in now.causes) == pytest.approx(now.energy_j, rel=0.1)
        assert len(explorer.list_errors("energy_j")) == 1
        explorer.undo()
        await explorer.wait()
        assert explorer.rows == first
        with pytest.raises(ScheduleError, match="64 bytes at once, at most 16"):
            explorer.take_text('cache_read("A", "shared", at="k.0", vector=16)')

    run(schedule, "a100", use)
    assert {"path", "list", "figures"} <= set(parts)


def test_recording_lists_recorded_schedules_with_recorded_figures() -> None:
    schedule = make_naive_schedule(ekc.matmul(2048, 2048, 2048))

    async def use(explorer: Explorer) -> None:
        rows = explorer.rows
        assert len(rows) > 20
        assert {row.kind for row in rows} == {"recorded"}
        changes = [row.detail.count("\n") for row in rows]
        assert changes == sorted(changes)
        row = next(row for row in rows if row.energy_j)
        explorer.take(row)
        await explorer.wait()
        found = explorer.get_figures(explorer.schedule)
        assert found is not None
        assert found.source.startswith("recorded: NVIDIA H100")
        assert (found.latency_s, found.energy_j) == (row.latency_s, row.energy_j)
        with pytest.raises(InvalidInput, match=r"schedule \w+ was not recorded; .* holds 109 schedules"):
            explorer.take_text('unroll("i.1", factor=2)')
        assert SchedulePath.from_schedule(schedule).schedule.digest == explorer.path.schedules[-2].digest

    run(schedule, f"recorded:{RECORDING}", use)
