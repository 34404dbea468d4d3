"""Rows of simulated jobs, and models trained on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ekc.boosting import train_trees
from ekc.governor.jobs.draw import KINDS, draw
from ekc.governor.jobs.job import Bill, Job, bill
from ekc.governor.jobs.world import SimulatedRun
from ekc.governor.measure import JobEnded, reading
from ekc.governor.predict.model import (
    BLIND,
    COUNTED,
    COUNTERS,
    TARGETS,
    Boosted,
    Row,
    features,
)
from ekc.governor.predict.trust import NO_TRUST, blinded, trust
from ekc.governor.progress import Beat
from ekc.governor.protocols import Settings
from ekc.governor.reading import Pace

WATCH_S = 30.0
COUNT_S = 20.0
SM_RATIOS = np.linspace(0.55, 1.0, 10)
PARAMETERS = {
    # Splits lie midway between clocks that were seen: others split at a clock itself, and a card whose clock
    # is a hair's breadth below that is told the slowdown of the next lower one.
    "tree_method": "exact",
    "max_depth": 4,
    "eta": 0.15,
    "subsample": 0.8,
    "min_child_weight": 4,
    "seed": 7,
}
ROUNDS = 80
SEEDS = range(1000, 1012)
LASTING_S = 600.0


def rows_of(job: Job, seed: int = 1) -> list[Row]:
    """A job watched at the default, and what it costs at other clocks, exactly (its first phase)."""
    run = SimulatedRun(job, seed)
    start, joules = run.now(), run.energy_j()
    samples = run.record(WATCH_S)
    seconds = run.now() - start
    seen = reading(
        Settings(), start, seconds, (run.energy_j() - joules) / seconds, Pace(), samples, Beat("none")
    )
    inputs = features(run.counters(COUNT_S) or {}, seen)
    costs = bill(job)
    clocks = job.card.sm_mhz()
    rows = []
    # A power cap holds the clock below the top: ratios are of what really runs.
    top = int(np.searchsorted(clocks, seen.clock_mhz))
    for ratio in SM_RATIOS:
        place = int(np.abs(clocks - ratio * seen.clock_mhz).argmin())
        rows.append(_row(job, inputs, costs, place, float(clocks[place] / clocks[top])))
    return rows


def _row(job: Job, inputs: tuple[float, ...], costs: Bill, place: int, ratio: float) -> Row:
    time = float(costs.seconds[0, -1, place] / costs.seconds[0, -1, -1])
    energy = float(costs.joules[0, -1, place] / costs.joules[0, -1, -1])
    return Row(job.name, inputs, ratio, time, energy)


def trained(
    card: str,
    rows: Sequence[Row],
    trained_on: str = "simulated jobs",
    going: Callable[[], bool] = lambda: True,
) -> Boosted:
    """The models of one card. How far they may be trusted is told by jobs left out in turn.

    Raises `JobEnded` soon after `going` says no: nobody waits for a model any more.
    """

    def boosters(some: Sequence[Row], kinds: Sequence[str]) -> dict[str, Any]:
        return _boosters(some, kinds, going)

    trusts = (trust(rows, kind, boosters) for kind in (COUNTED, BLIND))
    return Boosted(card, trained_on, boosters(rows, (COUNTED, BLIND)), *trusts)


def simulated(card: str, going: Callable[[], bool] = lambda: True) -> Boosted:
    """Trained on simulated jobs of a simulated card, the same every time; four to five seconds of a core.

    `going` as in `trained`.
    """
    rows: list[Row] = []
    for seed in SEEDS:
        for kind in KINDS:
            _go_on(going)
            rows += rows_of(draw(seed, kind, card, LASTING_S))
    return trained(card, rows, f"{len(SEEDS)} simulated jobs of each kind", going)


def _go_on(going: Callable[[], bool]) -> None:
    if not going():
        raise JobEnded


def leave_one_out(card: str, rows: Sequence[Row], counted: bool = True) -> dict[str, list[float]]:
    """Absolute errors of time and energy (shares) over the SM clock, each job predicted by models of the
    others; without counters if not `counted`."""
    errors: dict[str, list[float]] = {"time": [], "energy": []}
    for job in sorted({r.job for r in rows}):
        others = _boosters([r for r in rows if r.job != job], (COUNTED if counted else BLIND,))
        model = Boosted(card, "", others, NO_TRUST, NO_TRUST)
        own = [r if counted else blinded(r) for r in rows if r.job == job]
        time, energy = model.predict(own[0].features, np.array([r.ratio for r in own]))
        errors["time"] += [float(abs(t / r.time - 1)) for t, r in zip(time, own, strict=True)]
        errors["energy"] += [float(abs(e / r.energy - 1)) for e, r in zip(energy, own, strict=True)]
    return errors


def _boosters(
    rows: Sequence[Row], kinds: Sequence[str], going: Callable[[], bool] = lambda: True
) -> dict[str, Any]:
    """By name of target; once more from signals alone, as not every card lets its counters be read."""
    boosters = {}
    table = np.array([(*r.features, r.ratio) for r in rows])
    for target in TARGETS:
        logs = np.log([getattr(r, target.removeprefix("sm_")) for r in rows])
        for kind in kinds:
            _go_on(going)
            columns = table[:, len(COUNTERS) :] if kind == BLIND else table
            boosters[kind + target] = train_trees(PARAMETERS, columns, np.array(logs), ROUNDS)
    return boosters
