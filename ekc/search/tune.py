"""`ekc.tune`: its arguments, the device, the record store and the workers of one run.

The search follows arXiv 2411.18873: kernels of low latency first, their energy second, a learned energy
model so that few are metered, and a share of metering that follows the model's faithfulness.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ekc import devices
from ekc.arguments import check_flag
from ekc.devices.capacity import check_device_memory
from ekc.devices.device import Device
from ekc.devices.recording import RecordedDevice
from ekc.errors import EkcError, InvalidInput
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.processes.child import RemoteWorker
from ekc.search.compile_pool import open_background_worker, open_worker_pool
from ekc.search.data.options import (
    TuneOptions,
    check_executor_and_callback,
    check_options,
    check_paths,
    check_start,
    parse_effort,
    parse_objective,
)
from ekc.search.data.result import INTERRUPTED, TuningResult
from ekc.search.database.conditions import describe_unused, group_rows
from ekc.search.database.database import RecordStore, to_canonical_json
from ekc.search.database.warm_start import load_transfer_prior
from ekc.search.forecast import forecast_run
from ekc.search.loop.measure import Measurer
from ekc.search.loop.reporter import Listener, Reporter
from ekc.search.loop.task import ScheduleSpace
from ekc.search.progress import show_progress
from ekc.search.replay.recorded_schedules import RecordedMeasurer, make_recorded_schedule_space
from ekc.search.run import TuningRun
from ekc.search.space.space import Space


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
    callback: Listener | None = None,
) -> TuningResult:
    """Search the schedules of `op` for the one that costs least at the speed of the fastest.

    target: "auto", "cuda:N", a simulated device such as "a100", or "recorded:FILE", which replays what was
    measured and tries nothing else. trials: schedules to compile and
    time, all of them (256 if nothing is said). effort: instead of trials, "quick", "standard" or "full":
    at most 64, 256 or 1024, fewer where another round would not pay (`payoff.py` has the rule).
    objective: "energy" (least joules among kernels at most `max_slowdown` slower than the fastest),
    "edp" (likewise) or "latency" (`max_slowdown` is not used). clocks: "fixed", or "search" for a second
    line over clocks. records: an SQLite file; figures on file are not measured again, so an interrupted run
    resumes by running again.
    time_budget_s: seconds after which the run ends with the best so far. start: schedules to try
    first. executor: any concurrent.futures Executor for compiling, or a dask.distributed Client; its workers
    need the NVRTC, generator and ekc of this process (default: a worker per core, 32 at most:
    processes for runs of 32 trials or more on simulated devices, otherwise threads; and from 128 trials on a
    process for half of each population, where there is a second core). progress: say on stderr
    what the run will take, then how far it is: a bar in a terminal, elsewhere a line every few seconds. The
    same seed gives the same winner for any number of workers, unless time ran out. warm_start: a record file
    (it may be that of `records`) whose measurements of other operators and devices are learned from before
    anything is measured.

    callback: called with every `TuningEvent`, in the thread of the run. If it returns True, the run ends as
    if its time were up: with the best so far, after at least one trial. What it raises ends the run at once
    and goes to the caller; what was measured stays in `records`. The logger "ekc.tune" takes the same events.

    Ctrl-C ends the run with the best so far. Raises `InvalidInput` for arguments and for an operator beyond
    the memory of the target, `DeviceError` for the target, `RecordError` for the file, `ToolchainError`
    for an `executor` that takes no jobs, gives no kernels back or has other versions, `NothingLegal` with the
    reasons when no schedule works.
    """
    check_start(op, start)
    check_executor_and_callback(executor, callback)
    check_flag("progress", progress)
    check_paths(records=records, warm_start=warm_start)
    check_options(trials, effort, max_slowdown, clocks, seed, time_budget_s)
    objective, asked = parse_objective(objective), parse_effort(effort)
    calls = asked.expected_calls if trials is None else None
    trials = asked.trials if trials is None else trials
    wish = TuneOptions(trials, objective, max_slowdown, clocks == "search", seed, time_budget_s, calls)
    device = devices.open(target)
    check_device_memory(op, device)
    with ExitStack() as stack:
        shown = stack.enter_context(show_progress(progress))
        reporter = Reporter(op, device, wish, shown + (() if callback is None else (callback,)))
        try:
            reporter.report("start")
            return _run_search(stack, reporter, start, records, executor, warm_start, progress)
        except (EkcError, KeyboardInterrupt) as problem:
            reporter.report("error", text=str(problem) or INTERRUPTED)
            raise


def _run_search(
    stack: ExitStack,
    reporter: Reporter,
    start: Sequence[Schedule],
    records: str | Path | None,
    executor: Executor | None,
    warm_start: str | Path | None,
    shows_forecast: bool,
) -> TuningResult:
    op, device, wish = reporter.op, reporter.device, reporter.options
    worker = stack.enter_context(open_background_worker(wish.trials, executor))
    space, bench, outlook = _prepare_search(stack, op, device, wish, records, worker)
    lessons, learned = (
        (None, "") if warm_start is None else load_transfer_prior(warm_start, op, device, wish.seed)
    )
    if shows_forecast:
        reporter.report("forecast", text=outlook())
    workers = executor or stack.enter_context(open_worker_pool(device, wish.trials))
    result = TuningRun(space, bench, workers, wish, reporter, transfer_prior=lessons).run(start)
    return replace(result, warm_start=learned)


def _prepare_search(
    stack: ExitStack,
    op: Operator,
    device: Device,
    options: TuneOptions,
    records: str | Path | None,
    background_worker: RemoteWorker | None,
) -> tuple[ScheduleSpace, Measurer, Callable[[], str]]:
    """What is searched, where its figures come from, and what to tell beforehand."""
    if isinstance(device, RecordedDevice):
        if records is not None:
            raise InvalidInput(f"records: {device.label} is replayed, so nothing is measured; leave them out")
        recorded = make_recorded_schedule_space(op, device, options.objective)
        return (
            recorded,
            RecordedMeasurer(device),
            lambda: f"replay of {len(recorded.rows)} recorded schedules",
        )
    space = Space(op, device.limits, worker=background_worker)
    store = stack.enter_context(RecordStore(records))
    bench = Measurer(device, store)
    groups = group_rows(store.read_rows(operator=to_canonical_json(op.to_json()), kind="timing"))
    near, far = describe_unused(groups, device)
    if near:
        warnings.warn(
            f"records: {records} holds schedules of {op.name} that were timed on {device.label}: {near}; "
            "they are not used, and all is measured here",
            RuntimeWarning,
            stacklevel=3,
        )
    return (
        space,
        bench,
        lambda: str(forecast_run(space, bench, options)) + (f"; on file: {far}" if far else ""),
    )
