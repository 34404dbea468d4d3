"""Training rows from simulated jobs, and boosted trees trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.governor.counted_run import CountedRun
from benchmarks.governor.predict.cross_validation import UNIT_SPREAD, estimate_spread, remove_counters
from benchmarks.governor.predict.model import (
    COUNTERS,
    TARGETS,
    WITH_COUNTERS,
    WITHOUT_COUNTERS,
    BoostedModel,
    TrainingRow,
    build_features,
)
from ekc.governor.job_meter import make_reading
from ekc.governor.progress_rate import ProgressSource
from ekc.governor.protocols import Settings
from ekc.governor.readings import ProgressRate
from ekc.governor.simulation.random_jobs import JOB_KINDS, sample_job
from ekc.governor.simulation.simulated_run import PhaseCosts, SimulatedJob, compute_costs
from ekc.search.cost_model.xgboost_model import train_trees

WATCH_S = 30.0
"""Seconds of sensor readings at the default clock."""
COUNTER_WINDOW_S = 20.0
SM_RATIOS = np.linspace(0.55, 1.0, 10)
BOOSTING_PARAMETERS = {
    # Exact splits are midway between two clocks of the training rows. Other methods split at a clock itself;
    # a card whose clock is slightly below it would get the slowdown of the next lower one.
    "tree_method": "exact",
    "max_depth": 4,
    "eta": 0.15,
    "subsample": 0.8,
    "min_child_weight": 4,
    "seed": 7,
}
BOOSTING_ROUNDS = 80
TRAINING_SEEDS = range(1000, 1012)
JOB_SECONDS = 600.0


def build_rows(job: SimulatedJob, seed: int = 1) -> list[TrainingRow]:
    """Rows of a job: readings at the default clock, exact costs of its first phase at the other clocks."""
    run = CountedRun(job, seed)
    start, joules = run.now(), run.read_energy_j()
    samples = run.record(WATCH_S)
    seconds = run.now() - start
    reading = make_reading(
        Settings(),
        start,
        seconds,
        (run.read_energy_j() - joules) / seconds,
        ProgressRate(),
        samples,
        ProgressSource("none"),
    )
    inputs = build_features(run.read_counters(COUNTER_WINDOW_S) or {}, reading)
    costs = compute_costs(job)
    clocks = job.card.list_sm_clocks_mhz()
    rows = []
    # A power cap can keep the clock below the top one: ratios are relative to the clock that really runs.
    top = int(np.searchsorted(clocks, reading.clock_mhz))
    for ratio in SM_RATIOS:
        place = int(np.abs(clocks - ratio * reading.clock_mhz).argmin())
        rows.append(_build_row(job, inputs, costs, place, float(clocks[place] / clocks[top])))
    return rows


def _build_row(
    job: SimulatedJob, inputs: tuple[float, ...], costs: PhaseCosts, place: int, ratio: float
) -> TrainingRow:
    time = float(costs.seconds[0, -1, place] / costs.seconds[0, -1, -1])
    energy = float(costs.joules[0, -1, place] / costs.joules[0, -1, -1])
    return TrainingRow(job.name, inputs, ratio, time, energy)


def train_model(rows: Sequence[TrainingRow], trained_on: str = "simulated jobs") -> BoostedModel:
    """Trees of one card; their errors are estimated by cross-validation over jobs."""
    kinds = (WITH_COUNTERS, WITHOUT_COUNTERS)
    spreads = (estimate_spread(rows, kind, _train_boosters) for kind in kinds)
    return BoostedModel(trained_on, _train_boosters(rows, kinds), *spreads)


def train_simulated_model(card: str) -> BoostedModel:
    """Trees trained on simulated jobs of a simulated card; deterministic, four to five seconds of one
    core."""
    rows: list[TrainingRow] = []
    for seed in TRAINING_SEEDS:
        for kind in JOB_KINDS:
            rows += build_rows(sample_job(seed, kind, card, JOB_SECONDS))
    return train_model(rows, f"{len(TRAINING_SEEDS)} simulated jobs of each kind")


def leave_one_out(rows: Sequence[TrainingRow], has_counters: bool = True) -> dict[str, list[float]]:
    """Absolute relative errors of time and energy, each job predicted by trees trained on the other jobs.

    `has_counters`: whether the trees get counters beside the sensor readings.
    """
    errors: dict[str, list[float]] = {"time": [], "energy": []}
    for job in sorted({r.job for r in rows}):
        others = _train_boosters(
            [r for r in rows if r.job != job], (WITH_COUNTERS if has_counters else WITHOUT_COUNTERS,)
        )
        model = BoostedModel("", others, UNIT_SPREAD, UNIT_SPREAD)
        job_rows = [r if has_counters else remove_counters(r) for r in rows if r.job == job]
        time, energy = model.predict(job_rows[0].features, np.array([r.ratio for r in job_rows]))
        errors["time"] += [float(abs(t / r.time - 1)) for t, r in zip(time, job_rows, strict=True)]
        errors["energy"] += [float(abs(e / r.energy - 1)) for e, r in zip(energy, job_rows, strict=True)]
    return errors


def _train_boosters(rows: Sequence[TrainingRow], kinds: Sequence[str]) -> dict[str, Any]:
    """XGBoost models by name of target, for each kind: with counters, and without, as not every card permits
    them."""
    boosters = {}
    table = np.array([(*r.features, r.ratio) for r in rows])
    for target in TARGETS:
        logs = np.log([getattr(r, target.removeprefix("sm_")) for r in rows])
        for kind in kinds:
            columns = table[:, len(COUNTERS) :] if kind == WITHOUT_COUNTERS else table
            boosters[kind + target] = train_trees(
                BOOSTING_PARAMETERS, columns, np.array(logs), BOOSTING_ROUNDS
            )
    return boosters
