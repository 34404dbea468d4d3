"""GPOEO as published (arXiv 2201.01684) and coded by its authors (2021), rebuilt from a description of both.

Kept: base and default measurement, counters, prediction, memory search before SM search, bracket of a tenth
of the gears, golden section, cubic smoothing, ED2P below 4.5 % slowdown, monitoring by the range of power,
back-off, settle times. Kinder than the original: periods come from ekc's detector and are followed by its
tempo, its watcher of idle GPUs (which slows resumed work) is left out. Its models and their training data
were never published: ours stand in, trained on other simulated jobs.
"""

from __future__ import annotations

import contextlib

import numpy as np

from ekc.governor.baselines.bracketing import Bracketing
from ekc.governor.baselines.rules import SLOWDOWN_LIMIT, Point, Rule, period_point, rate_point
from ekc.governor.measure import JobEnded, Meter
from ekc.governor.phase import Model
from ekc.governor.predict.model import RATIOS
from ekc.governor.protocols import Actuator, Probe, Settings
from ekc.governor.reading import Pace, Reading
from ekc.governor.samples import Values
from ekc.governor.tempo import tempo

BASE_SHARE = 0.9
"""Base clock over top clock (1800 of 1995 MHz)."""
LOWEST_SHARE = 0.225
START_SETTLE_S = 4.0
STEP_SETTLE_S = 4.0
FIRST_WINDOW_S = 25.0
RATE_S = 4.0
GROUPS = 4
UNSTABLE = {True: 0.18, False: 0.30}
LARGE = 0.5
NEXT_PERIOD = (0.66, 1.5)
"""A period lies within this many times the one before."""
LEAST_CLARITY = 0.1


class _NoBeat(Exception):
    """The period that was found is not there any more."""


def gpoeo(probe: Probe, actuator: Actuator, model: Model, rule: Rule | None = None) -> None:
    """Steer one job until it ends; `rule` is theirs if not given."""
    with contextlib.suppress(JobEnded):
        _Run(probe, actuator, model, rule or Rule()).forever()


