"""The task of finding a schedule: what `rounds.py` asks for, answered by compiler, device and models.

What a tuning run needs of the schedules it searches: the design space, or those of a recording.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.generate import generate
from ekc.devices.device import Peaks
from ekc.devices.digest import digest_cuda_source
from ekc.errors import EkcError
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.search.cost_model.acquisition import Acquisition
from ekc.search.cost_model.features import ModelInputCache, ModelInputs, make_model_inputs
from ekc.search.cost_model.learner import LOWER_BOUND_STDS, Learner
from ekc.search.cost_model.transfer import TransferPrior
from ekc.search.data.candidate import Candidate
from ekc.search.data.options import TuneOptions
from ekc.search.data.population import Population
from ekc.search.data.result import compute_min_latency_s
from ekc.search.loop.breeding import DEFAULT_METHOD, SearchMethod, SearchSpace
from ekc.search.loop.measure import LABEL_WINDOW_S, MeasurementFailure, Measurer
from ekc.search.loop.reporter import Reporter
from ekc.search.loop.selection import Incumbent


class ScheduleSpace(SearchSpace, Protocol):
    """Genomes that stand for schedules of one operator."""

    op: Operator

    def build_schedule(self, population: Population, row: int) -> Schedule:
        """One genome as a Schedule."""

    def get_structure_name(self, population: Population, row: int) -> str:
        """Which structure it has, in words."""

    def extract_inputs(self, population: Population, peaks: Peaks) -> ModelInputs:
        """What the models see of every genome, for a device with these peaks."""


Array = NDArray[np.float64]

METERINGS_PER_RUN = 16
"""Metering comes about so many times in a run."""
MIN_TRIALS_PER_METERING, MAX_TRIALS_PER_METERING = 4, 64
MIN_LOG_FEASIBILITY = math.log(0.5)
"""What may spill sooner than not is not believed level with anything."""
TIE_PRIORITY = 1000.0
"""More than logs of figures and of slots differ by."""
INITIAL_LOG_BEST = 20.0
"""Log of a figure that everything improves on: before any was measured, the least expected promises most."""


class ScheduleTask:
    """One operator on one device: genomes become Candidates, and their latency is what is bred from."""

    def __init__(
        self,
        space: ScheduleSpace,
        measurer: Measurer,
        executor: Executor,
        options: TuneOptions,
        reporter: Reporter | None = None,
        method: SearchMethod = DEFAULT_METHOD,
        transfer_prior: TransferPrior | None = None,
    ) -> None:
        self.space, self.measurer, self.executor, self.options = space, measurer, executor, options
        self.device = measurer.device
        self.method, self.transfer_prior = method, transfer_prior
        self.learner = Learner(
            self.device.peaks, self.device.limits, options.seed, options.max_slowdown, self.method
        )
        self.input_cache = ModelInputCache(
            space, lambda some: self._apply_transfer_prior(space.extract_inputs(some, self.device.peaks))
        )
        self.candidates: list[Candidate] = []
        self.reporter = reporter or Reporter(space.op, measurer.device, options)
        self.reporter.candidates = self.candidates
        self.is_out_of_time = False
        self._tried_digests: set[str] = set()
        self._trials_since_metering = 0

    def make_start_candidates(self, start: Sequence[Schedule]) -> list[Candidate]:
        """Schedules of the caller's own, each once."""
        found = {s.digest: s for s in start}
        self._tried_digests |= {mark for s in found.values() for mark in self._compute_digests(s)}
        return [self.create_candidate(s, "given", 1) for s in found.values()]

    def make_candidate(self, population: Population, row: int, round_number: int) -> Candidate | None:
        """The schedule of a genome, unless another made the same before, or other steps the same CUDA."""
        schedule = self.space.build_schedule(population, row)
        marks = self._compute_digests(schedule)
        known = not marks.isdisjoint(self._tried_digests)
        self._tried_digests |= marks
        if known:
            return None
        return self.create_candidate(schedule, self.space.get_structure_name(population, row), round_number)

    def _compute_digests(self, schedule: Schedule) -> set[str]:
        """What tells a schedule from others, and its kernel from other kernels."""
        try:
            source = generate(schedule, self.device.limits).source
        except EkcError:
            # Compiling will say why, and the row keeps it.
            return {schedule.digest}
        return {schedule.digest, digest_cuda_source(source)}

    def create_candidate(self, schedule: Schedule, structure: str, round_number: int) -> Candidate:
        """A schedule with what its analysis says, aimed at the device."""
        figures = analyse_program(schedule.program, self.device.limits)
        seen = self._apply_transfer_prior(make_model_inputs(figures, self.device.peaks))
        expected = float(seen.expected_latency_s[0]), float(seen.expected_power_w[0])
        made = Candidate(schedule, structure, seen.features[0], *expected, round_number)
        made.set_target(self.device.arch, self.device.limits)
        return made

    def _apply_transfer_prior(self, inputs: ModelInputs) -> ModelInputs:
        """After a warm start with a prior that knows other operators."""
        return inputs if self.transfer_prior is None else self.transfer_prior.correct_inputs(inputs)

    def score_population(self, population: Population) -> NDArray[np.float64]:
        """What a measurement promises of the objective: lower is better."""
        if not len(population) or self._is_random_search:
            return np.zeros(len(population))
        return self._compute_acquisitions(population)[0].score()

    def compute_acquisitions(self, population: Population) -> tuple[Acquisition, ...]:
        """By the promise, and by that of the latency alone; none where schedules are drawn at random, and are
        to stay so."""
        return () if self._is_random_search else self._compute_acquisitions(population)

    @property
    def _is_random_search(self) -> bool:
        return self.method.proposals == "drawn"

    def _compute_acquisitions(self, population: Population) -> tuple[Acquisition, ...]:
        standing, seen = self.incumbent, self.input_cache.get_inputs(population)
        mean, spread, power, doubt = self.learner.predict(seen, standing.max_latency_s)
        least_s = compute_min_latency_s(self.space.op, 2 * seen.fma_count, self.device.peaks)
        chance = self.learner.spill_model.predict_log_feasibility(seen.features)
        by_latency = _make_acquisition(mean, spread, standing.latencies_s, floor=np.log(least_s))
        promises: tuple[Acquisition, ...] = (by_latency,)
        if self.options.objective != "latency":
            promises = self._make_objective_acquisition(mean, spread, power, doubt, least_s), by_latency
        return tuple(replace(promise, log_feasibility=chance) for promise in promises)

    def _make_objective_acquisition(
        self, mean: Array, std: Array, power: Array, power_std: Array, min_latency_s: Array
    ) -> Acquisition:
        """`least_s`: seconds that it cannot take less than; its watts hardly are `HARDLY` spreads less than
        believed."""
        standing, watts = self.incumbent, np.exp(power)
        low, high = (standing.score(np.exp(x), watts) for x in (mean, mean + std))
        floor = np.log(standing.score(min_latency_s, np.exp(power - LOWER_BOUND_STDS * power_std)))
        return _make_acquisition(np.log(low), np.log(high / low), standing.scores, power_std, floor)

    def score_tie_breaks(self, population: Population) -> NDArray[np.float64]:
        """Those believed level with the best come first, by their slots."""
        standing = self.incumbent
        if not len(population) or self._is_random_search or not standing.candidates:
            return self.score_population(population)
        believed = self._compute_acquisitions(population)[0]
        level = (believed.mean <= believed.best + math.log1p(standing.tie_margin)) & (
            believed.log_feasibility > MIN_LOG_FEASIBILITY
        )
        return np.where(
            level, np.log(self.input_cache.get_inputs(population).issue_slots) - TIE_PRIORITY, believed.mean
        )

    def predict_correlation(self, population: Population) -> NDArray[np.float64]:
        """By the latency's belief: a timing is what every measurement is."""
        return self.learner.latency_model.predict_correlation(
            self.input_cache.get_inputs(population).features
        )

    @property
    def incumbent(self) -> Incumbent:
        """What is to be beaten now."""
        return Incumbent(self.options, self.timed_candidates)

    @property
    def timed_candidates(self) -> list[Candidate]:
        """The candidates that have a latency."""
        return [c for c in self.candidates if c.ok]

    def measure(self, candidates: Sequence[Candidate], round_number: int) -> list[float]:
        """Compile together, time one by one, learn; when due, meter a share of the fast."""
        for c in candidates:
            if self.measurer.find_first_timing(c.schedule) is None:
                c.submit_compile(self.executor, self.device)
        self.reporter.enter_stage("measure", round_number)
        timed = []
        with self.measurer.start_timings([(c.schedule, partial(getattr, c, "kernel")) for c in candidates]):
            for c in candidates:
                if not self.can_continue():
                    break
                self.candidates.append(c)
                timed.append(c)
                self._time_candidate(c)
                self.reporter.report("trial", c)
        self.learner.learn_latency([c for c in timed if c.ok])
        self._trials_since_metering += len(timed)
        if self._is_metering_due():
            self.meter_share(round_number)
        else:
            self.learner.predict_powers(self.timed_candidates)
        if len(self.candidates) < self.options.trials:
            self.reporter.enter_stage("breed", round_number + 1)
        return [c.latency_s if c.ok else math.nan for c in timed]

    def _is_metering_due(self) -> bool:
        every = min(
            max(-(-self.options.trials // METERINGS_PER_RUN), MIN_TRIALS_PER_METERING),
            MAX_TRIALS_PER_METERING,
        )
        return not self.learner.model_cards or self._trials_since_metering >= every

    def meter_share(self, round_number: int) -> None:
        """Meter a share of what was timed since, and judge the energy model by it."""
        if self._trials_since_metering and self.options.objective != "latency":
            self.reporter.enter_stage("meter", round_number)
            self.learner.learn_energy(self.timed_candidates, round_number, self._meter_candidate)
        self._trials_since_metering = 0

    def _time_candidate(self, candidate: Candidate) -> None:
        outcome = self.measurer.time(candidate.schedule, lambda: candidate.kernel)
        if isinstance(outcome, MeasurementFailure):
            candidate.status = outcome.status
        else:
            candidate.timings.append(outcome)

    def _meter_candidate(self, candidate: Candidate) -> bool:
        outcome = self.measurer.meter(candidate.schedule, lambda: candidate.kernel, LABEL_WINDOW_S)
        metered = not isinstance(outcome, MeasurementFailure)
        if isinstance(outcome, MeasurementFailure):
            candidate.status = outcome.status
        else:
            candidate.meterings.append(outcome)
        self.reporter.report("metering", candidate)
        return metered

    def can_continue(self) -> bool:
        """Whether there is time left, and no callback asked to end. However little there is, one schedule is
        tried."""
        budget = self.options.time_budget_s
        if budget is not None and self.elapsed_s > budget and self.candidates:
            self.is_out_of_time = True
        return not self.is_out_of_time and not (self.reporter.is_stop_requested and self.candidates)

    @property
    def elapsed_s(self) -> float:
        """Since the run was asked for."""
        return time.monotonic() - self.options.requested_at_s


def _make_acquisition(
    mean: Array,
    std: Array,
    measured: Array,
    unobserved_std: Array | float = 0.0,
    floor: Array | float = -np.inf,
) -> Acquisition:
    """To improve on the best seen; before any was, on `ANYTHING`."""
    return Acquisition(
        mean, std, math.log(measured.min()) if len(measured) else INITIAL_LOG_BEST, unobserved_std, floor
    )
