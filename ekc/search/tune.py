"""`ekc.tune`: its arguments, the device, the record store and the workers of one run.

The search follows arXiv 2411.18873: it minimises latency first and energy second, and learns an energy model
so that few kernels are metered.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path

from ekc import devices
from ekc.argument_checks import check_flag
from ekc.devices.device import Device, check_device_memory
from ekc.devices.observer import Observer, check_observers
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
)
from ekc.search.data.result import INTERRUPTED
from ekc.search.data.selection import parse_objective
from ekc.search.data.trial import COLUMNS
from ekc.search.database.listing import CSV_COLUMNS
from ekc.search.loop.compile_job import open_worker_pool
from ekc.search.loop.reporter import Reporter
from ekc.search.progress import show_progress
from ekc.search.run import TuningRun, open_record_store, open_space
from ekc.search.tuning_result import TuningResult


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
) -> TuningResult:
    """Search the schedules of `op` for the one of least energy that is nearly as fast as the fastest.

    target: "auto", "cuda:N", a simulated device such as "a100", or "recorded:FILE", which replays a
    recording. trials: schedules to compile and time (default 256). effort: instead of trials, "quick",
    "standard" or "full": at most 64, 256 or 1024, fewer if another round would not pay (`loop/stopping.py`
    has the rule). objective: "energy" (least joules among kernels at most `max_slowdown` slower than the
    fastest), "edp" (likewise) or "latency" (`max_slowdown` is not used). clocks: "fixed", or "search" for a
    front over clocks. records: an SQLite file. Stored figures are not measured again, so an interrupted run
    resumes when it is started again. time_budget_s: seconds after which the run ends with the
    best so far. start: schedules to try first. executor: a concurrent.futures Executor for compiling, or a
    dask.distributed Client, whose workers need the NVRTC, generator and ekc of this process. By default a
    worker per core, at most 32: processes for 32 trials or more on simulated devices, otherwise threads.
    progress: write the progress to stderr. callback: called with every `TuningEvent`, in the
    thread of the run. If it returns True, the run ends with the best so far, after at least one trial. An
    exception ends the run at once and reaches the caller. The logger "ekc.tune" gets the same events.
    contenders: ("library",) also measures, on a real GPU, the algorithms of cuBLASLt or cuDNN for the same
    operator, the best one in turn with the finalists. `TuningResult.library` has its figures; it cannot win.
    observers: each an `ekc.Observer`, a quantity that is measured too; `Trial.readings` has its readings.

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
        listeners = displays + (() if callback is None else (callback,))
        reporter = Reporter(op, device, options, listeners)
        return _run_search(op, device, options, reporter, start, records, executor, watching)


def _run_search(
    op: Operator,
    device: Device,
    options: TuneOptions,
    reporter: Reporter,
    start: Sequence[Schedule],
    records: str | Path | None,
    executor: Executor | None,
    observers: Sequence[Observer],
) -> TuningResult:
    """Run with the record store and the workers open, and report the start and an error."""
    with ExitStack() as stack:
        try:
            reporter.report("start")
            store = stack.enter_context(open_record_store(device, records))
            space, measurer = open_space(op, device, options.objective, store, observers)
            workers = executor or stack.enter_context(open_worker_pool(device, options.trials))
            return TuningRun(space, measurer, workers, options, reporter).run(start)
        except (EkcError, KeyboardInterrupt) as problem:
            reporter.report("error", text=str(problem) or INTERRUPTED)
            raise
