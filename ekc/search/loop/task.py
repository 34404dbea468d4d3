"""The search task of tuning one operator on one device: candidates, models, timings and meterings."""

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
from ekc.devices.digest import digest_cuda_source
from ekc.errors import EkcError
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.schedule.schedule import Schedule
from ekc.search.cost_model.acquisition import Acquisition
from ekc.search.cost_model.features import ModelInputCache, ModelInputs, make_model_inputs
from ekc.search.cost_model.learner import LOWER_BOUND_STDS, Learner
from ekc.search.cost_model.transfer import TransferPrior
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import ACQUISITION, MEASURING
from ekc.search.data.options import DEFAULT_METHOD, SearchMethod, TuneOptions
from ekc.search.data.population import Population, ScheduleSpace
from ekc.search.data.result import compute_min_latency_s
from ekc.search.loop.compile_job import KernelCompiler
from ekc.search.loop.incumbent import Incumbent
from ekc.search.loop.measure import MeasurementFailure, Measurer
from ekc.search.loop.reporter import Reporter

Array = NDArray[np.float64]


class ScheduleTask:
    """Makes candidates of genomes, measures them, and keeps the models that score genomes."""

    def __init__(
        self,
        space: ScheduleSpace[ModelInputs],
        measurer: Measurer,
        executor: Executor,
        options: TuneOptions,
        reporter: Reporter | None = None,
        method: SearchMethod = DEFAULT_METHOD,
        transfer_prior: TransferPrior | None = None,
    ) -> None:
        self.space, self.measurer, self.options = space, measurer, options
        self.device = measurer.device
        self.compiler = KernelCompiler(executor, measurer.device)
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
        """Make candidates of the caller's schedules, each once."""
        found = {s.digest: s for s in start}
        self._tried_digests |= {digest for s in found.values() for digest in self._compute_digests(s)}
        return [self.create_candidate(s, "given", 1) for s in found.values()]

    def make_candidate(self, population: Population, row: int, round_number: int) -> Candidate | None:
        """Make the candidate of a genome; None if its schedule or its CUDA text was tried before."""
        schedule = self.space.build_schedule(population, row)
        digests = self._compute_digests(schedule)
        is_tried = not digests.isdisjoint(self._tried_digests)
        self._tried_digests |= digests
        if is_tried:
            return None
        return self.create_candidate(schedule, self.space.get_structure_name(population, row), round_number)

    def _compute_digests(self, schedule: Schedule) -> set[str]:
        """Compute the digests of a schedule and of its CUDA text."""
        try:
            source = generate(schedule, self.device.limits).source
        except EkcError:
            # Compiling raises this again, and the failure is stored.
            return {schedule.digest}
        return {schedule.digest, digest_cuda_source(source)}

    def create_candidate(self, schedule: Schedule, structure: str, round_number: int) -> Candidate:
        """Analyse a schedule and make a candidate of it."""
        quantities = analyse_program(schedule.program, self.device.limits)
        inputs = self._apply_transfer_prior(make_model_inputs(quantities, self.device.peaks))
        expected = float(inputs.expected_latency_s[0]), float(inputs.expected_power_w[0])
        return Candidate(schedule, structure, inputs.features[0], *expected, round_number)

    def _apply_transfer_prior(self, inputs: ModelInputs) -> ModelInputs:
        """Correct the analytic prior by what was measured of other operators, after a warm start."""
        return inputs if self.transfer_prior is None else self.transfer_prior.correct_inputs(inputs)

    def score_population(self, population: Population) -> NDArray[np.float64]:
        """Score genomes by the acquisition function of the objective; lower is better."""
        if not len(population):
            return np.zeros(0)
        return self.compute_acquisitions(population)[0].score()

    def compute_acquisitions(self, population: Population) -> tuple[Acquisition, ...]:
        """Compute the acquisition function of the objective, and the one of latency alone."""
        incumbent, inputs = self.incumbent, self.input_cache.get_inputs(population)
        mean, std, power, power_std = self.learner.predict(inputs, incumbent.max_latency_s)
        least_s = compute_min_latency_s(self.space.op, 2 * inputs.fma_count, self.device.peaks)
        log_feasibility = self.learner.spill_model.predict_log_feasibility(inputs.features)
        by_latency = _make_acquisition(mean, std, incumbent.latencies_s, floor=np.log(least_s))
        acquisitions: tuple[Acquisition, ...] = (by_latency,)
        if self.options.objective != "latency":
            acquisitions = self._make_objective_acquisition(mean, std, power, power_std, least_s), by_latency
        return tuple(replace(one, log_feasibility=log_feasibility) for one in acquisitions)

    def _make_objective_acquisition(
        self, mean: Array, std: Array, power: Array, power_std: Array, min_latency_s: Array
    ) -> Acquisition:
        """Make the acquisition function of the objective. Its floor is the least latency on the roofline, at
        a power `LOWER_BOUND_STDS` standard deviations below the predicted one."""
        incumbent, power_w = self.incumbent, np.exp(power)
        low, high = (incumbent.score(np.exp(x), power_w) for x in (mean, mean + std))
        floor = np.log(incumbent.score(min_latency_s, np.exp(power - LOWER_BOUND_STDS * power_std)))
        return _make_acquisition(np.log(low), np.log(high / low), incumbent.scores, power_std, floor)

    def score_tie_breaks(self, population: Population) -> NDArray[np.float64]:
        """Score genomes for the closing rounds: first those predicted to tie with the incumbent, by their
        issue slots, then the others by their predicted objective."""
        incumbent = self.incumbent
        if not len(population) or not incumbent.candidates:
            return self.score_population(population)
        predicted = self.compute_acquisitions(population)[0]
        tied = (predicted.mean <= predicted.best + math.log1p(incumbent.tie_margin)) & (
            predicted.log_feasibility > ACQUISITION.min_log_feasibility
        )
        log_slots = np.log(self.input_cache.get_inputs(population).issue_slots)
        return np.where(tied, log_slots - ACQUISITION.tie_priority, predicted.mean)

    def predict_correlation(self, population: Population) -> NDArray[np.float64]:
        """Predict correlations by the latency model: every trial is timed, and few are metered."""
        return self.learner.latency_model.predict_correlation(
            self.input_cache.get_inputs(population).features
        )

    @property
    def incumbent(self) -> Incumbent:
        """The best schedule so far."""
        return Incumbent(self.options, self.timed_candidates)

    @property
    def timed_candidates(self) -> list[Candidate]:
        """Candidates that have a latency."""
        return [c for c in self.candidates if c.ok]

    def measure(self, candidates: Sequence[Candidate], round_number: int) -> list[float]:
        """Compile candidates together, time them one by one and learn; when due, meter a share of the
        fast."""
        for c in candidates:
            if self.measurer.find_first_timing(c.schedule) is None:
                self.compiler.submit(c.schedule)
        self.reporter.enter_stage("measure", round_number)
        timed = []
        jobs = [(c.schedule, partial(self.compiler.get_kernel, c.schedule)) for c in candidates]
        with self.measurer.start_timings(jobs):
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
        trials = -(-self.options.trials // MEASURING.meterings_per_run)
        due = min(max(trials, MEASURING.min_trials_per_metering), MEASURING.max_trials_per_metering)
        return not self.learner.model_cards or self._trials_since_metering >= due

    def meter_share(self, round_number: int) -> None:
        """Meter a share of the kernels timed since the last time, and compare the energy model with them."""
        if self._trials_since_metering and self.options.objective != "latency":
            self.reporter.enter_stage("meter", round_number)
            self.learner.learn_energy(self.timed_candidates, round_number, self._meter_candidate)
        self._trials_since_metering = 0

    def _time_candidate(self, candidate: Candidate) -> None:
        schedule = candidate.schedule
        outcome = self.measurer.time(schedule, partial(self.compiler.get_kernel, schedule))
        if isinstance(outcome, MeasurementFailure):
            candidate.status = outcome.status
        else:
            candidate.timings.append(outcome)

    def _meter_candidate(self, candidate: Candidate) -> bool:
        schedule = candidate.schedule
        get_kernel = partial(self.compiler.get_kernel, schedule)
        outcome = self.measurer.meter(schedule, get_kernel, MEASURING.label_window_s)
        metered = not isinstance(outcome, MeasurementFailure)
        if isinstance(outcome, MeasurementFailure):
            candidate.status = outcome.status
        else:
            candidate.meterings.append(outcome)
        self.reporter.report("metering", candidate)
        return metered

    def can_continue(self) -> bool:
        """Whether there is time left and no callback asked to end. One schedule is tried in any case."""
        budget = self.options.time_budget_s
        if budget is not None and self.elapsed_s > budget and self.candidates:
            self.is_out_of_time = True
        return not self.is_out_of_time and not (self.reporter.is_stop_requested and self.candidates)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run was requested."""
        return time.monotonic() - self.options.requested_at_s


def _make_acquisition(
    mean: Array,
    std: Array,
    measured: Array,
    unobserved_std: Array | float = 0.0,
    floor: Array | float = -np.inf,
) -> Acquisition:
    """Make the acquisition function of improving on the best of the `measured` figures, given the predicted
    mean and standard deviation of log figures."""
    best = math.log(measured.min()) if len(measured) else ACQUISITION.initial_log_best
    return Acquisition(mean, std, best, unobserved_std, floor)
