"""The task of finding a schedule: what `rounds.py` asks for, answered by compiler, device and models."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.generate import generate
from ekc.devices.digest import digest_of_text
from ekc.errors import EkcError
from ekc.ir.analysis.analysis import analyse
from ekc.ir.schedule import Schedule
from ekc.search.candidate import Candidate
from ekc.search.measuring import LABEL_WINDOW_S, Bench, Failure
from ekc.search.method import OURS, Method
from ekc.search.models.analysed import Analysed, Memory, analysed
from ekc.search.models.learner import HARDLY, Learner
from ekc.search.models.lessons import Lessons
from ekc.search.models.promise import Promise
from ekc.search.options import Wish
from ekc.search.population import Population
from ekc.search.reporter import Reporter
from ekc.search.roofline import least_seconds
from ekc.search.schedules import Schedules
from ekc.search.standing import Standing

Array = NDArray[np.float64]

METERED_PER_RUN = 16
"""Metering comes about so many times in a run."""
FEWEST_TO_METER, MOST_TO_METER = 4, 64
LIKELY = math.log(0.5)
"""What may spill sooner than not is not believed level with anything."""
FIRST = 1000.0
"""More than logs of figures and of slots differ by."""
ANYTHING = 20.0
"""Log of a figure that everything improves on: before any was measured, the least expected promises most."""


class ScheduleTask:
    """One operator on one device: genomes become Candidates, and their latency is what is bred from."""

    def __init__(
        self,
        space: Schedules,
        bench: Bench,
        workers: Executor,
        wish: Wish,
        reporter: Reporter | None = None,
        method: Method = OURS,
        lessons: Lessons | None = None,
    ) -> None:
        self.space, self.bench, self.workers, self.wish = space, bench, workers, wish
        self.device = bench.device
        self.method, self.lessons = method, lessons
        self.learner = Learner(
            self.device.peaks, self.device.limits, wish.seed, wish.max_slowdown, self.method
        )
        self.memory = Memory(space, lambda some: self._informed(space.seen(some, self.device.peaks)))
        self.candidates: list[Candidate] = []
        self.reporter = reporter or Reporter(space.op, bench.device, wish)
        self.reporter.candidates = self.candidates
        self.late = False
        self._tried: set[str] = set()
        self._unjudged = 0

    def given(self, start: Sequence[Schedule]) -> list[Candidate]:
        """Schedules of the caller's own, each once."""
        found = {s.digest: s for s in start}
        self._tried |= {mark for s in found.values() for mark in self._marks(s)}
        return [self.candidate(s, "given", 1) for s in found.values()]

    def make(self, population: Population, row: int, number: int) -> Candidate | None:
        """The schedule of a genome, unless another made the same before, or other steps the same CUDA."""
        schedule = self.space.schedule(population, row)
        marks = self._marks(schedule)
        known = not marks.isdisjoint(self._tried)
        self._tried |= marks
        if known:
            return None
        return self.candidate(schedule, self.space.structure_name(population, row), number)

    def _marks(self, schedule: Schedule) -> set[str]:
        """What tells a schedule from others, and its kernel from other kernels."""
        try:
            source = generate(schedule, self.device.limits).source
        except EkcError:
            # Compiling will say why, and the row keeps it.
            return {schedule.digest}
        return {schedule.digest, digest_of_text(source)}

    def candidate(self, schedule: Schedule, structure: str, number: int) -> Candidate:
        """A schedule with what its analysis says, aimed at the device."""
        figures = analyse(schedule.program, self.device.limits)
        seen = self._informed(analysed(figures, self.device.peaks))
        expected = float(seen.latency_s[0]), float(seen.power_w[0])
        made = Candidate(schedule, structure, seen.features[0], *expected, number)
        made.aim(self.device.arch, self.device.limits)
        return made

    def _informed(self, seen: Analysed) -> Analysed:
        """After a warm start with a prior that knows other operators."""
        return seen if self.lessons is None else self.lessons.informed(seen)

    def promise(self, population: Population) -> NDArray[np.float64]:
        """What a measurement promises of the objective: lower is better."""
        if not len(population) or self._drawn:
            return np.zeros(len(population))
        return self._rankings(population)[0].urgency()

    def rankings(self, population: Population) -> tuple[Promise, ...]:
        """By the promise, and by that of the latency alone; none where schedules are drawn at random, and are
        to stay so."""
        return () if self._drawn else self._rankings(population)

    @property
    def _drawn(self) -> bool:
        return self.method.proposals == "drawn"

    def _rankings(self, population: Population) -> tuple[Promise, ...]:
        standing, seen = self.standing, self.memory.of(population)
        mean, spread, power, doubt = self.learner.expect(seen, standing.limit_s)
        least_s = least_seconds(self.space.op, 2 * seen.fma, self.device.peaks)
        chance = self.learner.spills.chance(seen.features)
        by_latency = _promise(mean, spread, standing.latencies_s, floor=np.log(least_s))
        promises: tuple[Promise, ...] = (by_latency,)
        if self.wish.objective != "latency":
            promises = self._of_both(mean, spread, power, doubt, least_s), by_latency
        return tuple(replace(promise, chance=chance) for promise in promises)

    def _of_both(
        self, mean: Array, spread: Array, power: Array, power_spread: Array, least_s: Array
    ) -> Promise:
        """`least_s`: seconds that it cannot take less than; its watts hardly are `HARDLY` spreads less than
        believed."""
        standing, watts = self.standing, np.exp(power)
        low, high = (standing.score(np.exp(x), watts) for x in (mean, mean + spread))
        floor = np.log(standing.score(least_s, np.exp(power - HARDLY * power_spread)))
        return _promise(np.log(low), np.log(high / low), standing.scores, power_spread, floor)

    def lean(self, population: Population) -> NDArray[np.float64]:
        """Those believed level with the best come first, by their slots."""
        standing = self.standing
        if not len(population) or self._drawn or not standing.working:
            return self.promise(population)
        believed = self._rankings(population)[0]
        level = (believed.mean <= believed.best + math.log1p(standing.margin)) & (believed.chance > LIKELY)
        return np.where(level, np.log(self.memory.of(population).slots) - FIRST, believed.mean)

    def correlation(self, population: Population) -> NDArray[np.float64]:
        """By the latency's belief: a timing is what every measurement is."""
        return self.learner.latency.correlation(self.memory.of(population).features)

    @property
    def standing(self) -> Standing:
        """What is to be beaten now."""
        return Standing(self.wish, self.working)

    @property
    def working(self) -> list[Candidate]:
        """The candidates that have a latency."""
        return [c for c in self.candidates if c.ok]

    def measure(self, fresh: Sequence[Candidate], number: int) -> list[float]:
        """Compile together, time one by one, learn; when due, meter a share of the fast."""
        for c in fresh:
            if self.bench.known(c.schedule) is None:
                c.submit(self.workers, self.device)
        self.reporter.enter("measure", number)
        timed = []
        with self.bench.ahead([(c.schedule, partial(getattr, c, "kernel")) for c in fresh]):
            for c in fresh:
                if not self.on_time():
                    break
                self.candidates.append(c)
                timed.append(c)
                self._time(c)
                self.reporter.report("trial", c)
        self.learner.learn_latency([c for c in timed if c.ok])
        self._unjudged += len(timed)
        if self._due():
            self.meter_some(number)
        else:
            self.learner.predict_all(self.working)
        if len(self.candidates) < self.wish.trials:
            self.reporter.enter("breed", number + 1)
        return [c.latency_s if c.ok else math.nan for c in timed]

    def _due(self) -> bool:
        every = min(max(-(-self.wish.trials // METERED_PER_RUN), FEWEST_TO_METER), MOST_TO_METER)
        return not self.learner.cards or self._unjudged >= every

    def meter_some(self, number: int) -> None:
        """Meter a share of what was timed since, and judge the energy model by it."""
        if self._unjudged and self.wish.objective != "latency":
            self.reporter.enter("meter", number)
            self.learner.learn_energy(self.working, number, self._meter)
        self._unjudged = 0

    def _time(self, c: Candidate) -> None:
        outcome = self.bench.time(c.schedule, lambda: c.kernel)
        if isinstance(outcome, Failure):
            c.status = outcome.status
        else:
            c.timings.append(outcome)

    def _meter(self, c: Candidate) -> bool:
        outcome = self.bench.meter(c.schedule, lambda: c.kernel, LABEL_WINDOW_S)
        metered = not isinstance(outcome, Failure)
        if isinstance(outcome, Failure):
            c.status = outcome.status
        else:
            c.meterings.append(outcome)
        self.reporter.report("metering", c)
        return metered

    def on_time(self) -> bool:
        """Whether there is time left, and no callback asked to end. However little there is, one schedule is
        tried."""
        budget = self.wish.time_budget_s
        if budget is not None and self.seconds > budget and self.candidates:
            self.late = True
        return not self.late and not (self.reporter.stopped and self.candidates)

    @property
    def seconds(self) -> float:
        """Since the run was asked for."""
        return time.monotonic() - self.wish.asked_s


def _promise(
    mean: Array, spread: Array, seen: Array, beside: Array | float = 0.0, floor: Array | float = -np.inf
) -> Promise:
    """To improve on the best seen; before any was, on `ANYTHING`."""
    return Promise(mean, spread, math.log(seen.min()) if len(seen) else ANYTHING, beside, floor)
