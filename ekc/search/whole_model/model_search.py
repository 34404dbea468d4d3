"""`ekc.tune_model`: the layers of a model share one budget of trials. One run opens the layers, runs them in
turns or one after another, and makes the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from ekc import devices
from ekc.argument_checks import check_flag, format_value
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Device, check_device_memory
from ekc.errors import EkcError, InvalidInput, NothingLegal
from ekc.ir.schedule.schedule import Schedule
from ekc.models.model import Model, ModelLayer
from ekc.search.cost_model.surrogate import PeerRows
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import PEER_ROUNDS
from ekc.search.data.events import EventListener
from ekc.search.data.options import (
    DEFAULT_METHOD,
    SearchMethod,
    TuneOptions,
    check_executor_and_callback,
    check_options,
    check_paths,
)
from ekc.search.data.result import INTERRUPTED, STOPPED, MeasurementCost
from ekc.search.data.selection import parse_objective
from ekc.search.database.database import RecordStore
from ekc.search.loop.clock_stage import ClockStage, SearchedLayer
from ekc.search.loop.compile_job import open_worker_pool
from ekc.search.loop.measure import Measurer
from ekc.search.loop.reporter import LayerLabel, Reporter
from ekc.search.open_run import open_record_store, open_space
from ekc.search.progress import show_progress
from ekc.search.run import TuningRun
from ekc.search.tuning_result import TuningResult
from ekc.search.whole_model.model_result import NOT_TUNED, ModelResult, TunedLayer
from ekc.search.whole_model.scheduler import (
    LayerRun,
    RecentSpaces,
    Scheduler,
    TrialBudget,
    has_ended,
    make_budget,
)
from ekc.tables import join_lines


@dataclass
class ModelSearch:
    """One run of a model. Call `run` once."""

    model: Model
    device: Device
    options: TuneOptions
    """Options of a layer; `trials` is the mean share."""
    budget: TrialBudget
    store: RecordStore
    workers: Executor
    listeners: tuple[EventListener, ...] = ()
    is_interrupted: bool = False
    _scheduler: Scheduler = field(init=False)
    """It has the runs of the layers, also where they are tuned one after another."""
    _peers: PeerRows = field(default_factory=PeerRows)
    _recent_spaces: RecentSpaces = field(default_factory=RecentSpaces)
    _candidates: list[Sequence[Candidate]] = field(default_factory=list)
    _tuned: dict[str, TunedLayer] = field(default_factory=dict)
    """Layers that have ended, by the digest of their operator."""

    def __post_init__(self) -> None:
        self._scheduler = Scheduler([], self.budget.trials, self.budget.expected_passes)

    def run(self) -> ModelResult:
        """Tune all layers. Raises `NothingLegal` if none has a kernel, and `KeyboardInterrupt` after Ctrl-C
        before the first has one."""
        if self.budget.is_equal:
            self._run_one_after_another()
        else:
            self._run_in_turns()
        layers = tuple(
            self._tuned.get(layer.op.digest) or TunedLayer(layer, None, self._explain_absence())
            for layer in self.model.layers
        )
        results = [x.result for x in layers if x.result is not None]
        if not results:
            if self.is_interrupted:
                raise KeyboardInterrupt
            reasons = "; ".join(f"{x.layer.name}: {x.failure}" for x in layers)
            raise NothingLegal(f"{self.model.name}: no layer has a kernel; {reasons}")
        stage = self._search_clocks(layers)
        return ModelResult(
            model=self.model,
            layers=layers,
            device=results[0].device,
            objective=self.options.objective,
            max_slowdown=self.options.max_slowdown,
            trials=self.budget.trials,
            seconds=time.monotonic() - self.options.requested_at_s,
            seed=self.options.seed,
            stopped=self._describe_end(),
            turns=tuple(self._scheduler.turns),
            plan=stage.make_plan() if stage else None,
            clocks_note=stage.note if stage else "",
            clocks_metering_s=stage.metering_s if stage else 0.0,
            clocks_joules=stage.measurer.cost.joules if stage else 0.0,
        )

    def _search_clocks(self, layers: Sequence[TunedLayer]) -> ClockStage | None:
        """Search one clock and the kernels for it; None where that was not asked for, and after Ctrl-C."""
        if not self.options.search_clocks or self.is_interrupted:
            return None
        stage = make_clock_stage(
            *(layers, self.device, self.store),
            {run.layer.op.digest: run.run.task.compiler.get_kernel for run in self._scheduler.runs},
            self.options,
            self._scheduler.runs[-1].run.task.can_continue,
        )
        try:
            stage.run()
        except KeyboardInterrupt:
            self.is_interrupted = True
        return stage

    def _run_one_after_another(self) -> None:
        """Tune each layer as `ekc.tune` does, with the same number of trials."""
        for run in self._open_layers():
            if has_ended(self._scheduler.runs):
                return
            self._scheduler.runs.append(run)
            self._scheduler.turns.append(run.layer.name)
            try:
                self._keep(run, run.run_alone())
            except KeyboardInterrupt:
                self.is_interrupted = True
            self.is_interrupted |= run.run.is_interrupted
            if self.is_interrupted:
                return

    def _run_in_turns(self) -> None:
        """Warm up each layer, tune the layers in turns, and run the finals of each at the end."""
        try:
            for run in self._open_layers():
                if has_ended(self._scheduler.runs):
                    break
                self._scheduler.runs.append(run)
                self._scheduler.warm_up(run)
            self._scheduler.run_turns()
            for run in self._scheduler.runs:
                self._keep(run, run.finish())
        except KeyboardInterrupt:
            self.is_interrupted = True
            for run in self._scheduler.runs:
                if run.layer.op.digest not in self._tuned:
                    self._keep(run, run.finish_early())

    def _keep(self, run: LayerRun, result: TuningResult | None) -> None:
        """Keep the result of a layer, or its failure."""
        if result is not None or run.failure:
            self._tuned[run.layer.op.digest] = TunedLayer(run.layer, result, run.failure)

    @property
    def _shares_rows(self) -> bool:
        """Whether layers learn from each other. With equal shares each is tuned as `ekc.tune` does it."""
        return not self.budget.is_equal and len(self.model.layers) > 1

    def _open_layers(self) -> Iterator[LayerRun]:
        """Open the space and the models of each layer, when it is asked for. A layer that cannot be opened
        has failed."""
        for layer in self.model.layers:
            label = LayerLabel(layer.name, layer.uses[0].model, self.budget.trials, self._candidates)
            reporter = Reporter(layer.op, self.device, self.options, self.listeners, label=label)
            reporter.report("start")
            try:
                check_device_memory(layer.op, self.device)
                space, measurer = open_space(layer.op, self.device, self.options.objective, self.store)
                # Clocks are searched for all layers together, after the last of them.
                options = replace(self.options, search_clocks=False)
                method = SearchMethod(rounds=PEER_ROUNDS) if self._shares_rows else DEFAULT_METHOD
                run = TuningRun(space, measurer, self.workers, options, reporter, method)
            except EkcError as problem:
                failure = join_lines(str(problem))
                reporter.report("error", text=failure)
                self._tuned[layer.op.digest] = TunedLayer(layer, None, failure)
                continue
            if self._shares_rows:
                run.task.learner.latency_model.join(self._peers)
            self._candidates.append(run.task.candidates)
            yield LayerRun(layer, run, self._recent_spaces)

    def _describe_end(self) -> str:
        """Say why the run ended before all trials were used; "" if it did not."""
        if self.is_interrupted:
            return INTERRUPTED
        if any(run.run.reporter.is_stop_requested for run in self._scheduler.runs):
            return STOPPED
        if any(run.run.task.is_out_of_time for run in self._scheduler.runs):
            return f"time budget of {self.options.time_budget_s:g} s used"
        return self._scheduler.stop_reason

    def _explain_absence(self) -> str:
        """Say why a layer had no trial."""
        end = self._describe_end()
        return NOT_TUNED if self.is_interrupted or not end else f"{NOT_TUNED}: {end}"


KernelSource = Callable[[Schedule], CompiledKernel]


def make_clock_stage(
    layers: Sequence[TunedLayer],
    device: Device,
    store: RecordStore,
    kernel_sources: Mapping[str, KernelSource],
    options: TuneOptions,
    can_continue: Callable[[], bool],
) -> ClockStage:
    """The search of clocks for the layers that have a result, at least one. `kernel_sources` compiles the
    schedules of an operator, by its digest. The phases of the plan are the models of the layers."""
    results = [(x.layer, x.result) for x in layers if x.result is not None]
    costs = [result.spent for _, result in results]
    cost = MeasurementCost(metering_s=sum(c.metering_s for c in costs), idle_w=costs[-1].idle_w)
    return ClockStage(
        [SearchedLayer.from_result(layer.name, count_calls(layer), result) for layer, result in results],
        Measurer(device, store, cost),
        lambda schedule: kernel_sources[schedule.op.digest](schedule),
        options.max_slowdown,
        options.seed,
        can_continue,
    )


def count_calls(layer: ModelLayer) -> dict[str, int]:
    """Calls of a layer by phase: the models of its uses, such as "prefill" and "decode"."""
    calls: dict[str, int] = {}
    for use in layer.uses:
        calls[use.model] = calls.get(use.model, 0) + use.count
    return calls


def tune_model(
    model: Model,
    target: str = "auto",
    trials: int | None = None,
    objective: str = "energy",
    max_slowdown: float = 0.05,
    clocks: str = "fixed",
    seed: int = 0,
    records: str | Path | None = None,
    time_budget_s: float | None = None,
    executor: Executor | None = None,
    progress: bool = True,
    effort: str | None = None,
    trials_per_layer: int | None = None,
    callback: EventListener | None = None,
) -> ModelResult:
    """Tune every layer of a model with one budget of trials: the next trials go to the layer where they are
    expected to save most of the model's energy.

    model: from `ekc.models.from_layers`, `from_onnx`, `from_torch` or `from_exported`. trials: of all layers
    together, at least one for each (default 256 times the number of layers). trials_per_layer: instead, the
    same number for each layer, tuned one after another as by `ekc.tune`. effort: instead, "quick", "standard"
    or "full": at most 64, 256 or 1024 trials a layer in the mean, fewer if no layer's round would pay in the
    passes of the model that the effort expects.
    time_budget_s: seconds of the whole run. callback: called with every `TuningEvent`; `layer` and `model`
    say which layer it is of. The others are those of `ekc.tune`.

    A layer that fails does not end the run: its `failure` says why. Ctrl-C and a callback that returns True
    end the run with the best so far of all layers. The same seed gives the same winners for any number of
    workers, resumed from `records` or not, unless time ran out.

    Raises `InvalidInput` for arguments, `DeviceError` for the target, `RecordError` for a file,
    `NothingLegal` if no layer has a kernel."""
    check_model(model)
    check_executor_and_callback(executor, callback)
    check_flag("progress", progress)
    check_paths(records=records)
    budget = check_model_options(
        *(model, trials, effort, trials_per_layer, max_slowdown, clocks, seed, time_budget_s)
    )
    options = TuneOptions(
        max(budget.trials // len(model.layers), 1),
        *(parse_objective(objective), max_slowdown, clocks == "search", seed, time_budget_s),
    )
    device = devices.open(target)
    with ExitStack() as stack:
        displays = stack.enter_context(show_progress(progress))
        store = stack.enter_context(open_record_store(device, records))
        workers = executor or stack.enter_context(open_worker_pool(device, budget.trials))
        listeners = displays + (() if callback is None else (callback,))
        return ModelSearch(model, device, options, budget, store, workers, listeners).run()


def check_model(model: object) -> Model:
    """The argument, which must be a model with a layer. Raises `InvalidInput`."""
    if not isinstance(model, Model):
        raise InvalidInput(
            f"model: {format_value(model)} is not a model; "
            "ekc.models.from_torch, from_onnx and from_layers make one"
        )
    if not model.layers:
        nodes = sum(node.count for node in model.uncovered)
        raise InvalidInput(f"{model.name}: it has no layer that ekc can tune; {nodes} nodes are not covered")
    return model


def check_model_options(
    model: Model,
    trials: int | None,
    effort: str | None,
    per_layer: int | None,
    max_slowdown: float,
    clocks: str,
    seed: int,
    time_budget_s: float | None,
) -> TrialBudget:
    """Check the options of a run, and make its budget. Raises `InvalidInput`."""
    check_options(trials, effort, max_slowdown, clocks, seed, time_budget_s)
    return make_budget(model, trials, effort, per_layer)
