"""What kernels on file teach of operators and devices that they are not of: a better prior.

The prior errs in ways that its features show, and that other shapes and devices share. Trees learn what it
gets wrong, against the middle of each operator and device, for constant factors do not carry over and a run
finds its own at once. How far they are believed is measured: each group is predicted by the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ekc.devices.base import Peaks
from ekc.search.models import prior
from ekc.search.models.analysed import Analysed
from ekc.search.models.trees import MIN_ROWS, ResidualModel

Array = NDArray[np.float64]

ALONE = 0.5
"""How far one group is believed, which no other can test."""


@dataclass(frozen=True, eq=False)
class Group:
    """Measured kernels of one operator on one device. Arrays run over the kernels."""

    name: str
    seen: Analysed
    latency_s: Array
    power_w: Array
    """NaN where nobody metered."""
    peaks: Peaks

    @property
    def pace(self) -> Array:
        """Log of the latency over what the prior expects."""
        return np.log(self.latency_s / self.seen.latency_s)

    @property
    def strain(self) -> Array:
        """Log of the watts, had the kernel run at the pace of the prior, over what the prior expects."""
        standby = self.seen.standby_w(self.peaks)
        at_prior = prior.paced(self.power_w, -self.pace, standby)
        return np.log(np.maximum(at_prior, standby) / self.seen.power_w)


@dataclass(frozen=True, eq=False)
class Lesson:
    """What some groups teach of one figure."""

    trees: ResidualModel
    trust: float
    """How much of what the trees said of a group that they had not seen was so: 0 to 1."""
    rows: int

    def of(self, rows: NDArray[np.float32]) -> Array:
        """Log of the factor that the prior is off by, for feature rows."""
        if not self.trust:
            return np.zeros(len(rows))
        return np.asarray(self.trust * np.log(self.trees.predict(rows, np.ones(len(rows)))))


@dataclass(frozen=True, eq=False)
class Lessons:
    """Lessons of both figures, for a device with these peaks."""

    latency: Lesson
    power: Lesson
    groups: tuple[str, ...]
    peaks: Peaks

    def informed(self, seen: Analysed) -> Analysed:
        """The same schedules, expected to take and to draw what these lessons say."""
        pace, strain = self.latency.of(seen.features), self.power.of(seen.features)
        # Less than the board draws anyway would be less than no work, and at a quick pace less than no watts.
        standby = seen.standby_w(self.peaks)
        watts = prior.paced(np.maximum(seen.power_w * np.exp(strain), standby), pace, standby)
        return replace(seen, latency_s=seen.latency_s * np.exp(pace), power_w=watts)

    def __str__(self) -> str:
        return (
            f"{self.latency.rows} timed and {self.power.rows} metered kernels of {', '.join(self.groups)}; "
            f"believed {self.latency.trust:.0%} of what they say of latency, {self.power.trust:.0%} of power"
        )


def lessons(groups: Sequence[Group], peaks: Peaks, seed: int) -> Lessons:
    """Learn from at least one group."""
    timed = [_Taught(g.seen.features, g.pace, g.latency_s) for g in groups]
    metered = []
    for g in groups:
        known = np.isfinite(g.power_w)
        if known.sum() >= MIN_ROWS:
            joules = (g.latency_s * g.power_w)[known]
            metered.append(_Taught(g.seen.features[known], g.strain[known], joules))
    return Lessons(_lesson(timed, seed), _lesson(metered, seed), tuple(g.name for g in groups), peaks)


@dataclass(frozen=True, eq=False)
class _Taught:
    """Rows of one group, what the prior missed there against the group's middle, and how good each is."""

    rows: NDArray[np.float32]
    missed: Array
    merit: Array

    @property
    def apart(self) -> Array:
        return self.missed - np.median(self.missed)


def _lesson(taught: Sequence[_Taught], seed: int) -> Lesson:
    if not taught:
        return Lesson(ResidualModel(seed), 0.0, 0)
    return Lesson(_fitted(taught, seed), _trust(taught, seed), sum(len(t.rows) for t in taught))


def _fitted(taught: Sequence[_Taught], seed: int) -> ResidualModel:
    trees = ResidualModel(seed)
    for t in taught:
        merits = t.merit / t.merit.min()
        for row, apart, merit in zip(t.rows, t.apart.tolist(), merits.tolist(), strict=True):
            trees.add(row, 1.0, float(np.exp(apart)), merit)
    trees.fit()
    return trees


def _trust(taught: Sequence[_Taught], seed: int) -> float:
    """The slope of what was missed over what the other groups said of it, the good rows weighing most."""
    if len(taught) < 2:
        return ALONE
    together = spread = 0.0
    for i, own in enumerate(taught):
        trees = _fitted([*taught[:i], *taught[i + 1 :]], seed)
        said = np.log(trees.predict(own.rows, np.ones(len(own.rows))))
        weights = (own.merit.min() / own.merit) ** trees.sharpness
        weights = weights / weights.sum()
        said = said - weights @ said
        together += float(weights @ (said * own.missed))
        spread += float(weights @ (said * said))
    return float(np.clip(together / spread, 0.0, 1.0)) if spread else 0.0
