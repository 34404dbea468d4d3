"""Warm start: the measurements of a record file, as lessons for another operator or another device.

Rows of the operator on the very device are left to the run itself, which finds them by their key and does
not measure them again (but for those of another NVRTC or generator, whose kernels are others): so a run that
is resumed has the same lessons as one that was not broken off, if nothing else was added to the file
meanwhile. What a simulated device said teaches simulated devices only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from ekc.codegen.generate import toolchain
from ekc.devices import specs
from ekc.devices.base import Device, Peaks
from ekc.ir.limits import Limits
from ekc.ir.operator import Operator
from ekc.search.models.analysed import analysed
from ekc.search.models.lessons import Group, Lessons, lessons
from ekc.search.models.selection import best_and_even
from ekc.search.models.trees import MIN_ROWS
from ekc.search.records.evidence import figures_of
from ekc.search.records.rows import Key, Row, canonical_json
from ekc.search.records.store import RecordStore
from ekc.search.records.stored import stored_trials
from ekc.search.result import Trial

MOST_GROUPS, MOST_ROWS = 6, 64
"""Operators on devices, those measured last, and kernels of each: analysing them takes a few seconds."""

_FIXED = re.compile(r"fixed (\d+) MHz")


def learned_from(path: str | Path, op: Operator, device: Device, seed: int) -> tuple[Lessons | None, str]:
    """(what a file teaches, that in words or why it is nothing). Raises `RecordError` for the file."""
    with RecordStore(path, create=False) as store:
        found = _bunches(store.rows(), canonical_json(op.to_json()), device)
    groups, strange = list[Group](), set[str]()
    for alike, rows in reversed(found.items()):
        at = _at(alike.device, alike.clock_regime, device)
        if device.simulated and alike.driver != device.driver:
            strange.add(f"what {alike.driver} said is left out")
        elif at is None:
            strange.add(f"nothing is known of the rates of {alike.device}, clocks {alike.clock_regime}")
        elif len(groups) < MOST_GROUPS:
            groups += _group(rows, alike.device, *at)
    left_out = "".join(f"; {why}" for why in sorted(strange))
    if not groups:
        kind = "simulated " if device.simulated else ""
        fewest = f"{MIN_ROWS} timed kernels of another operator or on another {kind}device"
        return None, f"nothing learned from {path}: it does not hold {fewest}{left_out}"
    taught = lessons(groups, device.peaks, seed)
    return taught, f"{taught}{left_out}"


def _bunches(rows: Iterable[Row], own: str, device: Device) -> dict[Key, list[Row]]:
    """Rows that teach, by what they are of and how they were made: the key of each bunch names no schedule.
    Those measured last come last."""
    found: dict[Key, list[Row]] = {}
    the_runs = own, device.name, toolchain()
    for row in rows:
        key = row.key
        if key.simulated == device.simulated and (key.operator, key.device, key.nvrtc) != the_runs:
            alike = replace(key, schedule_digest="", draw=0, window_s=None)
            so_far = found.pop(alike, [])
            so_far.append(row)
            found[alike] = so_far
    return found


def _at(name: str, regime: str, device: Device) -> tuple[Limits, Peaks] | None:
    """Limits and ceilings of a device of this name at these clocks, if anything is known of it."""
    if (name, regime) == (device.name, device.clock_regime):
        return device.limits, device.peaks
    spec, fixed = specs.get(name), _FIXED.fullmatch(regime)
    return None if spec is None or fixed is None else (spec.limits(), spec.peaks(int(fixed[1])))


def _group(rows: list[Row], device: str, limits: Limits, peaks: Peaks) -> list[Group]:
    """The group of some rows; none where they are too few."""
    timed = [t for t in stored_trials(rows) if t.ok and t.latency_s]
    if len(timed) < MIN_ROWS:
        return []
    chosen = [timed[i] for i in best_and_even(np.array([t.latency_s for t in timed]), MOST_ROWS)]
    together = analysed(figures_of([t.schedule for t in chosen], limits), peaks)
    name = f"{str(timed[0].schedule.op).splitlines()[0]} on {device}"
    latency = np.array([t.latency_s for t in chosen], dtype=np.float64)
    return [Group(name, together, latency, np.array([_watts(t) for t in chosen]), peaks)]


def _watts(trial: Trial) -> float:
    return trial.power_w if trial.metered and trial.power_w is not None else float("nan")
