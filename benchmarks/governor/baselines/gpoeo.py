"""GPOEO as published (arXiv 2201.01684) and coded by its authors (2021), rebuilt from a description of both.

Kept: base and default measurement, counters, prediction, memory search before SM search, bracket of a tenth
of the gears, golden section, cubic smoothing, ED2P below 4.5 % slowdown, monitoring by the range of power,
back-off, settle times. In favour of GPOEO, periods come from ekc's detector and tracker, and its watcher of
idle GPUs, which slows resumed work, is left out. Its models and their training data were never published:
ours replace them, trained on other simulated jobs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np

from benchmarks.governor.baselines.odpp import (
    SLOWDOWN_LIMIT,
    CostPoint,
    GpoeoRule,
    measure_period_point,
    measure_rate_point,
)
from benchmarks.governor.predict import CLOCK_RATIOS
from ekc.governor.job_meter import JobEnded, JobMeter
from ekc.governor.period_tracking import track_period_near
from ekc.governor.protocols import Settings
from ekc.governor.readings import JobReading, ProgressRate
from ekc.governor.response_model import ResponseModel
from ekc.governor.samples import Values
from ekc.governor.simulation.simulated_run import SimulatedRun

GOLDEN_RATIO = (1 + 5**0.5) / 2
MAX_TRIES = 5
MIN_BRACKET_GEARS = 7
"""Golden-section search ends at a bracket of fewer gears."""
MIN_SCORE_SHARE = 0.75
"""Share of the default's score below which the bracket is not extended downwards."""


class BracketSearch:
    """One search over the SM clock: bracket, golden section, cubic smoothing.

    `read_point(place)` measures the job at the gear of that place; `points` holds the results. The slowdown
    at the first gear decides which side is searched. Every point is measured once.
    """

    def __init__(
        self, gears: Values, rule: GpoeoRule, default: CostPoint, read_point: Callable[[int], CostPoint]
    ) -> None:
        self._gears = gears
        self._rule = rule
        self._default = default
        self._read_point = read_point
        self.points: dict[int, CostPoint] = {}

    def search(self, start: int) -> int:
        """Place of the chosen gear."""
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
        curves = [
            np.polyfit(clocks, [getattr(self.points[p], quantity) for p in places], degree)
            for quantity in ("seconds", "joules")
        ]
        seconds, joules = (np.asarray(np.polyval(curve, inside / 1000), float) for curve in curves)
        return int(places[0]) + self._rule.choose_best_gear(inside, seconds, joules, self._default)


BASE_SHARE = 0.9
"""Base clock over top clock (1800 of 1995 MHz)."""
LOWEST_SHARE = 0.225
"""Lowest clock that is searched, over the top clock."""
START_SETTLE_S = 4.0
STEP_SETTLE_S = 4.0
FIRST_WINDOW_S = 25.0
RATE_WINDOW_S = 4.0
COUNTER_GROUPS = 4
MAX_POWER_RANGE = {True: 0.18, False: 0.30}
LARGE_CHANGE = 0.5
NEXT_PERIOD_RANGE = (0.66, 1.5)
"""Range of a period, as multiples of the previous one."""
MIN_CLARITY = 0.1


class _PeriodLost(Exception):
    """The period is no longer found."""


def run_gpoeo(run: SimulatedRun, model: ResponseModel, rule: GpoeoRule | None = None) -> None:
    """Govern one job until it ends; `rule`: by default the published one."""
    with contextlib.suppress(JobEnded):
        _GpoeoRun(run, model, rule or GpoeoRule()).run_forever()


