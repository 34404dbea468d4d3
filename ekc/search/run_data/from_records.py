"""From record files to the data of a report: one set of figures for each operator and each conditions.

A record file has no runs in it: rows of several runs with equal conditions add up. Nor has it the model card,
the refused genomes, the seed, or the predictions that a run made. The predictions shown are made afterwards,
each by a model that learned from the other schedules of the set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ekc import devices
from ekc.devices.device import Device, Peaks
from ekc.errors import DeviceError, InvalidInput
from ekc.ir.operator import Operator
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.report.run_data import RunData
from ekc.search.cost_model.feature_table import FEATURE_NAMES
from ekc.search.cost_model.latency_law import fit_two_numbers
from ekc.search.data.candidate import Candidate
from ekc.search.data.result import (
    UNKNOWN_ROOF,
    DeviceInfo,
    MeasurementCost,
    PredictionRecord,
    TuningData,
    compute_roofline_bound,
    estimate_metering_s,
)
from ekc.search.data.selection import SelectionRule
from ekc.search.data.trial import Trial, Trials
from ekc.search.database.conditions import RecordConditions
from ekc.search.database.database import RecordStore, to_canonical_json
from ekc.search.database.measured_set import MeasuredSet, make_measured_set
from ekc.search.database.query import choose_finalists, read_operator, rows_to_candidates
from ekc.search.database.rows import RecordRow, group_rows
from ekc.search.explain.schedule_model import FOLDS, MIN_METERED, ScheduleModel, assign_folds
from ekc.search.run_data.from_result import collect_run

PREDICTED_AFTERWARDS = f"afterwards, by a model of the other schedules ({FOLDS} folds)"
NOT_STORED = "a record file does not hold it"
RecordKeyPair = tuple[str, RecordConditions]


@dataclass(frozen=True)
class RecordedRuns:
    """The data of the sets in some record files, and a line for each set without a working schedule."""

    runs: tuple[RunData, ...]
    failed: tuple[str, ...]


def collect_records(
    files: Sequence[str | Path], rule: SelectionRule, op: Operator | None = None, target: str | None = None
) -> RecordedRuns:
    """Collect the sets of all files, of one operator and one device if given.

    Raises `RecordError` for a file, `DeviceError` for the target, and `InvalidInput` if no set has a working
    schedule.
    """
    device = None if target is None else devices.open(target)
    groups, kept = _group_rows(files), []
    names = ", ".join(map(str, files))
    for (text, there), rows in groups.items():
        is_wanted = op is None or text == to_canonical_json(op.to_json())
        if is_wanted and (device is None or _is_same_device(there, device)):
            kept.append((read_operator(text, names), there, rows))
    if not kept:
        raise InvalidInput(_describe_absence(names, groups, op, device))
    found = [_make_data(some, there, rows, rule, _open_device(there, device)) for some, there, rows in kept]
    runs = tuple(run for run in found if isinstance(run, RunData))
    failed = tuple(line for line in found if isinstance(line, str))
    if not runs:
        raise InvalidInput(f"{names}: no schedule works; {'; '.join(failed)}")
    return RecordedRuns(runs, failed)


def _group_rows(files: Sequence[str | Path]) -> dict[RecordKeyPair, list[RecordRow]]:
    """Group the rows of all files by operator and conditions, oldest first."""
    rows: list[RecordRow] = []
    for file in files:
        with RecordStore(file, create=False) as store:
            rows += store.read_rows()
    return group_rows(sorted(rows, key=lambda row: row.created))


def _describe_absence(
    names: str, groups: dict[RecordKeyPair, list[RecordRow]], op: Operator | None, device: Device | None
) -> str:
    """Describe in one line why nothing was found, and what the files hold."""
    if not groups:
        return f"{names} holds no measurement; ekc tune --records adds some"
    held = dict.fromkeys(
        f"{str(read_operator(text, names)).splitlines()[0]} on {there.label}" for text, there in groups
    )
    listed = "; ".join([*held][:3]) + (f"; and {len(held) - 3} more" if len(held) > 3 else "")
    wanted = str(op).splitlines()[0] if op is not None else "nothing"
    where = f" on {device.label}" if device is not None else ""
    return f"{names} holds {'no ' if op is not None else ''}{wanted}{where}; it holds {listed}"


def _is_same_device(there: RecordConditions, device: Device) -> bool:
    return (there.device, there.simulated) == (device.name, device.simulated)


def _open_device(there: RecordConditions, device: Device | None) -> Device | None:
    """Open the device of some conditions, for its ceilings and its prior; None where it is not at hand.
    `device`: one that is open."""
    if device is not None and _is_same_device(there, device):
        return device
    suffix = "@no-residual" if "no residual" in there.driver else ""
    try:
        found = devices.open(f"{there.device}{suffix}" if there.simulated else "auto")
    except DeviceError:
        return None
    return found if _is_same_device(there, found) else None


def _make_data(
    op: Operator,
    there: RecordConditions,
    rows: Sequence[RecordRow],
    rule: SelectionRule,
    device: Device | None,
) -> RunData | str:
    """Make the data of one set; a line that says why, if no schedule works."""
    candidates = rows_to_candidates(rows)
    working = choose_finalists(rows) or [c.to_trial() for c in candidates if c.ok]
    name = f"{str(op).splitlines()[0]} on {there.label}"
    if not working:
        first = next(
            (" ".join(c.status.split()) for c in candidates if c.status != "ok"), "nothing was timed"
        )
        return f"{name}: {len(candidates)} schedules, none works (first: {first})"
    best, fastest = rule.select_winners(working)
    naive = make_naive_schedule(op)
    times = _sum_metering_s(rows)
    by_digest = {
        c.schedule.digest: replace(c.to_trial(), metering_s=times.get(c.schedule.digest)) for c in candidates
    }
    baseline = by_digest.pop(naive.digest, None) or Trial(naive, "naive", "not measured")
    trials = Trials(by_digest.values())
    measured = make_measured_set("", candidates, device) if device is not None else None
    peaks = None if device is None else device.peaks
    data = TuningData(
        op=op,
        device=_make_device_info(there, device),
        objective=rule.objective,
        max_slowdown=rule.max_slowdown,
        best=best,
        fastest=fastest,
        baseline=baseline,
        trials=trials,
        seconds=math.nan,
        roof=UNKNOWN_ROOF if peaks is None else compute_roofline_bound(op, peaks),
        spent=_sum_cost(rows, peaks),
        predictions=_predict_afterwards(measured, device, naive.digest),
        seed=None,
        finished=rows[-1].created,
        toolchain=there.nvrtc,
        ekc_version=", ".join(dict.fromkeys(row.ekc_version for row in rows)),
        features=None if measured is None else _align_features(trials, measured),
    )
    run = collect_run(data, predicted=PREDICTED_AFTERWARDS)
    absent = dict.fromkeys(("model card", "refused genomes", "seed"), NOT_STORED)
    return replace(run, missing={**run.missing, **absent})


def _make_device_info(there: RecordConditions, device: Device | None) -> DeviceInfo:
    return DeviceInfo(
        name=there.device,
        simulated=there.simulated,
        label=there.label if device is None else device.label,
        clock_regime=there.clock_regime,
        arch="sm_80" if device is None else device.arch,
        driver=there.driver,
        data_policy=there.data_policy,
        peaks=None if device is None else device.peaks,
        limits=None if device is None else device.limits,
    )


def _sum_metering_s(rows: Sequence[RecordRow]) -> dict[str, float]:
    """Sum the seconds of metering until each schedule was first metered, by digest."""
    found: dict[str, float] = {}
    spent = 0.0
    for row in rows:
        if row.kind == "metering" and row.key.window_s is not None:
            spent += estimate_metering_s(row.key.window_s)
            found.setdefault(row.key.schedule_digest, spent)
    return found


def _sum_cost(rows: Sequence[RecordRow], peaks: Peaks | None) -> MeasurementCost:
    """Sum the cost of all measurements; timings count with the power cap, if it is known."""
    cost = MeasurementCost()
    for row in rows:
        if row.kind == "timing":
            cost.add_timing(row.to_timing(), 0.0 if peaks is None else peaks.board_power_w)
        elif row.kind == "metering":
            cost.add_metering(row.to_metering())
    return cost


def _align_features(trials: Sequence[Trial], measured: MeasuredSet) -> NDArray[np.float32]:
    """Features of the trials; NaN for those that failed."""
    known = {c.digest: c.features for c in measured.candidates}
    unknown = np.full(len(FEATURE_NAMES), np.nan, np.float32)
    found = [known.get(t.digest, unknown) for t in trials]
    return np.array(found, dtype=np.float32).reshape(len(trials), len(FEATURE_NAMES))


SEED = 0
"""Seed of the folds."""


def _predict_afterwards(
    measured: MeasuredSet | None, device: Device | None, naive: str
) -> tuple[PredictionRecord, ...]:
    """Predict the energy of each metered schedule by models of the others, from its measured latency. Without
    the naive schedule, which no search tries. None can be predicted without a device."""
    if measured is None or device is None:
        return ()
    measured = measured.exclude([naive])
    if measured.is_metered.sum() < MIN_METERED:
        return ()
    fold = assign_folds(measured.is_metered, SEED)
    records: list[PredictionRecord] = []
    for n in range(FOLDS):
        training, _ = measured.select(fold != n)
        tested, quantities = measured.select((fold == n) & measured.is_metered)
        if tested:
            watts = np.exp(ScheduleModel(training, device.prior).predict(quantities).log_power)
            records += _make_records(training, tested, watts)
    return tuple(records)


def _make_records(
    training: Sequence[Candidate], tested: Sequence[Candidate], watts: NDArray[np.float64]
) -> list[PredictionRecord]:
    metered = [c for c in training if c.metered]
    known_s, known_w = np.array([(c.latency_s, c.power_w) for c in metered]).T
    two_numbers = fit_two_numbers(known_s, known_w)
    constant_w = float(np.median(known_w))
    found = []
    for c, predicted_w in zip(tested, watts.tolist(), strict=True):
        line_w = float(np.exp(two_numbers.predict_log_power(np.array([c.latency_s])))[0])
        interval = c.to_trial().energy_interval_j
        assert interval is not None  # it is metered
        joules = [w * c.latency_s for w in (predicted_w, constant_w, line_w)]
        found.append(
            PredictionRecord(
                digest=c.schedule.digest,
                predicted_j=joules[0],
                std=math.nan,
                constant_j=joules[1],
                two_number_j=joules[2],
                latency_s=c.latency_s,
                measured_j=c.energy_j,
                measured_interval_j=interval,
            )
        )
    return found
