"""One session of the explorer: the path, the list of next steps, the figures and the tuner.

Nothing here knows of a page: `subscribe` is called with the name of what changed. The rules and the
estimates of the list, and the compile of the chosen schedule, run in worker processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Literal

from ekc.devices.device import check_device_memory
from ekc.devices.recording import RecordedDevice
from ekc.devices.simulated.device import SimulatedDevice
from ekc.errors import EkcError, InvalidInput
from ekc.explorer import figures as work
from ekc.explorer.figures import StepFigures, list_recorded_neighbours, read_figures
from ekc.explorer.path import Move, SchedulePath, apply_text, make_move
from ekc.explorer.steps import Estimates, NextStep, list_steps
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule.menu import Family, list_families
from ekc.ir.schedule.schedule import Schedule
from ekc.processes.pool import WorkerProcesses, WorkerThreads, count_cores
from ekc.search.data.events import TuningEvent
from ekc.search.run import tune
from ekc.search.tuning_result import TuningResult
from ekc.tables import count_nouns

Part = Literal["path", "list", "figures", "space", "tuner"]
"""Part of a session that changed."""
FigureName = Literal["latency_s", "energy_j"]
MAX_WORKERS = 8


@dataclass(frozen=True)
class ListedStep:
    """One row of the list. StepFigures are estimated, or recorded."""

    text: str
    kind: str
    family: int
    choice: NextStep | Schedule
    """The step, or the recorded schedule to go to."""
    latency_s: float | None = None
    """Seconds of a call, as estimated (`Explorer.predict` scales it) or recorded."""
    energy_j: float | None = None
    """Joules of a call, likewise."""
    note: str = ""
    detail: str = ""
    """Changes to a recorded schedule, a line for each step."""


@dataclass
class TunerState:
    """The tuning run that was started from the page."""

    start: Schedule
    trials: int
    line: str = "starting"
    tried: int = 0
    result: TuningResult | None = None
    failure: str = ""
    is_running: bool = True
    is_stopped: bool = False


class Explorer:
    """The state of a session. Methods that take time are coroutines; they run in one event loop."""

    def __init__(self, start: Schedule, target: str) -> None:
        """Raises `InvalidInput` for an operator beyond the memory of the target, and what opening raises."""
        self.target, self.device = target, work.open_device(target)
        check_device_memory(start.op, self.device)
        self.path = SchedulePath.from_schedule(start)
        self.rows: tuple[ListedStep, ...] = ()
        self.is_listing = False
        self.seconds: dict[str, float] = {}
        """Seconds until the last list with its estimates ("list"), and until the last compile had its figures
        ("figures")."""
        self.figures: dict[str, StepFigures] = {}
        """Digest -> figures of the schedules compiled so far."""
        self.estimate_now: Estimates | None = None
        """Estimated figures of the present schedule."""
        self.sample: Estimates | None = None
        """Schedules drawn from the space of the search."""
        self._lists: dict[str, tuple[tuple[ListedStep, ...], Estimates | None]] = {}
        """Digest -> the list, and the estimated figures of the schedule itself."""
        self.tuner: TunerState | None = None
        self.is_started = False
        self._listeners: list[Callable[[Part], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._list_task: asyncio.Task[None] | None = None
        self.failure = ""
        """Why the list or figures could not be computed; "" where they were."""
        self._worker_count = min(count_cores(), MAX_WORKERS)
        self._executor = self._make_executor()

    def _make_executor(self) -> Executor:
        """Worker processes for a simulated device; a real one has its own process, and this one asks it."""
        if isinstance(self.device, SimulatedDevice):
            return WorkerProcesses(self._worker_count, work.import_modules)
        return WorkerThreads(1)

    @property
    def schedule(self) -> Schedule:
        """The present schedule."""
        return self.path.schedule

    @property
    def is_recorded(self) -> bool:
        """Whether figures exist for the schedules of a recording only."""
        return isinstance(self.device, RecordedDevice)

    def subscribe(self, listener: Callable[[Part], None]) -> Callable[[], None]:
        """Call a listener after each change, with the part that changed. Returns a function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def start(self) -> None:
        """Compute the list and the figures of the present schedule, in the running event loop."""
        self.is_started = True
        self._refresh()
        if not self.is_recorded:
            self._spawn(self._draw_sample())

    def close(self) -> None:
        """Stop the tuner and the workers."""
        self.stop_tuner()
        for task in tuple(self._tasks):
            task.cancel()
        if isinstance(self._executor, WorkerProcesses):
            self._executor.stop()
        else:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def wait(self) -> None:
        """Wait until nothing is being computed, but for the tuner."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def take(self, row: ListedStep) -> None:
        """Take a row of the list. Raises `ScheduleError`."""
        if isinstance(row.choice, Schedule):
            self.move_to(row.choice, f"recorded schedule {row.choice.digest}")
        else:
            self._set_path(self.path.take(make_move(*row.choice.steps)))

    def take_text(self, text: str) -> None:
        """Take the steps of a text. Raises `InvalidInput` or `ScheduleError` with the reason of a refusal."""
        schedule = apply_text(self.schedule, text)
        if isinstance(self.device, RecordedDevice) and schedule.digest not in self.device.recording.by_digest:
            raise InvalidInput(
                f"schedule {schedule.digest} was not recorded; "
                f"{self.device.recording.path} holds {len(self.device.recording.rows)} schedules"
            )
        enforce_rules(schedule.program, self.device.limits)
        self._set_path(self.path.take(make_move(*schedule.steps[len(self.schedule.steps) :])))

    def undo(self) -> None:
        """Take the last move back."""
        self._set_path(self.path.undo())

    def redo(self) -> None:
        """Take the last undone move again. Raises `ScheduleError` where it is no longer legal."""
        self._set_checked_path(self.path.redo())

    def explain_redo(self) -> str:
        """Why the last undone move cannot be taken again; "" where it can."""
        try:
            enforce_rules(self.path.redo().schedule.program, self.device.limits)
        except EkcError as problem:
            return str(problem)
        return ""

    def drop_undone(self) -> None:
        """Forget the next move to redo."""
        self.path = self.path.drop_undone()
        self._notify("path")

    def go_back(self, count: int) -> None:
        """Go back to the schedule after the first `count` moves."""
        self._set_path(self.path.go_back(count))

    def remove(self, number: int) -> None:
        """Take one move out. Raises `ScheduleError` where a later one needs it."""
        self._set_checked_path(self.path.remove(number))

    def move_to(self, schedule: Schedule, text: str) -> None:
        """Go to any schedule of the operator."""
        self._set_path(self.path.take(Move(text, schedule.steps, is_jump=True)))

    def get_figures(self, schedule: Schedule | None) -> StepFigures | None:
        """The figures of a schedule, if it was compiled here."""
        return None if schedule is None else self.figures.get(schedule.digest)

    @property
    def previous(self) -> Schedule | None:
        """The schedule before the last move; None at the start."""
        return self.path.schedules[-2] if len(self.path.schedules) > 1 else None

    def predict(self, name: FigureName, value: float | None, base: Schedule | None = None) -> float | None:
        """A figure as it is shown: an estimate times compiled over estimated figure of the present schedule,
        or of `base`, where that is known."""
        now = self.get_figures(base or self.schedule)
        if value is None or now is None or self.is_recorded:
            return value
        compiled, estimated = getattr(now, name), getattr(now, f"estimated_{name}")
        return value * compiled / estimated if compiled and estimated else value

    def list_errors(self, name: FigureName) -> list[float]:
        """Relative error of the prediction of each move of the path whose schedules are compiled."""
        errors = []
        for before, after in itertools.pairwise(self.path.schedules):
            found = self.get_figures(after)
            if found is None or self.get_figures(before) is None:
                continue
            predicted = self.predict(name, getattr(found, f"estimated_{name}"), before)
            compiled = getattr(found, name)
            if predicted and compiled:
                errors.append(predicted / compiled - 1)
        return errors

    def _set_checked_path(self, path: SchedulePath) -> None:
        enforce_rules(path.schedule.program, self.device.limits)
        self._set_path(path)

    def _set_path(self, path: SchedulePath) -> None:
        self.path = path
        self._refresh()

    def _refresh(self) -> None:
        self.rows, self.is_listing, self.estimate_now = (), True, None
        self.failure = ""
        if self._list_task is not None:
            self._list_task.cancel()
        # The list comes first: it needs all workers for a short time, the compiler one for longer.
        self._list_task = self._spawn(self._compute_list(self.schedule))
        self._spawn(self._compute_figures(self.schedule))
        self._notify("path")

    def _notify(self, part: Part) -> None:
        for listener in tuple(self._listeners):
            listener(part)

    def _spawn(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        return task

    def _finish(self, task: asyncio.Task[None]) -> None:
        """Show what went wrong in a job; the session goes on."""
        self._tasks.discard(task)
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            traceback.print_exception(problem)
            self.failure = f"{type(problem).__name__}: {problem}"
            self.is_listing = False
            self._notify("list")

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Give a job to the workers now; they take jobs in this order."""
        return asyncio.wrap_future(self._executor.submit(function, *arguments))

    async def _compute_figures(self, schedule: Schedule) -> None:
        if schedule.digest not in self.figures:
            begin = time.perf_counter()
            found = await self._submit(work.run_figures_job, schedule.to_json(), self.target)
            self.figures[schedule.digest] = found
            self.seconds["figures"] = time.perf_counter() - begin
        self._notify("figures")

    async def _compute_list(self, schedule: Schedule) -> None:
        begin = time.perf_counter()
        if isinstance(self.device, RecordedDevice):
            self._publish(schedule, _list_recorded(schedule, self.device))
            return
        if schedule.digest in self._lists:
            self._publish(schedule, *self._lists[schedule.digest])
            return
        text, parts = schedule.to_json(), 2 * self._worker_count
        jobs = [self._submit(work.run_list_job, text, self.target, part, parts) for part in range(parts)]
        present = self._submit(work.run_present_job, text, self.target)
        families = list(list_families(schedule.program))
        now, *rows = await asyncio.gather(present, *(_list_rows(families, job) for job in jobs))
        self._lists[schedule.digest] = tuple(itertools.chain.from_iterable(rows)), now
        self.seconds["list"] = time.perf_counter() - begin
        self._publish(schedule, *self._lists[schedule.digest])

    def _publish(
        self, schedule: Schedule, rows: tuple[ListedStep, ...], now: Estimates | None = None
    ) -> None:
        """Show a list, unless the path has moved on."""
        if schedule is self.schedule:
            self.estimate_now = now
            self.rows, self.is_listing = rows, False
            self._notify("list")

    async def _draw_sample(self) -> None:
        empty = Schedule(self.schedule.op).to_json()
        try:
            self.sample = await self._submit(work.run_sample_job, empty, self.target)
        except EkcError:
            return
        self._notify("space")

    def start_tuner(self, trials: int) -> None:
        """Tune from the present schedule, in a thread."""
        if self.tuner is not None and self.tuner.is_running:
            raise InvalidInput("tuner: a run is going on; stop it first")
        state = self.tuner = TunerState(self.schedule, trials)
        loop = asyncio.get_running_loop()

        def notify() -> None:
            # The server may have stopped, and its loop with it.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._notify, "tuner")

        def listen(event: TuningEvent) -> bool:
            state.line, state.tried = f"{event.stage_text}; {event.progress_text}", event.tried
            notify()
            return state.is_stopped

        def run() -> None:
            try:
                state.result = tune(
                    state.start.op,
                    target=self.target,
                    trials=trials,
                    start=(state.start,) if not self.is_recorded else (),
                    progress=False,
                    callback=listen,
                )
            except EkcError as problem:
                state.failure = str(problem)
            finally:
                state.is_running = False
                notify()

        threading.Thread(target=run, name="ekc-explore-tuner", daemon=True).start()
        self._notify("tuner")

    def stop_tuner(self) -> None:
        """End the run after its present trial, with its best so far."""
        if self.tuner is not None:
            self.tuner.is_stopped = True


async def _list_rows(
    families: Sequence[Family], job: Awaitable[tuple[dict[int, list[int]], Estimates]]
) -> list[ListedStep]:
    """Rows of the list, from the legal entries and estimates of one part of the menu."""
    entries, estimates = await job
    return [
        ListedStep(step.text, step.kind, step.family, step, float(t), float(e))
        for step, t, e in zip(
            list_steps(families, entries), estimates.latency_s, estimates.energy_j, strict=True
        )
    ]


def _list_recorded(schedule: Schedule, device: RecordedDevice) -> tuple[ListedStep, ...]:
    rows = []
    for number, (row, changes) in enumerate(list_recorded_neighbours(schedule, device)):
        latency_s, energy_j, _ = read_figures(row)
        out = sum(change.startswith("-") for change in changes)
        note = row.failure or f"{row.structure}; {count_nouns(out, 'step')} out, {len(changes) - out} in"
        text, lines = f"schedule {row.digest}", "\n".join(changes)
        rows.append(ListedStep(text, "recorded", number, row.schedule, latency_s, energy_j, note, lines))
    return tuple(rows)
