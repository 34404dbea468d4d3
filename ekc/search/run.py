"""`ekc.tune`: its arguments, the device, the record store and the workers; and one tuning run: baseline,
rounds, finals, the search of clocks, result.

The search follows arXiv 2411.18873: it minimises latency first and energy second, and learns an energy model
so that few kernels are metered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ekc import devices
from ekc.argument_checks import check_flag
from ekc.codegen.generate import describe_toolchain
from ekc.devices.device import Device, Metering, ModelledDevice, Timing, check_device_memory
from ekc.devices.observer import Observer, check_observers
from ekc.devices.statistics import Interval
from ekc.errors import EkcError, NothingLegal
from ekc.ir.operator import Operator
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from ekc.search.cost_model.features import ModelInputs
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import MEASURING
from ekc.search.data.events import EventListener
from ekc.search.data.options import (
    DEFAULT_METHOD,
    SearchMethod,
    TuneOptions,
    check_executor_and_callback,
    check_options,
    check_paths,
    check_start,
    parse_contenders,
    parse_effort,
)
from ekc.search.data.population import ScheduleSpace
from ekc.search.data.result import INTERRUPTED, STOPPED, DeviceInfo, compute_roofline_bound
from ekc.search.data.selection import parse_objective
from ekc.search.data.trial import COLUMNS, Trials
from ekc.search.database.listing import CSV_COLUMNS
from ekc.search.explain.by_model import explain_choice
from ekc.search.loop.breeding import Breeder
from ekc.search.loop.clock_stage import ClockStage, SearchedLayer
from ekc.search.loop.compile_job import open_worker_pool
from ekc.search.loop.finals import Finals, LibraryContender
from ekc.search.loop.measure import MeasurementFailure, Measurer
from ekc.search.loop.reporter import Reporter
from ekc.search.loop.rounds import SearchLoop, compute_population_size
from ekc.search.loop.stopping import StoppingRule
from ekc.search.loop.task import ScheduleTask
from ekc.search.open_run import open_record_store, open_space
from ekc.search.progress import show_progress
from ekc.search.space.evolving_space import EvolvingSpace
from ekc.search.space.space_structure import describe_structure
from ekc.search.tuning_result import TuningResult


class TuningRun:
    """One run. Call `run` once; or, to run several in turns, `measure_baseline`, rounds of `search_loop`,
    `run_finals` and `make_result`."""

    def __init__(
        self,
        space: ScheduleSpace[ModelInputs],
        measurer: Measurer,
        executor: Executor,
        options: TuneOptions,
        reporter: Reporter | None = None,
        method: SearchMethod = DEFAULT_METHOD,
    ) -> None:
        self.op, self._origin, self.options = space.op, space.origin, options
        self.measurer, self.device = measurer, measurer.device
        self.task = ScheduleTask(space, measurer, executor, options, reporter, method)
        self.reporter = self.task.reporter
        size = compute_population_size(options.trials, method.breeding)
        self._evolving = space if isinstance(space, EvolvingSpace) else None
        random = np.random.default_rng(options.seed)
        self.breeder = Breeder(space, random, size, method.breeding, self._evolving)
        self.search_loop = SearchLoop(self.breeder, self.task, method.rounds)
        self.baseline = self.task.create_candidate(make_naive_schedule(self.op), "naive", 0)
        self.finals = Finals(
            self.op, measurer, self.task.compiler.get_kernel, options.rule, self.reporter.report
        )
        if "library" in options.contenders:
            self.finals.library = LibraryContender(self.op, measurer, options.rule)
        self._finalists: list[Candidate] = []
        self.is_interrupted = False
        self.clock_stage: ClockStage | None = None

    def run(self, start: Sequence[Schedule]) -> TuningResult:
        """Run baseline, rounds and finals, and make the result."""
        calls = self.options.expected_calls
        should_stop = None if calls is None else partial(StoppingRule(self.task).should_stop, calls)
        try:
            self.measure_baseline()
            self.reporter.enter_stage("breed", 1)
            self.search_loop.run(self.options.trials, self.task.make_start_candidates(start), should_stop)
            self.run_finals()
        except KeyboardInterrupt:
            if not self.task.timed_candidates:
                raise
            self.note_interrupt()
        return self.make_result()

    def measure_baseline(self) -> None:
        """Time and meter the naive schedule."""
        self.reporter.enter_stage("baseline")
        baseline, schedule = self.baseline, self.baseline.schedule
        if self.task.time_candidate(baseline):
            get_kernel = partial(self.task.compiler.get_kernel, schedule)
            metering = self.measurer.meter(schedule, get_kernel, MEASURING.final_window_s)
            if not isinstance(metering, MeasurementFailure):
                baseline.meterings.append(metering)
                baseline.metering_s = self.measurer.cost.metering_s
        self.reporter.report("baseline", baseline)

    def run_finals(self) -> None:
        """Check the finalists and measure them again, and with clocks="search" at clocks."""
        self.task.meter_share(self.search_loop.round_number)
        # The naive schedule may win if the search finds nothing better.
        self.reporter.enter_stage("finals")
        self._finalists = self.finals.run([*self.task.candidates, self.baseline], self.task.can_continue)
        if self.options.search_clocks and self._finalists:
            self.reporter.enter_stage("clocks")
            self._search_clocks(self._finalists)

    def note_interrupt(self) -> None:
        """Note that Ctrl-C ended the run. At least one schedule must have a latency."""
        self.is_interrupted = True
        self.task.learner.predict_powers(self.task.timed_candidates)

    def make_result(self) -> TuningResult:
        """Make the result of what was measured. Raises `NothingLegal` where no schedule works."""
        working = self._finalists or self.finals.pick_finalists([*self.task.candidates, self.baseline])
        if not working or not self.task.timed_candidates:
            raise NothingLegal(self._describe_failures())
        result = self._assemble_result(*self.options.rule.select_winners(working), self.baseline)
        self.reporter.stage = "end"
        self.reporter.report("end", text=result.stopped)
        return result

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

    def _search_clocks(self, finalists: list[Candidate]) -> None:
        """Search clocks for the finalists; the summary says why if no clock can be set."""
        best, fastest = (c.to_trial() for c in self.options.rule.select_winners(finalists))
        trials = tuple(c.to_trial() for c in finalists)
        layer = SearchedLayer(self.op.name, self.op, {self.op.name: 1}, fastest, best, trials)
        self.clock_stage = ClockStage(
            [layer],
            self.measurer,
            self.task.compiler.get_kernel,
            self.options.max_slowdown,
            self.options.seed,
            self.task.can_continue,
            partial(self._report_clock, {c.schedule.digest: c for c in finalists}),
        )
        self.clock_stage.run()

    def _report_clock(
        self,
        finalists: Mapping[str, Candidate],
        schedule: Schedule,
        timing: Timing,
        metering: Metering | None,
    ) -> None:
        """Report a finalist that was timed, or timed and metered, at another clock."""
        meterings = [] if metering is None else [metering]
        measured = replace(finalists[schedule.digest], timings=[timing], meterings=meterings)
        self.reporter.report("clock", measured)

    def _assemble_result(self, best: Candidate, fastest: Candidate, baseline: Candidate) -> TuningResult:
        device, stage, trial = self.device, self.clock_stage, best.to_trial()
        edited = self._evolving and self._evolving.find_edited(trial.schedule)
        library, note = None, ""
        if self.finals.library is not None:
            library, note = self.finals.library.make_result(trial, self.finals.is_library_in_turn)
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
            best=trial,
            fastest=fastest.to_trial(),
            baseline=baseline.to_trial(),
            trials=Trials(c.to_trial() for c in self.task.candidates),
            seconds=self.task.elapsed_s,
            roof=compute_roofline_bound(self.op, device.peaks),
            model_cards=tuple(self.task.learner.model_cards),
            refusals=dict(self.breeder.refusals),
            bred=self.breeder.repaired_count,
            clock_front=stage.make_clock_front() if stage else Trials(),
            clocks_note=stage.note if stage else "",
            plan=stage.make_plan() if stage else None,
            stopped=self._stop_reason,
            user_space=self._origin,
            saving_interval=self._estimate_saving_interval(best, fastest),
            spent=replace(self.measurer.cost),
            predictions=tuple(self.task.learner.prediction_records),
            seed=self.options.seed,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            toolchain=describe_toolchain(),
            library=library,
            library_note=note,
            features=np.stack([c.features for c in self.task.candidates]),
            found=edited.name if edited else "",
            found_structure=describe_structure(edited) if edited else None,
            explanation=explain_choice(best, fastest, device, self.task.booster),
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


def tune(
    op: Operator,
    target: str = "auto",
    trials: int | None = None,
    objective: str = "energy",
    max_slowdown: float = 0.05,
    clocks: str = "fixed",
    seed: int = 0,
    records: str | Path | None = None,
    time_budget_s: float | None = None,
    start: Sequence[Schedule] = (),
    executor: Executor | None = None,
    progress: bool = True,
    effort: str | None = None,
    callback: EventListener | None = None,
    contenders: Sequence[str] = (),
    observers: Sequence[Observer] = (),
    space: Sequence[Any] | None = None,
    evolve: bool = False,
) -> TuningResult:
    """Search the schedules of `op` for the one of least energy that is nearly as fast as the fastest.

    target: "auto", "cuda:N", a simulated device such as "a100", or "recorded:FILE", which replays a
    recording. trials: schedules to time (default 256). effort: instead of trials, "quick", "standard" or
    "full": at most 64, 256 or 1024, fewer if another round would not pay. objective: "energy" (least joules
    among kernels at most `max_slowdown` slower than the fastest), "edp" (likewise) or "latency"
    (`max_slowdown` is not used). clocks: "fixed", or "search" for a front over clocks. records: an SQLite
    file. Its figures are not measured again, so an interrupted run resumes. time_budget_s: seconds after
    which the run ends with the best so far. start: schedules to try first. executor: a concurrent.futures
    Executor for compiling, or a dask.distributed Client with the NVRTC, generator and ekc of this process. By
    default a worker per core, at most 32: processes for 32 trials or more on simulated devices, else threads.
    progress: write the progress to stderr. callback: called with every `TuningEvent` in the thread of the
    run. True ends it with the best so far, after at least one trial. The logger "ekc.tune" gets the same
    events. contenders: ("library",) also measures cuBLASLt or cuDNN on a real GPU, in turn with the finalists
    (`TuningResult.library`). observers: each an `ekc.Observer`, measured too (`Trial.readings`). space: a
    list of steps with holes (`ekc.hole`), or of such lists, to search instead of the rules' structures.
    evolve: also edit steps of good structures (`TuningResult.found_structure`).

    The same seed gives the same winner for any number of workers, unless time ran out. Ctrl-C ends the run
    with the best so far. Raises `InvalidInput` for arguments and for an operator beyond the memory of the
    target, `DeviceError` for the target, `RecordError` for a file, `ToolchainError` for an unusable
    `executor`, `NothingLegal` with the reasons if no schedule works."""
    check_start(op, start)
    check_executor_and_callback(executor, callback)
    check_flag("progress", progress)
    check_paths(records=records)
    check_options(trials, effort, max_slowdown, clocks, seed, time_budget_s)
    size = parse_effort(effort)
    options = TuneOptions(
        size.trials if trials is None else trials,
        *(parse_objective(objective), max_slowdown, clocks == "search", seed, time_budget_s),
        expected_calls=size.expected_calls if trials is None else None,
        contenders=parse_contenders(contenders),
    )
    watching = check_observers(observers, (*COLUMNS, *CSV_COLUMNS))
    device = devices.open(target)
    check_device_memory(op, device)
    with show_progress(progress) as displays:
        reporter = Reporter(op, device, options, displays + (() if callback is None else (callback,)))
        return _run_search(op, device, options, reporter, start, records, executor, watching, space, evolve)


def _run_search(
    op: Operator,
    device: Device,
    options: TuneOptions,
    reporter: Reporter,
    start: Sequence[Schedule],
    records: str | Path | None,
    executor: Executor | None,
    observers: Sequence[Observer],
    structures: Sequence[Any] | None,
    evolve: bool,
) -> TuningResult:
    """Run with the record store and the workers open, and report the start and an error."""
    check_flag("evolve", evolve)
    with ExitStack() as stack:
        try:
            reporter.report("start")
            store = stack.enter_context(open_record_store(device, records))
            space, measurer = open_space(op, device, options.objective, store, observers, structures, evolve)
            workers = executor or stack.enter_context(open_worker_pool(device, options.trials))
            return TuningRun(space, measurer, workers, options, reporter).run(start)
        except (EkcError, KeyboardInterrupt) as problem:
            reporter.report("error", text=str(problem) or INTERRUPTED)
            raise
