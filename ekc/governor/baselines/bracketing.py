"""GPOEO's search over the SM clock: bracket by a tenth of the gears, golden section, cubic smoothing.

Rebuilt from a description of the authors' program (2021). Which side is searched depends on how slow the
first gear is; every point is read once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ekc.governor.baselines.rules import CostPoint, GpoeoRule
from ekc.governor.samples import Values

GOLDEN_RATIO = (1 + 5**0.5) / 2
MAX_TRIES = 5
MIN_BRACKET_GEARS = 7
"""Gears: a bracket narrower than that is left."""
MIN_SCORE_SHARE = 0.75
"""Of the default's score: below, the bracket goes no further down."""


class BracketSearch:
    """One search; `at` reads the job at the place of a gear, and `seen` keeps what it told."""

    def __init__(
        self, gears: Values, rule: GpoeoRule, default: CostPoint, read_point: Callable[[int], CostPoint]
    ) -> None:
        self._gears = gears
        self._rule = rule
        self._default = default
        self._read_point = read_point
        self.points: dict[int, CostPoint] = {}

    def search(self, start: int) -> int:
        """Place of the choice."""
        slow = self._get_point(start).compute_slowdown(self._default)
        radius = max(1, len(self._gears) // 10)
        low, high = start, start
        if slow <= 1.2 * self._rule.max_slowdown:
            low = self._find_bracket_end(start, -radius)
        if slow >= 0.8 * self._rule.max_slowdown:
            high = self._find_bracket_end(start, radius)
        self._search_golden_section(low, high)
        return self._choose_smoothed()

    def _get_point(self, place: int) -> CostPoint:
        if place not in self.points:
            self.points[place] = self._read_point(place)
        return self.points[place]

    def _find_bracket_end(self, start: int, step: int) -> int:
        best, place = start, start
        while 0 < place < len(self._gears) - 1 or place == start:
            place = int(np.clip(place + step, 0, len(self._gears) - 1))
            if place == start:
                break
            now = self._get_point(place)
            if step < 0 and (
                now.compute_slowdown(self._default) > self._rule.max_slowdown
                or self._rule.compute_score(now) < MIN_SCORE_SHARE * self._rule.compute_score(self._default)
            ):
                break
            if not self._rule.is_better(now, self._get_point(best), self._default):
                break
            best = place
        return place

    def _search_golden_section(self, low: int, high: int) -> None:
        inner = round(high - (high - low) / GOLDEN_RATIO)
        for _ in range(MAX_TRIES):
            if high - low < MIN_BRACKET_GEARS:
                return
            longer_up = high - inner >= inner - low
            side = (high - inner) if longer_up else (inner - low)
            probe = inner + round(side / (1 + GOLDEN_RATIO)) * (1 if longer_up else -1)
            if probe in (inner, low, high):
                return
            if self._rule.is_better(self._get_point(probe), self._get_point(inner), self._default):
                low, high = (inner, high) if longer_up else (low, inner)
                inner = probe
            elif longer_up:
                high = probe
            else:
                low = probe

    def _choose_smoothed(self) -> int:
        places = np.array(sorted(self.points))
        clocks = self._gears[places] / 1000
        degree = min(3, len(places) - 1)
        inside = self._gears[places[0] : places[-1] + 1]
        seconds, joules = (
            self._smooth_curve(clocks, [getattr(self.points[p], what) for p in places], inside, degree)
            for what in ("seconds", "joules")
        )
        return int(places[0]) + self._rule.find_best_gear(inside, seconds, joules, self._default)

    @staticmethod
    def _smooth_curve(clocks: Values, values: list[float], gears: Values, degree: int) -> Values:
        return np.asarray(np.polyval(np.polyfit(clocks, values, degree), gears / 1000), float)
