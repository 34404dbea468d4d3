"""The tuner: breed, predict, measure what is promising, learn, and end with a fair final.

The loop is that of arXiv 2411.18873: kernels of low latency first, their energy second, a learned
energy model so that few are metered, and a share of metering that follows the model's faithfulness.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ekc import devices
from ekc.devices.base import Device
from ekc.errors import InvalidInput, NothingLegal
from ekc.ir.analysis import analyse
from ekc.ir.checks import whole
from ekc.ir.operator import Operator
from ekc.ir.schedule import Schedule
from ekc.search import prior
from ekc.search.breeding import POPULATION, Breeder, diverse
from ekc.search.candidate import Candidate
from ekc.search.features import features
from ekc.search.finals import Finals
from ekc.search.learner import Learner
from ekc.search.measuring import FINAL_WINDOW_S, LABEL_WINDOW_S, Bench, Failure
from ekc.search.naive import naive
from ekc.search.objective import checked_objective, merit
from ekc.search.progress import Progress, progress_bar
from ekc.search.records import RecordStore
from ekc.search.result import DeviceNote, Trial, TuningResult
from ekc.search.space import Population, Space

ROUNDS = 8
SMALLEST_BATCH, LARGEST_BATCH = 4, 64
BRED_PER_TRIAL = 32
"""A short run breeds smaller populations: it could not use what a large one finds."""
PROVEN = 12
"""Measured kernels that each round breeds from, beside the models' favourites."""
WANDERING = 0.15
"""Share of each batch drawn at random, so that the models see more than their own favourites."""
CLOCKS_TRIED = 8


def tune(
    op: Operator,
    target: str = "auto",
    trials: int = 256,
    objective: str = "energy",
    max_slowdown: float = 0.05,
    clocks: str = "fixed",
    seed: int = 0,
    records: str | Path | None = None,
    time_budget_s: float | None = None,
    start: Sequence[Schedule] = (),
    executor: Executor | None = None,
    progress: bool = True,
) -> TuningResult:
    """Search the schedules of `op` for the one that costs least at the speed of the fastest.

    target: "auto", "cuda:N" or a simulated device such as "a100". trials: schedules to compile and
    time. objective: "energy" (least joules among kernels at most `max_slowdown` slower than the
    fastest), "latency" or "edp". clocks: "fixed", or "search" for a second line over clocks.
    records: an SQLite file; figures on file are not measured again, so an interrupted run resumes by
    running again. time_budget_s: seconds after which the run ends with the best so far. start:
    schedules to try first. executor: any concurrent.futures Executor for compiling (default: threads).
    The same seed gives the same winner for any number of workers, unless time ran out.

    Ctrl-C ends the run with the best so far. Raises `InvalidInput` for arguments, `DeviceError` for
    the target, `RecordError` for the file, `NothingLegal` with the reasons when no schedule works.
    """
    _check(op, start)
    check_options(trials, max_slowdown, clocks, seed, time_budget_s)
    objective = checked_objective(objective)
    device = devices.open(target)
    with ExitStack() as stack:
        store = stack.enter_context(RecordStore(records))
        workers = executor or _threads(stack)
        tell = stack.enter_context(progress_bar(trials, f"{op.name} on {device.label}", progress))
        run = _Run(
            op,
            device,
            Bench(device, store),
            workers,
            trials,
            objective,
            max_slowdown,
            seed,
            time_budget_s,
            tell,
        )
        return run.run(start, clocks == "search")


def _threads(stack: ExitStack) -> Executor:
    """Threads of our own to compile in; what still waits when the run ends is not compiled."""
    threads = ThreadPoolExecutor(os.cpu_count() or 1, "ekc-compile")
    stack.callback(threads.shutdown, cancel_futures=True)
    return threads


