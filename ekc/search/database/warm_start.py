"""Warm start: a transfer prior learned from measurements of other operators and devices in a record file.

Rows of the operator under the conditions of the run are not learned from: the run finds them by their key. So
a resumed run has the same prior as an uninterrupted one, if no other run wrote to the file meanwhile. Rows of
simulated devices are used for simulated devices only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ekc import devices
from ekc.devices.device import Device
from ekc.errors import DeviceError
from ekc.ir.operator import Operator, operator_from_json
from ekc.search.cost_model.features import make_model_inputs
from ekc.search.cost_model.transfer import MeasuredGroup, TransferPrior, learn_transfer_prior
from ekc.search.cost_model.xgboost_model import select_training_rows
from ekc.search.data.defaults import SURROGATE
from ekc.search.data.trial import Trial
from ekc.search.database.conditions import get_present_conditions
from ekc.search.database.database import RecordStore
from ekc.search.database.measured_set import analyse_schedules
from ekc.search.database.query import rows_to_trials
from ekc.search.database.rows import RecordKey, RecordRow, group_rows, to_canonical_json
from ekc.tables import count_nouns

MAX_GROUPS, MAX_ROWS_PER_GROUP = 6, 64
"""Pairs of operator and device measured last that are learned from, and kernels of each (seconds of work)."""
MAX_REASONS = 4
"""Reasons in one line why rows are not learned from."""

_FIXED_CLOCK_PATTERN = re.compile(r"fixed (\d+) MHz")


def load_transfer_prior(
    path: str | Path, op: Operator, device: Device, seed: int
) -> tuple[TransferPrior | None, str]:
    """Learn a transfer prior from a record file. Returns (the prior, its description); (None, the reason) if
    there is nothing to learn from. Raises `RecordError` for the file."""
    with RecordStore(path, create=False) as store:
        found = group_rows(store.read_rows())
    # The run finds its own rows by their key.
    found.pop((to_canonical_json(op.to_json()), get_present_conditions(device)), None)
    groups, left_out = list[MeasuredGroup](), dict[str, None]()
    for rows in sorted(found.values(), key=lambda rows: -rows[-1].id):
        shared = rows[0].key
        why = _explain_exclusion(shared, device)
        taught = None if why else _find_device(shared, device)
        if taught is None:
            why = why or f"nothing is known of the rates of {shared.device}, clocks {shared.clock_regime}"
        elif len(groups) < MAX_GROUPS:
            new = _make_groups(rows, taught)
            groups += new
            why = "" if new or _is_of_clock_search(shared, op, device) else _describe_shortage(shared, rows)
        if why:
            left_out[why] = None
    rest = "".join(f"; {why}" for why in _shorten_reasons(sorted(left_out)))
    if not groups:
        kind = "simulated " if device.simulated else ""
        fewest = f"{SURROGATE.min_rows} timed kernels of another operator or on another {kind}device"
        return None, f"nothing learned from {path}: it does not hold {fewest}{rest}"
    prior = learn_transfer_prior(groups, seed)
    return prior, f"{prior}{rest}"


def _explain_exclusion(shared_key: RecordKey, device: Device) -> str:
    """Explain why a group is not learned from; "" if it may be."""
    if shared_key.simulated and not device.simulated:
        return f"simulated figures of {shared_key.device} teach no GPU"
    if device.simulated and not shared_key.simulated:
        return f"measurements on {shared_key.device} teach no simulated device"
    if device.simulated and shared_key.driver != device.driver:
        return f"what {shared_key.driver} said is left out"
    return ""


def _is_of_clock_search(shared_key: RecordKey, op: Operator, device: Device) -> bool:
    """Whether a group differs from the run in its clocks alone: a search over clocks stores a few kernels of
    the same operator at each clock."""
    same = replace(shared_key.conditions, clock_regime=device.clock_regime) == get_present_conditions(device)
    return same and shared_key.operator == to_canonical_json(op.to_json())


def _describe_shortage(shared_key: RecordKey, rows: Sequence[RecordRow]) -> str:
    operator = str(operator_from_json(json.loads(shared_key.operator))).splitlines()[0]
    timed = {row.key.schedule_digest for row in rows if row.kind == "timing"}
    return f"{operator} on {shared_key.device} has {count_nouns(len(timed), 'timed kernel')}"


def _shorten_reasons(reasons: Sequence[str]) -> Sequence[str]:
    if len(reasons) <= MAX_REASONS:
        return reasons
    return [*reasons[:MAX_REASONS], f"and {len(reasons) - MAX_REASONS} more"]


def _find_device(shared_key: RecordKey, device: Device) -> Device | None:
    """Find the device of a group, for its limits and its prior; None for one that is unknown here."""
    if (shared_key.device, shared_key.clock_regime) == (device.name, device.clock_regime):
        return device
    fixed = _FIXED_CLOCK_PATTERN.fullmatch(shared_key.clock_regime)
    if not shared_key.simulated or fixed is None:
        return None
    try:
        return devices.open(shared_key.device).at_clock(int(fixed[1]))
    except DeviceError:
        return None


def _make_groups(rows: list[RecordRow], device: Device) -> list[MeasuredGroup]:
    """Make the group of some rows of a device; an empty list if they are too few."""
    timed = [t for t in rows_to_trials(rows) if t.ok and t.latency_s]
    if len(timed) < SURROGATE.min_rows:
        return []
    chosen = [
        timed[i] for i in select_training_rows(np.array([t.latency_s for t in timed]), MAX_ROWS_PER_GROUP)
    ]
    together = make_model_inputs(analyse_schedules([t.schedule for t in chosen], device.limits), device.prior)
    name = f"{str(timed[0].schedule.op).splitlines()[0]} on {device.name}"
    latency = np.array([t.latency_s for t in chosen], dtype=np.float64)
    return [MeasuredGroup(name, together, latency, np.array([_get_power_w(t) for t in chosen]))]


def _get_power_w(trial: Trial) -> float:
    return trial.power_w if trial.metered and trial.power_w is not None else float("nan")
