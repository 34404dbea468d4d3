"""GPOEO's search over the SM clock: bracket by a tenth of the gears, golden section, cubic smoothing.

Rebuilt from a description of the authors' program (2021). Which side is searched depends on how slow the
first gear is; every point is read once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ekc.governor.baselines.rules import Point, Rule
from ekc.governor.samples import Values

GOLDEN = (1 + 5**0.5) / 2
TRIES = 5
CLOSE = 7
"""Gears: a bracket narrower than that is left."""
ENOUGH = 0.75
"""Of the default's score: below, the bracket goes no further down."""


class Bracketing:
    """One search; `at` reads the job at the place of a gear, and `seen` keeps what it told."""

    def __init__(self, gears: Values, rule: Rule, default: Point, at: Callable[[int], Point]) -> None:
        self._gears = gears
        self._rule = rule
        self._default = default
        self._read = at
        self.seen: dict[int, Point] = {}

    def search(self, start: int) -> int:
        """Place of the choice."""
        slow = self._at(start).slowdown(self._default)
        radius = max(1, len(self._gears) // 10)
        low, high = start, start
        if slow <= 1.2 * self._rule.limit:
            low = self._bracket(start, -radius)
        if slow >= 0.8 * self._rule.limit:
            high = self._bracket(start, radius)
        self._golden(low, high)
        return self._smoothed()

    def _at(self, place: int) -> Point:
        if place not in self.seen:
            self.seen[place] = self._read(place)
        return self.seen[place]

    def _bracket(self, start: int, step: int) -> int:
        best, place = start, start
        while 0 < place < len(self._gears) - 1 or place == start:
            place = int(np.clip(place + step, 0, len(self._gears) - 1))
            if place == start:
                break
            now = self._at(place)
            if step < 0 and (
                now.slowdown(self._default) > self._rule.limit
                or self._rule.score(now) < ENOUGH * self._rule.score(self._default)
            ):
                break
            if not self._rule.better(now, self._at(best), self._default):
                break
            best = place
        return place

    def _golden(self, low: int, high: int) -> None:
        inner = round(high - (high - low) / GOLDEN)
        for _ in range(TRIES):
            if high - low < CLOSE:
                return
            longer_up = high - inner >= inner - low
            side = (high - inner) if longer_up else (inner - low)
            probe = inner + round(side / (1 + GOLDEN)) * (1 if longer_up else -1)
            if probe in (inner, low, high):
                return
            if self._rule.better(self._at(probe), self._at(inner), self._default):
                low, high = (inner, high) if longer_up else (low, inner)
                inner = probe
            elif longer_up:
                high = probe
            else:
                low = probe

    def _smoothed(self) -> int:
        places = np.array(sorted(self.seen))
        clocks = self._gears[places] / 1000
        degree = min(3, len(places) - 1)
        inside = self._gears[places[0] : places[-1] + 1]
        seconds, joules = (
            self._curve(clocks, [getattr(self.seen[p], what) for p in places], inside, degree)
            for what in ("seconds", "joules")
        )
        return int(places[0]) + self._rule.best_gear(inside, seconds, joules, self._default)

    @staticmethod
    def _curve(clocks: Values, told: list[float], inside: Values, degree: int) -> Values:
        return np.asarray(np.polyval(np.polyfit(clocks, told, degree), inside / 1000), float)