def _check(op: Operator, start: Sequence[Schedule]) -> None:
    if not isinstance(op, Operator):
        raise InvalidInput(f"op: {op!r} is not an operator; ekc.matmul(64, 64, 64) makes one")
    if isinstance(start, Schedule) or not isinstance(start, Sequence):
        raise InvalidInput(
            f"start: {type(start).__name__} is not a list of schedules; write start=[schedule]"
        )
    for s in start:
        if not isinstance(s, Schedule):
            raise InvalidInput(f"start: {s!r} is not a schedule; give a list of ekc.Schedule")
        if s.op != op:
            raise InvalidInput(f"start: a schedule of {s.op.name} cannot start the tuning of {op.name}")


def check_options(trials: int, max_slowdown: float, clocks: str, seed: int, budget: float | None) -> None:
    """Refuse the numbers that `tune` would refuse; the command line asks before it writes anything."""
    whole("trials", trials, 1_000_000)
    whole("seed", seed, 2**63 - 1, least=0)
    if not _number(max_slowdown) or not 0 <= max_slowdown <= 10:
        raise InvalidInput(
            f"max_slowdown: {max_slowdown!r} is outside 0 to 10; 0.05 means at most 5 % slower"
        )
    if clocks not in ("fixed", "search"):
        raise InvalidInput(f"clocks: {clocks!r} is not one of fixed, search; the nearest is 'fixed'")
    if budget is not None and not (_number(budget) and budget > 0):
        raise InvalidInput(f"time_budget_s: {budget!r} is not above 0; leave it out for no limit")


def _number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


