"""The search task of tuning one operator on one device: candidates, models, timings and meterings."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial

import numpy as np

from ekc.codegen.compiled import digest_cuda_source
from ekc.codegen.generate import generate
from ekc.errors import EkcError
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.schedule.schedule import Schedule
from ekc.search.cost_model.acquisition import Incumbent, LearnedAcquisition
from ekc.search.cost_model.boosted_prior import BoostedPrior
from ekc.search.cost_model.features import ModelInputCache, ModelInputs, make_model_inputs
from ekc.search.cost_model.learner import Learner
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import MEASURING
from ekc.search.data.options import DEFAULT_METHOD, SearchMethod, TuneOptions
from ekc.search.data.population import Population, ScheduleSpace
from ekc.search.loop.compile_job import KernelCompiler
from ekc.search.loop.measure import MeasurementFailure, Measurer
from ekc.search.loop.reporter import Reporter


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
    ) -> None:
        self.space, self.measurer, self.options = space, measurer, options
        self.device = measurer.device
        self.compiler = KernelCompiler(executor, measurer.device)
        self.method = method
        device = self.device
        self.booster: BoostedPrior | None = None
        if method.corrects_prior:
            self.booster = BoostedPrior(device.peaks, device.limits.sms)
        self.learner = Learner(device.peaks, device.limits, options.max_slowdown, self.method, self.booster)
        self._make_inputs = partial(make_model_inputs, predict_prior=device.prior, booster=self.booster)
        self.input_cache = ModelInputCache(space, lambda some: space.extract_inputs(some, self._make_inputs))
        self.acquisition = LearnedAcquisition(
            space.op, self.device.peaks, self.learner, self.input_cache, lambda: self.incumbent
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
        inputs, rows = self._make_inputs(quantities), np.zeros(0, np.float32)
        if self.booster is not None:
            rows = self.booster.make_inputs(inputs.features, self.device.prior(quantities))
        return Candidate(
            schedule=schedule,
            structure=structure,
            features=inputs.features[0],
            expected_latency_s=float(inputs.expected_latency_s[0]),
            expected_power_w=float(inputs.expected_power_w[0]),
            standby_w=float(inputs.standby_w[0]),
            round=round_number,
            booster_inputs=rows.reshape(-1),
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
        """Compile candidates together, time them one by one and learn; meter a share of the fast if due."""
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
                self.time_candidate(c)
                self.reporter.report("trial", c)
        if any(c.ok for c in timed):
            self.learner.learn_latency(self.timed_candidates)
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

    def time_candidate(self, candidate: Candidate) -> bool:
        """Time the kernel of a candidate; whether that succeeded."""
        schedule = candidate.schedule
        outcome = self.measurer.time(schedule, partial(self.compiler.get_kernel, schedule))
        if isinstance(outcome, MeasurementFailure):
            candidate.status = outcome.status
        else:
            candidate.timings.append(outcome)
        return not isinstance(outcome, MeasurementFailure)

    def _meter_candidate(self, candidate: Candidate) -> bool:
        schedule = candidate.schedule
        get_kernel = partial(self.compiler.get_kernel, schedule)
        outcome = self.measurer.meter(schedule, get_kernel, MEASURING.label_window_s)
        if isinstance(outcome, MeasurementFailure):
            candidate.status = outcome.status
        else:
            candidate.meterings.append(outcome)
            candidate.metering_s = self.measurer.cost.metering_s
        self.reporter.report("metering", candidate)
        return not isinstance(outcome, MeasurementFailure)

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
