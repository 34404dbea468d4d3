"""Rows of simulated jobs, and models trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ekc.governor.jobs.draw import KINDS, draw
from ekc.governor.jobs.job import Bill, Job, bill
from ekc.governor.jobs.world import SimulatedRun
from ekc.governor.measure import reading
from ekc.governor.predict.model import (
    BLIND,
    COUNTED,
    COUNTERS,
    TARGETS,
    Boosted,
    Row,
    Trust,
    coefficients,
    features,
)
from ekc.governor.protocols import Settings
from ekc.governor.reading import Pace
from ekc.governor.samples import Values

WATCH_S = 30.0
COUNT_S = 20.0
SM_RATIOS = np.linspace(0.55, 1.0, 10)
PARAMETERS = {"max_depth": 4, "eta": 0.15, "subsample": 0.8, "min_child_weight": 4, "nthread": 1, "seed": 7}
ROUNDS = 80
FOLDS = 8
SEEDS = range(1000, 1006)
LASTING_S = 600.0
NO_TRUST = Trust((1.0, 1.0), (1.0, 1.0, 1.0))
LEAST_TRUST = 0.02**2


def rows_of(job: Job, seed: int = 1) -> list[Row]:
    """A job watched at the default, and what it costs at other clocks, exactly (its first phase)."""
    run = SimulatedRun(job, seed)
    start, joules = run.now(), run.energy_j()
    samples = run.record(WATCH_S)
    seconds = run.now() - start
    seen = reading(Settings(), start, seconds, (run.energy_j() - joules) / seconds, Pace(), samples)
    inputs = features(run.counters(COUNT_S) or {}, seen)
    costs = bill(job)
    clocks = job.card.sm_mhz()
    rows = []
    # A power cap holds the clock below the top: ratios are of what really runs.
    top = int(np.searchsorted(clocks, seen.clock_mhz))
    for ratio in SM_RATIOS:
        place = int(np.abs(clocks - ratio * seen.clock_mhz).argmin())
        rows.append(_row(job, inputs, costs, False, (-1, place), float(clocks[place] / clocks[top])))
    for place, clock in enumerate(job.card.memory_mhz):
        if len(job.card.memory_mhz) > 1:
            rows.append(_row(job, inputs, costs, True, (place, -1), clock / job.card.memory_mhz[-1]))
    return rows


def _row(
    job: Job, inputs: tuple[float, ...], costs: Bill, memory: bool, place: tuple[int, int], ratio: float
) -> Row:
    time = float(costs.seconds[0][place] / costs.seconds[0, -1, -1])
    energy = float(costs.joules[0][place] / costs.joules[0, -1, -1])
    return Row(job.name, inputs, memory, ratio, time, energy)


def trained(card: str, rows: Sequence[Row], trained_on: str = "simulated jobs") -> Boosted:
    """The models of one card. How far they may be trusted is told by jobs left out in turn."""
    jobs = sorted({r.job for r in rows if not r.memory})
    folds = [set(jobs[n::FOLDS]) for n in range(min(FOLDS, len(jobs)))]
    off = [missed for left_out in folds for missed in _missed(rows, left_out)]
    return Boosted(card, trained_on, _boosters(rows), _trust(off))


def simulated(card: str) -> Boosted:
    """Trained on simulated jobs of a simulated card, the same every time; takes about two seconds."""
    jobs = (draw(seed, kind, card, LASTING_S) for kind in KINDS for seed in SEEDS)
    return trained(
        card, [row for job in jobs for row in rows_of(job)], f"{len(SEEDS)} simulated jobs of each kind"
    )


def leave_one_out(card: str, rows: Sequence[Row], counted: bool = True) -> dict[str, list[float]]:
    """Absolute errors of time and energy (shares) over the SM clock, each job predicted by models of the
    others; without counters if not `counted`."""
    errors: dict[str, list[float]] = {"time": [], "energy": []}
    mine = [r for r in rows if not r.memory]
    for job in sorted({r.job for r in mine}):
        others = _boosters([r for r in mine if r.job != job], (COUNTED if counted else BLIND,))
        model = Boosted(card, "", others, NO_TRUST)
        own = [r if counted else _uncounted(r) for r in mine if r.job == job]
        time, energy = model.predict(own[0].features, np.array([r.ratio for r in own]), "sm")
        errors["time"] += [float(abs(t / r.time - 1)) for t, r in zip(time, own, strict=True)]
        errors["energy"] += [float(abs(e / r.energy - 1)) for e, r in zip(energy, own, strict=True)]
    return errors


def _boosters(rows: Sequence[Row], kinds: Sequence[str] = (COUNTED, BLIND)) -> dict[str, Any]:
    """By name of target; once more from signals alone, as not every card lets its counters be read."""
    import xgboost

    boosters = {}
    for target in TARGETS:
        knob, what = target.split("_")
        mine = [r for r in rows if r.memory == (knob == "memory")]
        if not mine:
            continue
        logs = np.log([getattr(r, what) for r in mine])
        table = np.array([(*r.features, r.ratio) for r in mine])
        for kind in kinds:
            columns = table[:, len(COUNTERS) :] if kind == BLIND else table
            boosters[kind + target] = xgboost.train(PARAMETERS, xgboost.DMatrix(columns, logs), ROUNDS)
    return boosters


def _uncounted(row: Row) -> Row:
    """As a card without counters would have told it."""
    blind = (float("nan"),) * len(COUNTERS)
    return replace(row, features=blind + row.features[len(COUNTERS) :])


@dataclass(frozen=True)
class _Missed:
    """What models of other jobs were off at a ratio of the clock: slowdown, and power as a share."""

    ratio: float
    time: float
    power: float


def _missed(rows: Sequence[Row], left_out: set[str]) -> list[_Missed]:
    mine = [r for r in rows if not r.memory]
    boosters = _boosters([r for r in mine if r.job not in left_out], (COUNTED,))
    others = Boosted("", "", boosters, NO_TRUST)
    missed = []
    for job in sorted(left_out):
        own = sorted((r for r in mine if r.job == job), key=lambda r: r.ratio)
        ratio, time, energy = np.array([(r.ratio, r.time, r.energy) for r in own]).T
        told = coefficients(ratio, *others.predict(own[0].features, ratio, "sm"))
        slow, watts = (_polynomial(x, c) for x, c in zip((1 / ratio - 1, 1 - ratio), told, strict=True))
        power = energy / time / (energy[-1] / time[-1]) - 1
        off = zip(ratio, slow - (time / time[-1] - 1), watts - power, strict=True)
        missed += [_Missed(*(float(v) for v in one)) for one in off]
    return missed


def _polynomial(x: Values, coefficients: Sequence[float]) -> Values:
    return np.asarray(sum(c * x**n for n, c in enumerate(coefficients, 1)))


def _trust(missed: Sequence[_Missed]) -> Trust:
    """Deviations of the first two coefficients that explain what was missed, each at its clock."""
    ratio, time, power = np.array([(m.ratio, m.time, m.power) for m in missed if m.ratio < 1]).T
    return Trust(_spread(1 / ratio - 1, time), (*_spread(1 - ratio, power), 1.0))


def _spread(x: Values, off: Values) -> tuple[float, float]:
    """Sigmas (a, b) with off^2 about a^2 x^2 + b^2 x^4 (least squares, none below `LEAST_TRUST`)."""
    rows = np.stack([np.ones(len(x)), x**2], axis=1)
    first, second = np.linalg.lstsq(rows, (off / x) ** 2, rcond=None)[0]
    return max(LEAST_TRUST, float(first)) ** 0.5, max(LEAST_TRUST, float(second)) ** 0.5
