"""How far a model may be trusted: by what models of other jobs were off, jobs left out in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ekc.governor import objective
from ekc.governor.landscape import lower, slower
from ekc.governor.policy import Policy
from ekc.governor.predict.model import BLIND, COUNTERS, Boosted, Row, Trust, coefficients
from ekc.governor.samples import Values

FOLDS = 8
NO_TRUST = Trust((1.0, 1.0), (1.0, 1.0, 1.0))
LEAST_TRUST = 0.02**2
BUDGETS = (0.02, 0.05, 0.1)
"""Slowdowns within which jobs left out are advised."""
GRID = np.linspace(0.55, 1.0, 91)
"""Clocks over the default's."""

Boosters = Callable[[Sequence[Row], Sequence[str]], Mapping[str, Any]]
"""Trains kinds of models on rows."""


@dataclass(frozen=True)
class _Missed:
    """One job by models of others: at ratios of the clock, slowdown and power, as told and as they are."""

    ratio: Values
    slow: Values
    slow_told: Values
    power: Values
    power_told: Values


def trust(rows: Sequence[Row], kind: str, boosters: Boosters) -> Trust:
    """Of models that see counters, or not (`kind`).

    Deviations are those over all clocks, widened by as much as the slowdown at the very clocks that would be
    advised is farther off: what looks best is so in part because it is told too well.
    """
    mine = [r if kind != BLIND else blinded(r) for r in rows]
    jobs = sorted({r.job for r in mine})
    folds = [set(jobs[n::FOLDS]) for n in range(min(FOLDS, len(jobs)))]
    missed = [one for left_out in folds for one in _missed(mine, left_out, kind, boosters)]
    plain = _trust(missed)
    wider = _wider(missed, plain)
    return Trust(tuple(wider * sigma for sigma in plain.time), plain.power)


def blinded(row: Row) -> Row:
    """As a card without counters would have told it."""
    return replace(row, features=(float("nan"),) * len(COUNTERS) + row.features[len(COUNTERS) :])


def _missed(rows: Sequence[Row], left_out: set[str], kind: str, boosters: Boosters) -> Iterator[_Missed]:
    others_only = boosters([r for r in rows if r.job not in left_out], (kind,))
    others = Boosted("", "", dict(others_only), NO_TRUST, NO_TRUST)
    for job in sorted(left_out):
        own = sorted((r for r in rows if r.job == job), key=lambda r: r.ratio)
        ratio, time, energy = np.array([(r.ratio, r.time, r.energy) for r in own]).T
        told = coefficients(ratio, *others.predict(own[0].features, ratio))
        slow, watts = (
            _polynomial(x, c) for x, c in zip((slower(GRID, 1), lower(GRID, 1)), told, strict=True)
        )
        power = energy / time / (energy[-1] / time[-1]) - 1
        truth = (np.interp(GRID, ratio, y) for y in (time / time[-1] - 1, power))
        yield _Missed(GRID, next(truth), slow, next(truth), watts)


def _polynomial(x: Values, coefficients: Sequence[float]) -> Values:
    return np.asarray(sum(c * x**n for n, c in enumerate(coefficients, 1)))


def _trust(missed: Sequence[_Missed]) -> Trust:
    """Deviations of the first two coefficients that explain what was missed, each at its clock."""
    ratio = np.concatenate([m.ratio[:-1] for m in missed])
    time = np.concatenate([(m.slow_told - m.slow)[:-1] for m in missed])
    power = np.concatenate([(m.power_told - m.power)[:-1] for m in missed])
    return Trust(_spread(slower(ratio, 1), time), (*_spread(lower(ratio, 1), power), 1.0))


def _spread(x: Values, off: Values) -> tuple[float, float]:
    """Sigmas (a, b) with off^2 about a^2 x^2 + b^2 x^4 (least squares, none below `LEAST_TRUST`)."""
    rows = np.stack([np.ones(len(x)), x**2], axis=1)
    first, second = np.linalg.lstsq(rows, (off / x) ** 2, rcond=None)[0]
    return max(LEAST_TRUST, float(first)) ** 0.5, max(LEAST_TRUST, float(second)) ** 0.5


def _wider(missed: Sequence[_Missed], plain: Trust) -> float:
    """Root mean square of what was missed at the clocks that would be advised, over what was expected."""
    off = []
    for one in missed:
        x = slower(one.ratio, 1)
        sigma = np.sqrt((plain.time[0] * x) ** 2 + (plain.time[1] * x**2) ** 2)
        saving = 1 - (1 + one.power_told) * (1 + one.slow_told)
        for budget in BUDGETS:
            place = objective.best(Policy(max_slowdown=budget), one.slow_told, saving)
            if place is not None and x[place] > 0:
                off.append((one.slow[place] - one.slow_told[place]) / sigma[place])
    return max(1.0, float(np.sqrt(np.mean(np.square(off))))) if off else 1.0
