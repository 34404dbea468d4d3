"""`ekc.tune`: its arguments, the device, the record store and the workers of one run.

The search follows arXiv 2411.18873: it minimises latency first and energy second, and learns an energy model
so that few kernels are metered.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ekc import devices
from ekc.argument_checks import check_flag
from ekc.devices.device import Device, check_device_memory
from ekc.errors import EkcError
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.search.data.events import EventListener
from ekc.search.data.options import (
    TuneOptions,
    check_executor_and_callback,
    check_options,
    check_paths,
    check_start,
    parse_contenders,
    parse_effort,
    parse_objective,
)
from ekc.search.data.result import INTERRUPTED
from ekc.search.database.warm_start import load_transfer_prior
from ekc.search.loop.compile_job import open_worker_pool
from ekc.search.loop.reporter import Reporter
from ekc.search.progress import show_progress
from ekc.search.run import TuningRun
from ekc.search.search_parts import open_record_store, open_search_parts
from ekc.search.tuning_result import TuningResult


@dataclass(frozen=True)
class _RunInputs:
    """Optional inputs of a run, as the caller gave them."""

    start: Sequence[Schedule]
    records: str | Path | None
    warm_start: str | Path | None
    executor: Executor | None
    shows_forecast: bool


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
    warm_start: str | Path | None = None,
    callback: EventListener | None = None,
    contenders: Sequence[str] = (),
) -> TuningResult:
    """Search the schedules of `op` for the one of least energy that is nearly as fast as the fastest.

    target: "auto", "cuda:N", a simulated device such as "a100", or "recorded:FILE", which replays a
    recording. trials: schedules to compile and time (default 256). effort: instead of trials, "quick",
    "standard" or "full": at most 64, 256 or 1024, fewer if another round would not pay (`loop/stopping.py`
    has the rule). objective: "energy" (least joules among kernels at most `max_slowdown` slower than the
    fastest), "edp" (likewise) or "latency" (`max_slowdown` is not used). clocks: "fixed", or "search" for a
    front over clocks. records: an SQLite file. Stored figures are not measured again, so an interrupted run
    resumes when it is started again. warm_start: a record file (it may be `records`); the models first learn
    from its measurements of other operators and devices. time_budget_s: seconds after which the run ends with
    the best so far. start: schedules to try first. executor: a concurrent.futures Executor for compiling, or
    a dask.distributed Client, whose workers need the NVRTC, generator and ekc of this process. By default a
    worker per core, at most 32: processes for 32 trials or more on simulated devices, otherwise threads.
    progress: write a forecast and the progress to stderr. callback: called with every `TuningEvent`, in the
    thread of the run. If it returns True, the run ends with the best so far, after at least one trial. An
    exception ends the run at once and reaches the caller. The logger "ekc.tune" gets the same events.
    contenders: ("library",) also measures, on a real GPU, the algorithms of cuBLASLt or cuDNN for the same
    operator, the best one in turn with the finalists. `TuningResult.library` has its figures; it cannot win.

    The same seed gives the same winner for any number of workers, unless time ran out. Ctrl-C ends the run
    with the best so far. Raises `InvalidInput` for arguments and for an operator beyond the memory of the
    target, `DeviceError` for the target, `RecordError` for a file, `ToolchainError` for an unusable
    `executor`, `NothingLegal` with the reasons if no schedule works."""
    check_start(op, start)
    check_executor_and_callback(executor, callback)
    check_flag("progress", progress)
    check_paths(records=records, warm_start=warm_start)
    check_options(trials, effort, max_slowdown, clocks, seed, time_budget_s)
    options = _make_options(trials, effort, objective, max_slowdown, clocks, seed, time_budget_s)
    options = replace(options, contenders=parse_contenders(contenders))
    device = devices.open(target)
    check_device_memory(op, device)
    listeners = () if callback is None else (callback,)
    inputs = _RunInputs(start, records, warm_start, executor, progress)
    return _run_reported(op, device, options, listeners, inputs)


def _make_options(
    trials: int | None,
    effort: str | None,
    objective: str,
    max_slowdown: float,
    clocks: str,
    seed: int,
    time_budget_s: float | None,
) -> TuneOptions:
    """Make the options of a run. Explicit trials have no stopping rule."""
    objective, size = parse_objective(objective), parse_effort(effort)
    calls = size.expected_calls if trials is None else None
    count = size.trials if trials is None else trials
    return TuneOptions(count, objective, max_slowdown, clocks == "search", seed, time_budget_s, calls)


def _run_reported(
    op: Operator,
    device: Device,
    options: TuneOptions,
    listeners: tuple[EventListener, ...],
    inputs: _RunInputs,
) -> TuningResult:
    """Run with a progress display, and report the start and an error to the listeners."""
    with ExitStack() as stack:
        displays = stack.enter_context(show_progress(inputs.shows_forecast))
        reporter = Reporter(op, device, options, displays + listeners)
        try:
            reporter.report("start")
            return _run_search(stack, reporter, inputs)
        except (EkcError, KeyboardInterrupt) as problem:
            reporter.report("error", text=str(problem) or INTERRUPTED)
            raise


def _run_search(stack: ExitStack, reporter: Reporter, inputs: _RunInputs) -> TuningResult:
    op, device, options = reporter.op, reporter.device, reporter.options
    store = stack.enter_context(open_record_store(device, inputs.records))
    parts = open_search_parts(op, device, options, store)
    prior, learned_from = None, ""
    if inputs.warm_start is not None:
        prior, learned_from = load_transfer_prior(inputs.warm_start, op, device, options.seed)
    if inputs.shows_forecast:
        reporter.report("forecast", text=parts.forecast())
    workers = inputs.executor or stack.enter_context(open_worker_pool(device, options.trials))
    run = TuningRun(parts.space, parts.measurer, workers, options, reporter, transfer_prior=prior)
    return replace(run.run(inputs.start), warm_start=learned_from)
