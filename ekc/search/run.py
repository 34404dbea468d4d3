"""One tuning run: baseline, rounds, finals, the front over clocks, result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import numpy as np

from ekc.codegen.generate import describe_toolchain
from ekc.devices.device import ModelledDevice
from ekc.devices.statistics import Interval
from ekc.errors import DeviceError, NothingLegal
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from ekc.search.cost_model.features import ModelInputs
from ekc.search.cost_model.transfer import TransferPrior
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import MEASURING
from ekc.search.data.options import DEFAULT_METHOD, SearchMethod, TuneOptions
from ekc.search.data.population import ScheduleSpace
from ekc.search.data.result import INTERRUPTED, STOPPED, DeviceInfo, compute_roofline_bound
from ekc.search.data.trial import Trial, Trials
from ekc.search.loop.breeding import Breeder
from ekc.search.loop.finals import Finals
from ekc.search.loop.generations import SearchLoop, compute_population_size
from ekc.search.loop.measure import MeasurementFailure, Measurer
from ekc.search.loop.reporter import Reporter
from ekc.search.loop.stopping import CostBenefitRule
from ekc.search.loop.task import ScheduleTask
from ekc.search.tuning_result import TuningResult


class TuningRun:
    """One run. Call `run` once."""

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
        self.op, self.measurer, self.device, self.options = space.op, measurer, measurer.device, options
        self.task = ScheduleTask(space, measurer, executor, options, reporter, method, transfer_prior)
        self.reporter = self.task.reporter
        calls = options.expected_calls
        size = compute_population_size(options.trials, method.breeding)
        self.breeder = Breeder(space, np.random.default_rng(options.seed), size, method.breeding)
        stopping_rule = None if calls is None else CostBenefitRule(self.task, calls)
        self.search_loop = SearchLoop(self.breeder, self.task, options.trials, method.rounds, stopping_rule)
        self.is_interrupted = False
        self.clock_front: list[Trial] = []
        self.clocks_note = ""

    def run(self, start: Sequence[Schedule]) -> TuningResult:
        """Run baseline, rounds and finals, and make the result."""
        baseline = self.task.create_candidate(make_naive_schedule(self.op), "naive", 0)
        goal = self.options.objective, self.options.max_slowdown
        finals = Finals(self.op, self.measurer, self.task.compiler.get_kernel, *goal, self.reporter.report)
        finalists: list[Candidate] = []
        try:
            self.reporter.enter_stage("baseline")
            self._measure_baseline(baseline)
            self.reporter.report("baseline", baseline)
            self.reporter.enter_stage("breed", 1)
            self.search_loop.run(self.task.make_start_candidates(start))
            self.task.meter_share(self.search_loop.round_number)
            # The naive schedule may win if the search finds nothing better.
            self.reporter.enter_stage("finals")
            finalists = finals.run([*self.task.candidates, baseline], self.task.can_continue)
            if self.options.search_clocks and finalists:
                self.reporter.enter_stage("clocks")
                self._measure_clocks(finals.select_winners(finalists)[0])
        except KeyboardInterrupt:
            if not self.task.timed_candidates:
                raise
            self.is_interrupted = True
            self.task.learner.predict_powers(self.task.timed_candidates)
        working = finalists or finals.pick_finalists([*self.task.candidates, baseline])
        if not working or not self.task.timed_candidates:
            raise NothingLegal(self._describe_failures())
        best, fastest = finals.select_winners(working)
        result = self._make_result(best, fastest, baseline)
        self.reporter.stage = "end"
        self.reporter.report("end", text=result.stopped)
        return result

    def _measure_baseline(self, baseline: Candidate) -> None:
        schedule = baseline.schedule
        get_kernel = partial(self.task.compiler.get_kernel, schedule)
        timing = self.measurer.time(schedule, get_kernel)
        if isinstance(timing, MeasurementFailure):
            baseline.status = timing.status
            return
        baseline.timings.append(timing)
        metering = self.measurer.meter(schedule, get_kernel, MEASURING.final_window_s)
        if not isinstance(metering, MeasurementFailure):
            baseline.meterings.append(metering)
            baseline.metering_s = self.measurer.cost.metering_s

    @property
    def _stop_reason(self) -> str:
        """Why the run ended early; "" if it did not."""
        if self.is_interrupted:
            return INTERRUPTED
        if self.reporter.is_stop_requested:
            return STOPPED
        if self.task.is_out_of_time:
            return f"time budget of {self.options.time_budget_s:g} s used"
        return self.search_loop.stop_reason

    def _measure_clocks(self, best: Candidate) -> None:
        """Measure the best schedule at other clocks; the summary says why if no clock can be set."""
        clocks = self.device.clocks()
        if not clocks.mhz:
            self.clocks_note = f"not searched: {clocks.reason}"
            return
        picks = np.linspace(0, len(clocks.mhz) - 1, MEASURING.max_clocks_tried)
        for mhz in sorted({clocks.mhz[int(i)] for i in picks}):
            if not self.task.can_continue():
                break
            trial = self._measure_at_clock(best, mhz)
            self.clock_front += [trial] if trial is not None else []

    def _measure_at_clock(self, best: Candidate, mhz: int) -> Trial | None:
        """Measure the best schedule at one clock; None after a failure, which is stored and summarised."""
        try:
            measurer = Measurer(self.device.at_clock(mhz), self.measurer.store, self.measurer.cost)
        except DeviceError as problem:
            self.clocks_note = self.clocks_note or f"at {mhz} MHz: device: {problem}"
            return None
        c = self.task.create_candidate(best.schedule, best.structure, best.round)
        get_kernel = partial(self.task.compiler.get_kernel, best.schedule)
        timing = measurer.time(c.schedule, get_kernel)
        metering = measurer.meter(c.schedule, get_kernel, MEASURING.final_window_s)
        for outcome in (timing, metering):
            if isinstance(outcome, MeasurementFailure):
                self.clocks_note = self.clocks_note or f"at {mhz} MHz: {outcome.status}"
                return None
        c.timings, c.meterings = [timing], [metering]  # type: ignore[list-item]
        self.reporter.report("clock", c)
        return c.to_trial()

    def _make_result(self, best: Candidate, fastest: Candidate, baseline: Candidate) -> TuningResult:
        device = self.device
        return TuningResult(
            op=self.op,
            device=DeviceInfo(
                *(device.name, device.simulated, device.label, device.clock_regime, device.arch),
                replayed=self.measurer.is_replay,
                driver=device.driver,
                data_policy=device.data_policy,
                peaks=device.peaks,
                limits=device.limits,
            ),
            objective=self.options.objective,
            max_slowdown=self.options.max_slowdown,
            best=best.to_trial(),
            fastest=fastest.to_trial(),
            baseline=baseline.to_trial(),
            trials=Trials(c.to_trial() for c in self.task.candidates),
            seconds=self.task.elapsed_s,
            roof=compute_roofline_bound(self.op, device.peaks),
            model_cards=tuple(self.task.learner.model_cards),
            refusals=dict(self.breeder.refusals),
            bred=self.breeder.repaired_count,
            clock_front=Trials(self.clock_front),
            clocks_note=self.clocks_note,
            stopped=self._stop_reason,
            saving_interval=self._estimate_saving_interval(best, fastest),
            spent=replace(self.measurer.cost),
            predictions=tuple(self.task.learner.prediction_records),
            seed=self.options.seed,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            toolchain=describe_toolchain(),
            features=np.stack([c.features for c in self.task.candidates]),
        )

    def _estimate_saving_interval(self, best: Candidate, fastest: Candidate) -> Interval | None:
        """Interval of the saving on a device that is a model; None for one schedule or an interrupted run."""
        device, schedules = self.device, (best.schedule, fastest.schedule)
        if not isinstance(device, ModelledDevice) or schedules[0] == schedules[1] or self.is_interrupted:
            return None
        return device.estimate_saving_interval(*map(self.task.compiler.get_kernel, schedules))

    def _describe_failures(self) -> str:
        """Describe in one line why schedules were refused or failed, the most frequent reason first."""
        failed = Counter(c.status.split("\n")[0] for c in self.task.candidates if not c.ok)
        reasons = Counter(self.breeder.refusals) + failed
        listed = ", ".join(f"{why} ({n})" for why, n in reasons.most_common(8))
        listed = listed or self._stop_reason or "no schedule was tried"
        return f"{self.op.name} on {self.device.label}: no schedule works; reasons: {listed}"
