"""`ekc.tune`: its arguments, the device, the record store and the workers of one run.

The search follows arXiv 2411.18873: kernels of low latency first, their energy second, a learned energy
model so that few are metered, and a share of metering that follows the model's faithfulness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ekc import devices
from ekc.devices.base import Device
from ekc.devices.capacity import check_device
from ekc.devices.cuda.remote import Remote
from ekc.devices.recording import RecordedDevice
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.ir.schedule import Schedule
from ekc.search.effort import checked_effort
from ekc.search.forecast import forecast
from ekc.search.measuring import Bench
from ekc.search.objective import checked_objective
from ekc.search.options import Wish, check_options, check_start
from ekc.search.progress import announce, progress_bar
from ekc.search.recordings.recorded_schedules import RecordedBench, recorded_schedules
from ekc.search.records.store import RecordStore
from ekc.search.records.warm_start import learned_from
from ekc.search.result import TuningResult
from ekc.search.run import Run
from ekc.search.schedules import Schedules
from ekc.search.space.space import Space
from ekc.search.workers import aside, hired


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
    first. executor: any concurrent.futures Executor for compiling (default: a worker per core, 32 at most:
    processes for runs of 32 trials or more on simulated devices, otherwise threads; and from 128 trials on a
    process for half of each population, where there is a second core). progress: say on stderr
    what the run will take, then how far it is. The same seed gives the same winner for any number of workers,
    unless time ran out. warm_start: a record file (it may be that of `records`) whose measurements of other
    operators and devices are learned from before anything is measured.

    Ctrl-C ends the run with the best so far. Raises `InvalidInput` for arguments and for an operator beyond
    the memory of the target, `DeviceError` for the target, `RecordError` for the file, `NothingLegal` with
    the reasons when no schedule works.
    """
    check_start(op, start)
    check_options(trials, effort, max_slowdown, clocks, seed, time_budget_s)
    objective, asked = checked_objective(objective), checked_effort(effort)
    calls = asked.calls if trials is None else None
    trials = asked.trials if trials is None else trials
    wish = Wish(trials, objective, max_slowdown, clocks == "search", seed, time_budget_s, calls)
    device = devices.open(target)
    check_device(op, device)
    with ExitStack() as stack:
        worker = stack.enter_context(aside(trials, executor))
        space, bench, outlook = _prepared(stack, op, device, wish, records, worker)
        taught, told = (None, "") if warm_start is None else learned_from(warm_start, op, device, seed)
        if progress:
            announce(outlook())
        workers = executor or stack.enter_context(hired(device, trials))
        tell = stack.enter_context(progress_bar(trials, f"{op.name} on {device.label}", progress))
        result = Run(space, bench, workers, wish, tell, lessons=taught).run(start)
        return replace(result, warm_start=told)


def _prepared(
    stack: ExitStack,
    op: Operator,
    device: Device,
    wish: Wish,
    records: str | Path | None,
    worker: Remote | None,
) -> tuple[Schedules, Bench, Callable[[], str]]:
    """What is searched, where its figures come from, and what to tell beforehand."""
    if isinstance(device, RecordedDevice):
        if records is not None:
            raise InvalidInput(f"records: {device.label} is replayed, so nothing is measured; leave them out")
        recorded = recorded_schedules(op, device, wish.objective)
        return recorded, RecordedBench(device), lambda: f"replay of {len(recorded.rows)} recorded schedules"
    space = Space(op, device.limits, worker=worker)
    store = stack.enter_context(RecordStore(records))
    bench = Bench(device, store)
    return space, bench, lambda: str(forecast(space, bench, wish))
