"""The runs of `ablation.py`: one search of one variant, and the file of finished runs.

All runs on one operator and device share a record store and one simulated device. So a kernel that any run
has timed is not compiled again. With the objective latency nothing is metered, and no finalist is executed
with either: neither changes which kernel is the best.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.operators import PAPER_OPERATORS
from benchmarks.search.ablation_figures import get_objective
from benchmarks.search.ablation_variants import VARIANTS, Variant, apply_changes
from benchmarks.search.depth import remove_own_factor
from benchmarks.search.paper_runs import (
    MAX_SLOWDOWN,
    WatchedMeasurer,
    digest_code,
    name_file,
    read_log,
)
from ekc import devices
from ekc.devices.device import Metering
from ekc.search.data.options import TuneOptions
from ekc.search.database.database import RecordStore
from ekc.search.loop.measure import MeasurementFailure
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
class AblationMeasurer(WatchedMeasurer):
    """Times kernels, meters them where the objective needs it, and executes none."""

    clock: Callable[[], float] = time.process_time
    is_metering: bool = False

    def meter(
        self, schedule: Any, get_kernel: Callable[[], Any], window_s: float, repeat: int = 0
    ) -> Metering | MeasurementFailure:
        """Meter a schedule as `Measurer` does, or nothing."""
        if not self.is_metering:
            return MeasurementFailure("not metered")
        return super().meter(schedule, get_kernel, window_s, repeat)

    def find_verdict(self, schedule: Any) -> str:
        """Execute nothing."""
        return NOT_EXECUTED


class Place:
    """An operator on a device, and what its runs share."""

    def __init__(self, operator: str, device: str, folder: Path) -> None:
        self.operator, self.device_name = operator, device
        self.log = name_file(folder, f"{operator} {device}", "jsonl")
        self.device = devices.open(device)
        self.op = PAPER_OPERATORS[operator]()
        self._store: RecordStore | None = None
        self._space: Space | None = None

    def run(self, name: str, seed: int, trials: int, objective: str = "latency") -> Line:
        """Run a variant once."""
        variant = VARIANTS[name]
        self._store = self._store or RecordStore(self.log.with_suffix(".db"))
        start, wall_start = time.process_time(), time.monotonic()
        with apply_changes(variant.changes):
            space, recording_s = self._get_space(variant)
            measurer = AblationMeasurer(self.device, self._store, is_metering=objective == "energy")
            executor = InlineExecutor()
            calls = None if variant.calls_per_trial is None else variant.calls_per_trial * trials
            options = TuneOptions(trials, objective, MAX_SLOWDOWN, False, seed, None, calls)
            search = TuningRun(space, measurer, executor, options, None, variant.method)
            result = search.run(())
            measuring_s = measurer.elsewhere_s + executor.seconds
            used = time.process_time() - start - measuring_s
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
            "measuring_s": measuring_s,
            "wall_s": time.monotonic() - wall_start - recording_s,
            "course": _digest_trials(result.trials),
        }

    def _get_space(self, variant: Variant) -> tuple[Space, float]:
        """The space, and the CPU seconds that were used now to make it."""
        if self._space is not None and not variant.needs_own_space:
            return self._space, 0.0
        start = time.process_time()
        space = Space(self.op, self.device.limits)
        space.evaluator.record_traces()
        if not variant.needs_own_space:
            self._space = space
        return space, time.process_time() - start


def _digest_trials(trials: Any) -> str:
    """Digest of the schedules tried, in order, and of their latencies."""
    text = json.dumps([(t.schedule.digest, t.latency_s) for t in trials])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_lines(folder: Path) -> list[Line]:
    """All finished runs in a folder, each once, in the order of writing."""
    lines: dict[tuple[Any, ...], Line] = {}
    for log in sorted(folder.glob("*.jsonl")):
        for line in read_log(log):
            lines.setdefault(get_identity(line), line)
    return list(lines.values())


def get_identity(line: Line) -> tuple[Any, ...]:
    """The values that identify a run."""
    return *(line[k] for k in KEYS), get_objective(line)


def check_program(lines: list[Line], program: str) -> None:
    """Exit where runs under this name are of other code than ours."""
    others = {line["code"] for line in lines if line["program"] == program} - {digest_code()}
    if others:
        raise SystemExit(f"--program: {program!r} is other code ({', '.join(others)}); name another")