class _Run:
    def __init__(self, probe: Probe, actuator: Actuator, model: Model, rule: Rule) -> None:
        self._rule = rule
        self._meter = Meter(probe, actuator, lambda event: None)
        self._actuator = actuator
        self._model = model
        clocks = np.array(actuator.gears().sm_mhz, float)
        self._gears = clocks[clocks >= LOWEST_SHARE * clocks[-1]]
        self._memory = actuator.gears().memory_mhz
        self._chosen_memory: int | None = None
        self._period: float | None = None
        self._periodic = True
        self._slower_memory = 1.0
        self._window = FIRST_WINDOW_S

    def forever(self) -> None:
        start: int | None = None
        self._meter.record(3.0)
        while True:
            try:
                start = self._round(start)
            except _NoBeat:
                self._periodic = False
                start = self._round(start)
            start = start if self._monitor() < LARGE else None

    def _round(self, start: int | None) -> int:
        """Measure, predict where the job is new, search, and put the choice in force."""
        counters = self._full() if start is None else {}
        if start is not None and self._periodic:
            self._set(None)
            self._found(period_point(self._meter, FIRST_WINDOW_S))
        default = self._simple(Settings())
        if start is None:
            start = self._predicted(counters, default)
        self._search_memory(start, default)
        start = self._search(start, default)
        self._set(start)
        return start

    def _set(self, place: int | None, settle: float = STEP_SETTLE_S, memory: int | None = None) -> None:
        clock = None if place is None else int(self._gears[place])
        settings = Settings(sm_mhz=clock, memory_mhz=memory or self._chosen_memory)
        self._actuator.apply(settings)
        self._meter.record(settle)

    def _full(self) -> dict[str, float]:
        """Period and counters at the base clocks, a group after the other."""
        base = int(np.searchsorted(self._gears, BASE_SHARE * self._gears[-1]))
        self._chosen_memory = None
        self._set(base, START_SETTLE_S)
        point = period_point(self._meter, FIRST_WINDOW_S)
        self._found(point)
        each = 1.1 * point.seconds if point else RATE_S
        read = [self._meter.probe.counters(each) for _ in range(GROUPS)]
        known = [r for r in read if r]
        return {name: float(np.mean([r[name] for r in known])) for name in known[0]} if known else {}

    def _found(self, point: Point | None) -> None:
        self._periodic = point is not None
        self._period = point.seconds if point else None
        self._window = max(10.0, 3 * point.seconds) if point else FIRST_WINDOW_S

    def _simple(self, settings: Settings) -> Point:
        self._actuator.apply(settings)
        self._meter.record(STEP_SETTLE_S)
        return self._measure()

    def _measure(self) -> Point:
        """Seconds and joules of a period near the last one, or per instruction where there is none."""
        if not self._periodic or self._period is None:
            return rate_point(self._meter, RATE_S)
        start, joules = self._meter.probe.now(), self._meter.probe.energy_j()
        samples = self._meter.record(max(self._window, 2.5 * self._period))
        least, most = NEXT_PERIOD
        found = tempo(samples, self._period, least / self._slower_memory, most * self._slower_memory)
        if found is None or found.clarity < LEAST_CLARITY:
            raise _NoBeat
        self._period = found.seconds
        watts = (self._meter.probe.energy_j() - joules) / (self._meter.probe.now() - start)
        return Point(found.seconds, watts * found.seconds)

    def _predicted(self, counters: dict[str, float], default: Point) -> int:
        """The gear that the models favour."""
        samples = self._meter.record(2.0)
        seen = Reading(
            Settings(), 0.0, 2.0, default.joules / default.seconds, Pace(),
            *(float(np.nanmean(v)) for v in (samples.sm_util, samples.memory_util, samples.clock_mhz)),
        )  # fmt: skip
        beliefs = self._model(counters, seen)
        x, y = seen.clock_mhz / self._gears - 1, 1 - self._gears / seen.clock_mhz
        time = 1 + _polynomial(np.maximum(0, x), beliefs.time.mean)
        energy = time * (1 + _polynomial(np.maximum(0, y), beliefs.power.mean))
        # The models were trained down to there.
        lowest = int(np.searchsorted(self._gears, RATIOS[0] * seen.clock_mhz))
        default = Point(1.0, 1.0)
        gears, seconds, joules = self._gears[lowest:], time[lowest:], energy[lowest:]
        return lowest + self._rule.best_gear(gears, seconds, joules, default)

    def _search_memory(self, start: int, default: Point) -> None:
        """Neighbours of the top memory clock, at the predicted SM gear."""
        if len(self._memory) < 2:
            return
        best: tuple[Point, int | None] | None = None
        before = self._memory[-1]
        for clock in (self._memory[-1], self._memory[-2], self._memory[-3]):
            # Their bounds on the next period hold for small steps of the clock alone.
            self._slower_memory, before = before / clock, clock
            self._set(start, memory=clock)
            point = self._measure()
            self._slower_memory = 1.0
            if best is None or self._rule.better(point, best[0], default):
                best = point, clock
            if 0.9 * (1 + point.slowdown(default)) - 1 > SLOWDOWN_LIMIT:
                break
        self._chosen_memory = best[1] if best else None
        if self._periodic and best is not None:
            self._period = best[0].seconds

    def _search(self, start: int, default: Point) -> int:
        def at(place: int) -> Point:
            self._set(place)
            return self._measure()

        return Bracketing(self._gears, self._rule, default, at).search(start)

    def _monitor(self) -> float:
        """Until the range of power says that the job changed; how much."""
        period = self._period if self._periodic and self._period else RATE_S
        lowest, highest, stable = np.inf, 0.0, 0
        while True:
            samples = self._meter.record(period + 1.0)
            last = samples.power_w[-max(1, int(period * samples.sampling_hz)) :]
            watts = float(np.nanmean(last))
            lowest, highest = min(lowest, watts), max(highest, watts)
            size = 2 * (highest - lowest) / (highest + lowest)
            if size > UNSTABLE[self._periodic]:
                return size
            stable += 1
            if stable >= 3:
                self._meter.record(min(2 ** (stable - 1), 32) * period)


def _polynomial(x: Values, weights: tuple[float, ...]) -> Values:
    return np.asarray(sum(w * x ** (n + 1) for n, w in enumerate(weights)))