class _GpoeoRun:
    def __init__(self, run: SimulatedRun, model: ResponseModel, rule: GpoeoRule) -> None:
        self._rule = rule
        self._run, self._meter = run, JobMeter(run, run, lambda event: None)
        self._model = model
        clocks = np.array(run.list_offered().sm_mhz, float)
        self._gears = clocks[clocks >= LOWEST_SHARE * clocks[-1]]
        self._memory_clocks = run.list_offered().memory_mhz
        self._memory_mhz: int | None = None
        self._period_s: float | None = None
        self._is_periodic = True
        self._memory_slowdown = 1.0
        self._window_s = FIRST_WINDOW_S

    def run_forever(self) -> None:
        start: int | None = None
        self._meter.record(3.0)
        while True:
            try:
                start = self._run_round(start)
            except _PeriodLost:
                start = self._run_round(start, has_period=False)
            start = start if self._wait_for_change() < LARGE_CHANGE else None

    def _run_round(self, start: int | None, has_period: bool = True) -> int:
        """Measure, predict if the job is new (`start` is None), search, and set the choice. Without a period
        by instructions."""
        counters = self._measure_counters() if start is None else {}
        self._is_periodic &= has_period
        if start is not None and self._is_periodic:
            self._set_gear(None)
            self._store_period(measure_period_point(self._meter, FIRST_WINDOW_S))
        self._run.apply(Settings())
        self._meter.record(STEP_SETTLE_S)
        default = self._measure_point()
        if start is None:
            start = self._predict_gear(counters, default)
        self._search_memory(start, default)
        start = self._search_gear(start, default)
        self._set_gear(start)
        return start

    def _set_gear(self, place: int | None, settle: float = STEP_SETTLE_S, memory: int | None = None) -> None:
        clock = None if place is None else int(self._gears[place])
        settings = Settings(sm_mhz=clock, memory_mhz=memory or self._memory_mhz)
        self._run.apply(settings)
        self._meter.record(settle)

    def _measure_counters(self) -> dict[str, float]:
        """Measure period and counters at the base clocks, one group of counters after the other."""
        base = int(np.searchsorted(self._gears, BASE_SHARE * self._gears[-1]))
        self._memory_mhz = None
        self._set_gear(base, START_SETTLE_S)
        point = measure_period_point(self._meter, FIRST_WINDOW_S)
        self._store_period(point)
        each = 1.1 * point.seconds if point else RATE_WINDOW_S
        groups = [self._run.read_counters(each) for _ in range(COUNTER_GROUPS)]
        return {name: float(np.mean([group[name] for group in groups])) for name in groups[0]}

    def _store_period(self, point: CostPoint | None) -> None:
        self._is_periodic = point is not None
        self._period_s = point.seconds if point else None
        self._window_s = max(10.0, 3 * point.seconds) if point else FIRST_WINDOW_S

    def _measure_point(self) -> CostPoint:
        """Seconds and joules of a period near the last one, or per instruction without a period."""
        if not self._is_periodic or self._period_s is None:
            return measure_rate_point(self._run, self._meter, RATE_WINDOW_S)
        start, joules = self._meter.probe.now(), self._meter.probe.read_energy_j()
        samples = self._meter.record(max(self._window_s, 2.5 * self._period_s))
        shortest, longest = NEXT_PERIOD_RANGE
        found = track_period_near(
            samples, self._period_s, shortest / self._memory_slowdown, longest * self._memory_slowdown
        )
        if found is None or found.clarity < MIN_CLARITY:
            raise _PeriodLost
        self._period_s = found.seconds
        watts = (self._meter.probe.read_energy_j() - joules) / (self._meter.probe.now() - start)
        return CostPoint(found.seconds, watts * found.seconds)

    def _predict_gear(self, counters: dict[str, float], default: CostPoint) -> int:
        """The best gear by the models' predictions."""
        samples = self._meter.record(2.0)
        reading = JobReading(
            Settings(), 0.0, 2.0, default.joules / default.seconds, ProgressRate(),
            *(float(np.nanmean(v)) for v in (samples.sm_util, samples.memory_util, samples.clock_mhz)),
        )  # fmt: skip
        # The models were not trained on lower clocks.
        lowest = int(np.searchsorted(self._gears, CLOCK_RATIOS[0] * reading.clock_mhz))
        gears = self._gears[lowest:]
        slowdown, saving = self._model.predict_clocks(counters, reading, gears, reading.clock_mhz)
        return lowest + self._rule.choose_best_gear(gears, 1 + slowdown, 1 - saving, CostPoint(1.0, 1.0))

    def _search_memory(self, start: int, default: CostPoint) -> None:
        """Try the top memory clock and its neighbours, at the predicted SM gear."""
        if len(self._memory_clocks) < 2:
            return
        best: tuple[CostPoint, int | None] | None = None
        before = self._memory_clocks[-1]
        for clock in (self._memory_clocks[-1], self._memory_clocks[-2], self._memory_clocks[-3]):
            # GPOEO's bounds on the next period hold only for small steps of the clock.
            self._memory_slowdown, before = before / clock, clock
            self._set_gear(start, memory=clock)
            point = self._measure_point()
            self._memory_slowdown = 1.0
            if best is None or self._rule.is_better(point, best[0], default):
                best = point, clock
            if 0.9 * (1 + point.compute_slowdown(default)) - 1 > SLOWDOWN_LIMIT:
                break
        self._memory_mhz = best[1] if best else None
        if self._is_periodic and best is not None:
            self._period_s = best[0].seconds

    def _search_gear(self, start: int, default: CostPoint) -> int:
        def measure_gear(place: int) -> CostPoint:
            self._set_gear(place)
            return self._measure_point()

        return BracketSearch(self._gears, self._rule, default, measure_gear).search(start)

    def _wait_for_change(self) -> float:
        """Wait until the range of power shows a change of the job; returns the relative change."""
        period = self._period_s if self._is_periodic and self._period_s else RATE_WINDOW_S
        lowest, highest, stable = np.inf, 0.0, 0
        while True:
            samples = self._meter.record(period + 1.0)
            last = samples.power_w[-max(1, int(period * samples.sampling_hz)) :]
            watts = float(np.nanmean(last))
            lowest, highest = min(lowest, watts), max(highest, watts)
            size = 2 * (highest - lowest) / (highest + lowest)
            if size > MAX_POWER_RANGE[self._is_periodic]:
                return size
            stable += 1
            if stable >= 3:
                self._meter.record(min(2 ** (stable - 1), 32) * period)
