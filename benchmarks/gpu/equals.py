"""Energy of schedules of equal speed: what there is to save without slowing down.

Schedules of the plan, of the recording and of the records of `tune` are timed; those at most 5 % (then up to
10 %) slower than the fastest are metered once each. The fastest and the one that took least energy are then
metered again, in turn: the saving is of these windows alone, as the least of many is too low by chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.contenders import Ours, compute_ratio, format_median, measure_in_turn
from benchmarks.gpu.folder import PLAN, RECORDING, TUNING
from benchmarks.gpu.items import Item, list_recorded_items, list_small_items
from benchmarks.gpu.kit import Kit
from benchmarks.gpu.plan import read_plan
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.recording import read_recording
from ekc.errors import EkcError
from ekc.ir.interpreter.compare import DATA_SEED
from ekc.ir.interpreter.tolerance import ReferenceEvaluator
from ekc.ir.schedule.schedule import Schedule
from ekc.search.cost_model.xgboost_model import spearman
from ekc.search.database.database import RecordStore, to_canonical_json
from ekc.tables import format_table

Figures = list[list[float]]
"""[turn, 3]: value, low and high end of its interval."""
MINUTES = 4.0
WINDOW_S, REPEATS = 1.0, 2
METERING_S = 3.3
"""Seconds of one metering: idle, warm-up and window."""
WITHIN = 1.1
"""Latency relative to the fastest, at most."""
SURELY_SLOWER = 1.5
"""Known latency relative to the fastest above which a schedule is not timed again."""
MOST, LEAST = 8, 3
"""Schedules that are metered, of one operator."""
TIMING_S = 8.0
"""Seconds to time the schedules of an operator."""


@dataclass(frozen=True)
class _Timed:
    schedule: Schedule
    kernel: CompiledKernel
    latency_s: float


def run(kit: Kit, budget: Budget) -> None:
    """A row for each operator."""
    items = list(list_small_items()) if kit.dry else list(list_recorded_items())
    todo = [item for item in items if kit.folder.find_row("equals", item.name) is None]
    good = TIMING_S + (MOST + 2 * REPEATS) * METERING_S
    least = TIMING_S + (LEAST + 2 * REPEATS) * METERING_S
    for item, share in budget.share_time(todo, *((1.0, 0.0) if kit.dry else (good, least))):
        count = MOST if kit.dry else int((share - TIMING_S) / METERING_S) - 2 * REPEATS
        try:
            _meter_equals(kit, item, max(LEAST, min(MOST, count)))
        except EkcError as problem:
            kit.folder.add_row("equals", item.name, str(problem))


def _meter_equals(kit: Kit, item: Item, count: int) -> None:
    equal = _find_equals(kit, item, count)
    named = {one.schedule.digest: Ours(one.schedule.digest, kit.device, one.kernel) for one in equal}
    figures = measure_in_turn(list(named.values()), 1, 1, WINDOW_S)
    metered = [name for name, one in figures.items() if one["energy_j"]]
    if not metered:
        raise EkcError(next(one["problem"] for one in figures.values()))
    fastest = min(metered, key=lambda name: figures[name]["latency_s"][0][0])
    leanest = min(metered, key=lambda name: figures[name]["energy_j"][0][0])
    again = {}
    if fastest != leanest:
        again = measure_in_turn([named[fastest], named[leanest]], REPEATS, REPEATS, WINDOW_S)
    schedules = {one.schedule.digest: one.schedule.to_json() for one in equal}
    facts = {"fastest": fastest, "leanest": leanest, "again": again}
    kit.folder.add_row("equals", item.name, "ok", figures=figures, schedules=schedules, **facts)


def _find_equals(kit: Kit, item: Item, count: int) -> list[_Timed]:
    """Right schedules near the fastest right one, fastest first, at most `count`. Raises the last problem
    where there is none."""
    expected = ReferenceEvaluator.from_seed(item.op, DATA_SEED)
    timed: list[_Timed] = []
    problem = EkcError(f"{item.name}: no schedule is known: run prepare, record or tune before")
    for schedule, make in kit.compile_ahead(_list_known_schedules(kit, item)):
        try:
            kernel = make()
            timed.append(_Timed(schedule, kernel, kit.device.time(kernel).latency_s))
        except EkcError as why:
            problem = why
    right: list[_Timed] = []
    for one in sorted(timed, key=lambda one: (one.latency_s, one.schedule.digest)):
        if right and (len(right) == count or one.latency_s > WITHIN * right[0].latency_s):
            break
        if not kit.judge(one.schedule, one.kernel, expected)[0]:
            right.append(one)
    if not right:
        raise problem
    return right


def _list_known_schedules(kit: Kit, item: Item) -> list[Schedule]:
    """Schedules of the folder without those that are known to be far slower than the fastest."""
    latency_by_digest: dict[str, float] = {}
    schedules: dict[str, Schedule] = {}
    for schedule, latency_s in _read_measured(kit, item):
        schedules[schedule.digest] = schedule
        latency_by_digest[schedule.digest] = latency_s
    limit = SURELY_SLOWER * min(latency_by_digest.values(), default=0.0)
    known = [one for one in schedules.values() if latency_by_digest[one.digest] <= limit]
    planned = map(Schedule.from_json, read_plan(kit.folder.path / PLAN).get(item.name, ()))
    return known + [one for one in planned if one.digest not in schedules]


def _read_measured(kit: Kit, item: Item) -> Iterator[tuple[Schedule, float]]:
    """Schedules of an operator in the recording and in the records, with their latencies."""
    recording, records = kit.folder.path / RECORDING, kit.folder.path / TUNING
    if recording.exists():
        for row in read_recording(recording).rows:
            if row.timings and not row.failure and row.schedule.op == item.op:
                yield row.schedule, row.find_timing().latency_s
    if records.exists():
        with RecordStore(records, create=False) as store:
            for timing in store.read_rows(operator=to_canonical_json(item.op.to_json()), kind="timing"):
                if timing.status == "ok":
                    yield Schedule.from_json(timing.schedule), float(timing.payload["latency_s"])


def make_table(kit: Kit) -> str:
    """One line for each operator."""
    rows, notes = [], []
    for row in kit.folder.list_rows("equals"):
        if "figures" not in row:
            notes.append(f"  {row['item']}: {row['status']}")
            continue
        rows.append(_format_line(row))
    heads = ("operator", "schedules", "latency", "energy", "rank", "least energy [us]", "saved", "slower")
    title = f"equals: on {kit.label}; schedules within {WITHIN - 1:.0%} of the fastest"
    legend = [
        "  latency, energy: slowest over fastest, most over least; rank: Spearman of latency and energy",
        "  saved, slower: the least energy beside the fastest, both metered again in turn",
    ]
    return "\n".join([format_table(heads, rows, title), *legend, *notes])


def _format_line(row: dict[str, Any]) -> tuple[str, ...]:
    metered = [one for one in row["figures"].values() if one["energy_j"]]
    times = np.array([one["latency_s"][0][0] for one in metered])
    energies = np.array([one["energy_j"][0][0] for one in metered])
    rank = spearman(times, energies)
    head = (
        row["item"],
        str(len(metered)),
        f"{times.max() / times.min():.3f}",
        f"{energies.max() / energies.min():.3f}",
        "-" if rank is None else f"{rank:.2f}",
    )
    again = row["again"]
    if not again:
        return (*head, format_median(row["figures"][row["leanest"]]["latency_s"], 1e6), "same", "-")
    fast, lean = again[row["fastest"]], again[row["leanest"]]
    saved, slower = (_format_share(fast[name], lean[name], sign) for name, sign in SHOWN)
    return (*head, format_median(lean["latency_s"], 1e6), saved, slower)


SHOWN = (("energy_j", -1.0), ("latency_s", 1.0))


def _format_share(fast: Figures, lean: Figures, sign: float) -> str:
    """Change from the fastest to the leanest; `~` where the difference does not count."""
    change = compute_ratio(fast, lean)
    if change is None:
        return "-"
    return f"{sign * (change.ratio - 1):.1%}{'' if change.is_significant else '~'}"
