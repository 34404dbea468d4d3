"""The runs of `ablation.py`: one search of one variant, and the file of finished runs.

All runs on one operator and device share a record store and one simulated device. So a kernel that any run
has timed is not compiled again. With the objective latency nothing is metered, and no finalist is executed
with either: neither changes which kernel is the best.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.common.operators import PAPER_OPERATORS
from benchmarks.search.ablation_figures import get_objective
from benchmarks.search.ablation_variants import VARIANTS, Variant, apply_changes
from benchmarks.search.depth import remove_own_factor
from benchmarks.search.paper_runs import digest_code
from ekc import devices
from ekc.devices.device import Device, Metering, Timing
from ekc.search.data.options import TuneOptions
from ekc.search.database.database import RecordStore
from ekc.search.loop.measure import MeasurementFailure, Measurer
from ekc.search.run import TuningRun
from ekc.search.space.space import Space

Line = dict[str, Any]
KEYS = ("program", "operator", "device", "variant", "seed", "trials")
"""Fields that identify a run."""
NOT_EXECUTED = "not executed: an ablation compares figures alone"


class InlineExecutor(Executor):
    """Runs each job in `submit`, in this thread, and sums the CPU seconds."""

    seconds: float = 0.0
    """CPU seconds of all jobs."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor`."""
        start, job = time.process_time(), Future[Any]()
        try:
            job.set_result(fn(*args, **kwargs))
        except Exception as problem:
            job.set_exception(problem)
        self.seconds += time.process_time() - start
        return job


@dataclass
class AblationMeasurer(Measurer):
    """Times kernels, meters them where the objective needs it, and executes none."""

    is_replay: ClassVar[bool] = False
    is_metering: bool = False
    seconds: float = 0.0
    """CPU seconds of timing and metering."""
    curve: list[tuple[int, float]] = field(default_factory=list)
    """(kernels timed so far, least latency so far in seconds), a point for each improvement."""
    _count: int = 0

    def time(
        self, schedule: Any, get_kernel: Callable[[], Any], repeat: int = 0
    ) -> Timing | MeasurementFailure:
        """Time a schedule as `Measurer` does, and add to the curve."""
        start = time.process_time()
        outcome = super().time(schedule, get_kernel, repeat)
        self.seconds += time.process_time() - start
        if repeat == 0:
            self._count += 1
            if isinstance(outcome, Timing) and (not self.curve or outcome.latency_s < self.curve[-1][1]):
                self.curve.append((self._count, outcome.latency_s))
        return outcome

    def meter(
        self, schedule: Any, get_kernel: Callable[[], Any], window_s: float, repeat: int = 0
    ) -> Metering | MeasurementFailure:
        """Meter a schedule as `Measurer` does, or nothing."""
        if not self.is_metering:
            return MeasurementFailure("not metered")
        start = time.process_time()
        outcome = super().meter(schedule, get_kernel, window_s, repeat)
        self.seconds += time.process_time() - start
        return outcome

    def find_verdict(self, schedule: Any) -> str:
        """Execute nothing."""
        return NOT_EXECUTED


class Place:
    """An operator on a device, and what its runs share."""

    def __init__(self, operator: str, device: str, folder: Path) -> None:
        self.operator, self.device_name = operator, device
        name = "".join(c if c.isalnum() else "-" for c in f"{operator} {device}")
        self.log, self._records = folder / f"{name}.jsonl", folder / f"{name}.db"
        self.device: Device = devices.open(device)
        self.op = PAPER_OPERATORS[operator]()
        self._store: RecordStore | None = None
        self._space: tuple[Space, float] | None = None

    def supports(self, name: str) -> bool:
        """Whether the variant differs from the default here: every one does."""
        return True

    def run(self, name: str, seed: int, trials: int, objective: str = "latency") -> Line:
        """Run a variant once."""
        variant = VARIANTS[name]
        self._store = self._store or RecordStore(self._records)
        start, wall_start = time.process_time(), time.monotonic()
        with apply_changes(variant.changes):
            space, recording_s = self._get_space(variant)
            measurer = AblationMeasurer(self.device, self._store, is_metering=objective == "energy")
            executor = InlineExecutor()
            calls = None if variant.calls_per_trial is None else variant.calls_per_trial * trials
            options = TuneOptions(trials, objective, 0.05, False, seed, None, calls)
            search = TuningRun(space, measurer, executor, options, None, variant.method)
            result = search.run(())
            used = time.process_time() - start - measurer.seconds - executor.seconds
        winner = next(c for c in search.task.candidates if c.schedule == result.best.schedule)
        energy = {"energy_j": winner.energy_j, "metered": result.metered_count}
        return {
            "latency_s": winner.latency_s,
            "without_luck_s": remove_own_factor(winner, self.device),
            **(energy if measurer.is_metering else {}),
            "timed": sum(t.latency_s is not None for t in result.trials),
            "stopped": result.stopped,
            "bred": result.bred,
            "search_s": used - recording_s,
            "recording_s": recording_s,
            "measuring_s": measurer.seconds + executor.seconds,
            "wall_s": time.monotonic() - wall_start - recording_s,
            "curve": measurer.curve,
            "course": _digest_trials(result.trials),
        }

    def _get_space(self, variant: Variant) -> tuple[Space, float]:
        """The space, and the CPU seconds that were used now to make it."""
        if self._space is not None and not variant.needs_own_space:
            return self._space[0], 0.0
        start = time.process_time()
        space = Space(self.op, self.device.limits)
        space.evaluator.record_traces()
        seconds = time.process_time() - start
        if not variant.needs_own_space:
            self._space = space, seconds
        return space, seconds


def _digest_trials(trials: Any) -> str:
    """Digest of the schedules tried, in order, and of their latencies."""
    text = json.dumps([(t.schedule.digest, t.latency_s) for t in trials])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_lines(folder: Path) -> list[Line]:
    """All finished runs in a folder, each once, in the order of writing."""
    lines: dict[tuple[Any, ...], Line] = {}
    for log in sorted(folder.glob("*.jsonl")):
        for line in _read_log(log):
            lines.setdefault(get_identity(line), line)
    return list(lines.values())


def get_identity(line: Line) -> tuple[Any, ...]:
    """The values that identify a run."""
    return *(line[k] for k in KEYS), get_objective(line)


def _read_log(log: Path) -> Iterator[Line]:
    for text in log.read_text().splitlines():
        try:
            yield json.loads(text)
        except json.JSONDecodeError:
            # A benchmark was killed while it wrote this line: the run counts as missing.
            continue


def append_line(log: Path, line: Line) -> None:
    """Append a finished run. After a line that was cut short it starts a new line."""
    is_complete = not log.exists() or not log.stat().st_size or log.read_bytes().endswith(b"\n")
    with log.open("a") as file:
        file.write(("" if is_complete else "\n") + json.dumps(line) + "\n")


def check_program(lines: list[Line], program: str) -> None:
    """Exit where runs under this name are of other code than ours."""
    others = {line["code"] for line in lines if line["program"] == program} - {digest_code()}
    if others:
        raise SystemExit(f"--program: {program!r} is other code ({', '.join(others)}); name another")
