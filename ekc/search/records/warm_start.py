"""Warm start: the measurements of a record file, as lessons for another operator or another device.

Rows of the operator on the very device are left to the run itself, which finds them by their key and does
not measure them again (but for those made under other conditions, such as another NVRTC): so a run that is
resumed has the same lessons as one that was not broken off, if nothing else was added to the file meanwhile.
Rows of a simulated device teach simulated devices only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ekc.devices import specs
from ekc.devices.base import Device, Peaks
from ekc.ir.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.serialize import operator_from_json
from ekc.search.models.analysed import analysed
from ekc.search.models.lessons import Group, Lessons, lessons
from ekc.search.models.selection import best_and_even
from ekc.search.models.trees import MIN_ROWS
from ekc.search.records.conditions import present_conditions, read_conditions
from ekc.search.records.evidence import figures_of
from ekc.search.records.rows import Key, Row, canonical_json
from ekc.search.records.store import RecordStore
from ekc.search.records.stored import stored_trials
from ekc.search.result import Trial

MOST_GROUPS, MOST_ROWS = 6, 64
"""Operators on devices, those measured last, and kernels of each: analysing them takes a few seconds."""
MOST_REASONS = 4
"""Reasons, why something on file teaches nothing, in one line."""

_FIXED = re.compile(r"fixed (\d+) MHz")


def learned_from(path: str | Path, op: Operator, device: Device, seed: int) -> tuple[Lessons | None, str]:
    """(what a file teaches, that in words or why it is nothing). Raises `RecordError` for the file."""
    with RecordStore(path, create=False) as store:
        found = _bunches(store.rows(), canonical_json(op.to_json()), device)
    groups, left_out = list[Group](), dict[str, None]()
    for shared, rows in reversed(found.items()):
        why = _explain_exclusion(shared, device)
        at = None if why else _at(shared.device, shared.clock_regime, device)
        if at is None:
            why = why or f"nothing is known of the rates of {shared.device}, clocks {shared.clock_regime}"
        elif len(groups) < MOST_GROUPS:
            made = _group(rows, shared.device, *at)
            groups += made
            why = "" if made or _is_of_clock_search(shared, op, device) else _too_few(shared, rows)
        if why:
            left_out[why] = None
    rest = "".join(f"; {why}" for why in _shorten(sorted(left_out)))
    if not groups:
        kind = "simulated " if device.simulated else ""
        fewest = f"{MIN_ROWS} timed kernels of another operator or on another {kind}device"
        return None, f"nothing learned from {path}: it does not hold {fewest}{rest}"
    taught = lessons(groups, device.peaks, seed)
    return taught, f"{taught}{rest}"


def _bunches(rows: Iterable[Row], own: str, device: Device) -> dict[Key, list[Row]]:
    """Rows that the run does not find for itself, by operator and conditions: the key of each bunch names no
    schedule. Those measured last come last."""
    found: dict[Key, list[Row]] = {}
    here = present_conditions(device)
    for row in rows:
        if row.key.operator == own and read_conditions(row.key) == here:
            continue
        shared = replace(row.key, schedule_digest="", draw=0, window_s=None)
        so_far = found.pop(shared, [])
        so_far.append(row)
        found[shared] = so_far
    return found


def _explain_exclusion(shared: Key, device: Device) -> str:
    """Why a bunch teaches nothing here; "" where it may."""
    if shared.simulated and not device.simulated:
        return f"simulated figures of {shared.device} teach no GPU"
    if device.simulated and not shared.simulated:
        return f"measurements on {shared.device} teach no simulated device"
    if device.simulated and shared.driver != device.driver:
        return f"what {shared.driver} said is left out"
    return ""


def _is_of_clock_search(shared: Key, op: Operator, device: Device) -> bool:
    """Whether a bunch differs from what the run measures in its clocks alone: a search over clocks leaves a
    few kernels of the very operator at each."""
    same = replace(read_conditions(shared), clock_regime=device.clock_regime) == present_conditions(device)
    return same and shared.operator == canonical_json(op.to_json())


def _too_few(shared: Key, rows: Sequence[Row]) -> str:
    operator = str(operator_from_json(json.loads(shared.operator))).splitlines()[0]
    timed = {row.key.schedule_digest for row in rows if row.kind == "timing"}
    return f"{operator} on {shared.device} has {len(timed)} timed kernel{'s' * (len(timed) != 1)}"


def _shorten(reasons: Sequence[str]) -> Sequence[str]:
    if len(reasons) <= MOST_REASONS:
        return reasons
    return [*reasons[:MOST_REASONS], f"and {len(reasons) - MOST_REASONS} more"]


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