class _Run:
    """One tuning run."""

    def __init__(
        self,
        op: Operator,
        device: Device,
        bench: Bench,
        workers: Executor,
        trials: int,
        objective: str,
        max_slowdown: float,
        seed: int,
        budget_s: float | None,
        tell: Progress,
    ) -> None:
        self.op, self.device, self.bench, self.workers = op, device, bench, workers
        self.trials, self.objective, self.max_slowdown = trials, objective, max_slowdown
        self.began, self.budget_s, self.tell = time.monotonic(), budget_s, tell
        self.space = Space(op, device.limits)
        self.random = np.random.default_rng(seed)
        self.breeder = Breeder(self.space, self.random, min(POPULATION, max(512, BRED_PER_TRIAL * trials)))
        self.learner = Learner(device.peaks, seed, max_slowdown)
        self.candidates: list[Candidate] = []
        self.seen: set[int] = set()
        self.tried: set[str] = set()
        self.genomes: dict[str, Population] = {}
        self.stopped = ""

    def run(self, start: Sequence[Schedule], search_clocks: bool) -> TuningResult:
        """Baseline, rounds, finals."""
        baseline = self._candidate(naive(self.op), "naive", 0)
        finals = Finals(self.op, self.bench, self.objective, self.max_slowdown)
        finalists: list[Candidate] = []
        clock_front: tuple[Trial, ...] = ()
        try:
            self._baseline(baseline)
            self._search(start)
            finalists = finals.run(self.candidates, self._on_time)
            if search_clocks and finalists:
                clock_front = self._over_clocks(finals.winners(finalists)[0])
        except KeyboardInterrupt:
            if not any(c.ok for c in self.candidates):
                raise
            self.stopped = "interrupted"
            self.learner.predict_all([c for c in self.candidates if c.ok])
        working = finalists or finals.pick(self.candidates)
        if not working:
            raise NothingLegal(self._why_nothing())
        best, fastest = finals.winners(working)
        return self._result(best, fastest, baseline, clock_front)

    def _baseline(self, baseline: Candidate) -> None:
        baseline.aim(self.device.arch, self.device.limits)
        self._time(baseline)
        if baseline.ok:
            metering = self.bench.meter(baseline.schedule, lambda: baseline.kernel, FINAL_WINDOW_S, 1)
            if not isinstance(metering, Failure):
                baseline.meterings.append(metering)

    def _search(self, start: Sequence[Schedule]) -> None:
        """Rounds of breeding and measuring until the trials or the time are used."""
        batch = min(max(SMALLEST_BATCH, -(-self.trials // ROUNDS)), LARGEST_BATCH)
        given = [self._candidate(s, "given", 1) for s in {s.digest: s for s in start}.values()]
        given = given[: self.trials]
        self.tried |= {c.schedule.digest for c in given}
        parents: Population | None = None
        number = 0
        while len(self.candidates) < self.trials and self._on_time():
            number += 1
            wanted = min(batch, self.trials - len(self.candidates)) - len(given)
            parents, scores = self.breeder.evolve(parents, lambda p: self._score(p))
            if not len(parents) and not given:
                return
            fresh = [*given, *self._pick(parents, scores, max(wanted, 0), number)]
            given = []
            if not fresh:
                self.stopped = "every schedule of the space has been tried"
                return
            self._measure(fresh, number)
            kept = parents[np.arange(min(len(parents), self.breeder.size // 2))]
            parents = self._proven() + kept

    def _proven(self) -> Population:
        """The genomes that measured best and many neighbours: the next round breeds from facts too."""
        working = [c for c in self.candidates if c.ok and c.schedule.digest in self.genomes]
        best = sorted(working, key=lambda c: (c.latency_s, c.schedule.digest))[:PROVEN]
        empty = self.space.draw(self.random, 0)
        rows = sum((self.genomes[c.schedule.digest] for c in best), empty)
        return self.breeder.around(rows, self.breeder.size // 4)

    def _on_time(self) -> bool:
        spent = time.monotonic() - self.began
        # However little time there is, one schedule is tried.
        if self.budget_s is not None and spent > self.budget_s and self.candidates:
            self.stopped = f"time budget of {self.budget_s:g} s used"
            return False
        return True

    def _score(self, population: Population) -> NDArray[np.float64]:
        """Low is good: expected latency, and the objective once both models have something to say."""
        if not len(population):
            return np.zeros(0)
        latency, power = self.learner.predict(self.space.figures(population))
        if self.objective == "latency":
            return latency
        return np.asarray(np.sqrt(latency * merit(self.objective, latency, latency * power)))

    def _pick(
        self, population: Population, scores: NDArray[np.float64], count: int, number: int
    ) -> list[Candidate]:
        """A diverse batch: half by the score, the rest by latency alone, some at random."""
        latency, _ = self.learner.predict(self.space.figures(population))
        keys = self.space.keys(population)
        wander = round(count * (WANDERING if number > 1 else 0.5))
        by_score = (count - wander + 1) // 2
        chosen: list[Candidate] = []
        for ranking, amount in ((scores, by_score), (latency, count - wander - by_score)):
            chosen += self._take(population, ranking, amount, keys, number)
        strangers = self.breeder.draw(4 * wander) if wander else population[:0]
        chosen += self._take(
            strangers, np.arange(len(strangers), dtype=np.float64), wander, self.space.keys(strangers), number
        )
        return chosen

    def _take(
        self,
        population: Population,
        ranking: NDArray[np.float64],
        count: int,
        keys: NDArray[np.int64],
        number: int,
    ) -> list[Candidate]:
        """The best `count` genomes that make schedules not tried yet."""
        taken: list[Candidate] = []
        while len(taken) < count:
            rows = diverse(population, ranking, count - len(taken), self.seen, keys)
            if not rows:
                break
            for row in rows:
                self.seen.add(int(keys[row]))
                schedule = self.space.schedule(population, row)
                self.genomes.setdefault(schedule.digest, population[[row]])
                if schedule.digest not in self.tried:
                    self.tried.add(schedule.digest)
                    name = self.space.structures[population.structure[row]].name
                    taken.append(self._candidate(schedule, name, number))
        return taken

    def _candidate(self, schedule: Schedule, structure: str, number: int) -> Candidate:
        figures = analyse(schedule.program, self.device.limits)
        peaks = self.device.peaks
        row = features(figures)[0]
        return Candidate(
            schedule,
            structure,
            row,
            float(prior.latency(figures, peaks)[0]),
            float(prior.power(figures, peaks)[0]),
            number,
        )

    def _measure(self, fresh: list[Candidate], number: int) -> None:
        """Compile together, time one by one, meter a share of the fast, then learn."""
        for c in fresh:
            c.aim(self.device.arch, self.device.limits)
            if self.bench.known(c.schedule) is None:
                c.submit(self.workers, self.device.arch, self.device.limits)
        for c in fresh:
            if not self._on_time():
                break
            self.candidates.append(c)
            self._time(c)
            self.tell(len(self.candidates), self._best_so_far())
        self.learner.learn_latency([c for c in fresh if c.ok])
        if self.objective != "latency":
            self.learner.learn_energy([c for c in self.candidates if c.ok], number, self._meter)

    def _time(self, c: Candidate) -> None:
        outcome = self.bench.time(c.schedule, lambda: c.kernel)
        if isinstance(outcome, Failure):
            c.status = outcome.status
        else:
            c.timings.append(outcome)

    def _meter(self, c: Candidate) -> bool:
        outcome = self.bench.meter(c.schedule, lambda: c.kernel, LABEL_WINDOW_S)
        if isinstance(outcome, Failure):
            c.status = outcome.status
            return False
        c.meterings.append(outcome)
        return True

    def _over_clocks(self, best: Candidate) -> tuple[Trial, ...]:
        """The best schedule metered at other clocks: the front over clocks, a line of its own."""
        offered = self.device.clocks().mhz
        if not offered:
            return ()
        picks = sorted({offered[int(i)] for i in np.linspace(0, len(offered) - 1, CLOCKS_TRIED)})
        trials = []
        for mhz in picks:
            if not self._on_time():
                break
            bench = Bench(self.device.at_clock(mhz), self.bench.store)
            c = self._candidate(best.schedule, best.structure, best.round)
            timing = bench.time(c.schedule, lambda: best.kernel)
            metering = bench.meter(c.schedule, lambda: best.kernel, FINAL_WINDOW_S)
            if not isinstance(timing, Failure) and not isinstance(metering, Failure):
                c.timings, c.meterings = [timing], [metering]
                trials.append(c.trial())
        return tuple(trials)

    def _best_so_far(self) -> str:
        working = [c for c in self.candidates if c.ok]
        if not working:
            return ""
        fastest = min(c.latency_s for c in working)
        metered = sum(c.metered for c in working)
        return f"fastest {fastest * 1e6:.1f} us, {metered} metered"

    def _result(
        self, best: Candidate, fastest: Candidate, baseline: Candidate, clock_front: tuple[Trial, ...]
    ) -> TuningResult:
        peaks = self.device.peaks
        half = self.op.inputs[0].dtype.name == "float16"
        compute_s = self.op.flops / (peaks.fp16_tensor_flops if half else peaks.fp32_flops)
        memory_s = self.op.min_bytes / peaks.dram_bytes_per_s
        device = self.device
        return TuningResult(
            op=self.op,
            device=DeviceNote(device.name, device.simulated, device.label, device.clock_regime, device.arch),
            objective=self.objective,
            max_slowdown=self.max_slowdown,
            best=best.trial(),
            fastest=fastest.trial(),
            baseline=baseline.trial(),
            trials=tuple(c.trial() for c in self.candidates),
            seconds=time.monotonic() - self.began,
            roofline_share=max(compute_s, memory_s) / best.latency_s,
            roofline_bound="compute" if compute_s >= memory_s else "memory",
            model_cards=tuple(self.learner.cards),
            refusals=dict(self.breeder.refusals),
            clock_front=clock_front,
            stopped=self.stopped,
        )

    def _why_nothing(self) -> str:
        """One line: what was refused or failed, most frequent first."""
        reasons = Counter(self.breeder.refusals) + Counter(
            c.status.split("\n")[0] for c in self.candidates if not c.ok
        )
        listed = (
            ", ".join(f"{why} ({n})" for why, n in reasons.most_common(8))
            or self.stopped
            or "no schedule was tried"
        )
        return f"{self.op.name} on {self.device.label}: no schedule works; reasons: {listed}"
