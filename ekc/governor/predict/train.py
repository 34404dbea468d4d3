"""Rows of simulated jobs, and models trained on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ekc.boosting import train_trees
from ekc.governor.measure import JobEnded, make_reading
from ekc.governor.predict.model import (
    COUNTERS,
    TARGETS,
    WITH_COUNTERS,
    WITHOUT_COUNTERS,
    BoostedModel,
    TrainingRow,
    build_features,
)
from ekc.governor.predict.trust import UNIT_SPREAD, estimate_spread, remove_counters
from ekc.governor.progress import ProgressSource
from ekc.governor.protocols import Settings
from ekc.governor.readings import ProgressRate
from ekc.governor.simulation.job import PhaseCosts, SimulatedJob, compute_costs
from ekc.governor.simulation.random_jobs import JOB_KINDS, sample_job
from ekc.governor.simulation.run import SimulatedRun

WATCH_S = 30.0
COUNTER_WINDOW_S = 20.0
SM_RATIOS = np.linspace(0.55, 1.0, 10)
BOOSTING_PARAMETERS = {
    # Splits lie midway between clocks that were seen: others split at a clock itself, and a card whose clock
    # is a hair's breadth below that is told the slowdown of the next lower one.
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
    """A job watched at the default, and what it costs at other clocks, exactly (its first phase)."""
    run = SimulatedRun(job, seed)
    start, joules = run.now(), run.read_energy_j()
    samples = run.record(WATCH_S)
    seconds = run.now() - start
    seen = make_reading(
        Settings(),
        start,
        seconds,
        (run.read_energy_j() - joules) / seconds,
        ProgressRate(),
        samples,
        ProgressSource("none"),
    )
    inputs = build_features(run.read_counters(COUNTER_WINDOW_S) or {}, seen)
    costs = compute_costs(job)
    clocks = job.card.list_sm_clocks_mhz()
    rows = []
    # A power cap holds the clock below the top: ratios are of what really runs.
    top = int(np.searchsorted(clocks, seen.clock_mhz))
    for ratio in SM_RATIOS:
        place = int(np.abs(clocks - ratio * seen.clock_mhz).argmin())
        rows.append(_build_row(job, inputs, costs, place, float(clocks[place] / clocks[top])))
    return rows


def _build_row(
    job: SimulatedJob, inputs: tuple[float, ...], costs: PhaseCosts, place: int, ratio: float
) -> TrainingRow:
    time = float(costs.seconds[0, -1, place] / costs.seconds[0, -1, -1])
    energy = float(costs.joules[0, -1, place] / costs.joules[0, -1, -1])
    return TrainingRow(job.name, inputs, ratio, time, energy)


def train_model(
    card: str,
    rows: Sequence[TrainingRow],
    trained_on: str = "simulated jobs",
    should_continue: Callable[[], bool] = lambda: True,
) -> BoostedModel:
    """The models of one card. How far they may be trusted is told by jobs left out in turn.

    Raises `JobEnded` soon after `going` says no: nobody waits for a model any more.
    """

    def boosters(some: Sequence[TrainingRow], kinds: Sequence[str]) -> dict[str, Any]:
        return _train_boosters(some, kinds, should_continue)

    trusts = (estimate_spread(rows, kind, boosters) for kind in (WITH_COUNTERS, WITHOUT_COUNTERS))
    return BoostedModel(card, trained_on, boosters(rows, (WITH_COUNTERS, WITHOUT_COUNTERS)), *trusts)


def train_simulated_model(card: str, should_continue: Callable[[], bool] = lambda: True) -> BoostedModel:
    """Trained on simulated jobs of a simulated card, the same every time; four to five seconds of a core.

    `going` as in `trained`.
    """
    rows: list[TrainingRow] = []
    for seed in TRAINING_SEEDS:
        for kind in JOB_KINDS:
            _raise_if_stopped(should_continue)
            rows += build_rows(sample_job(seed, kind, card, JOB_SECONDS))
    return train_model(card, rows, f"{len(TRAINING_SEEDS)} simulated jobs of each kind", should_continue)


def _raise_if_stopped(should_continue: Callable[[], bool]) -> None:
    if not should_continue():
        raise JobEnded


def leave_one_out(
    card: str, rows: Sequence[TrainingRow], has_counters: bool = True
) -> dict[str, list[float]]:
    """Absolute errors of time and energy (shares) over the SM clock, each job predicted by models of the
    others; without counters if not `counted`."""
    errors: dict[str, list[float]] = {"time": [], "energy": []}
    for job in sorted({r.job for r in rows}):
        others = _train_boosters(
            [r for r in rows if r.job != job], (WITH_COUNTERS if has_counters else WITHOUT_COUNTERS,)
        )
        model = BoostedModel(card, "", others, UNIT_SPREAD, UNIT_SPREAD)
        own = [r if has_counters else remove_counters(r) for r in rows if r.job == job]
        time, energy = model.predict(own[0].features, np.array([r.ratio for r in own]))
        errors["time"] += [float(abs(t / r.time - 1)) for t, r in zip(time, own, strict=True)]
        errors["energy"] += [float(abs(e / r.energy - 1)) for e, r in zip(energy, own, strict=True)]
    return errors


def _train_boosters(
    rows: Sequence[TrainingRow], kinds: Sequence[str], should_continue: Callable[[], bool] = lambda: True
) -> dict[str, Any]:
    """By name of target; once more from signals alone, as not every card lets its counters be read."""
    boosters = {}
    table = np.array([(*r.features, r.ratio) for r in rows])
    for target in TARGETS:
        logs = np.log([getattr(r, target.removeprefix("sm_")) for r in rows])
        for kind in kinds:
            _raise_if_stopped(should_continue)
            columns = table[:, len(COUNTERS) :] if kind == WITHOUT_COUNTERS else table
            boosters[kind + target] = train_trees(
                BOOSTING_PARAMETERS, columns, np.array(logs), BOOSTING_ROUNDS
            )
    return boosters
