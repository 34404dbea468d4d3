"""The runs behind `ablation.py`: one search of one variant, and the file of those that are finished.

All runs on one operator and device share a record file and one simulated device, so that a kernel that any of
them has timed is neither compiled nor counted again. Nothing is metered (the objective is the latency) and no
finalist is executed: neither changes which kernel is the fastest.
"""

from __future__ import annotations

import hashlib
import json
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ablation_variants import VARIANTS, Variant, changed
from ekc.devices.base import Device, Timing
from ekc.devices.cuda.remote import Child, Remote
from ekc.devices.latency import LAUNCH_S
from ekc.devices.residual import own_time
from ekc.search.candidate import Candidate
from ekc.search.measuring import Bench, Failure
from ekc.search.method import Method
from ekc.search.options import Wish
from ekc.search.records.store import RecordStore
from paper_runs import OPERATORS, code

from ekc import devices
from ekc.codegen.generate import generate
from ekc.devices.digest import digest_of_text
from ekc.search.run import Run
from ekc.search.space.space import Space

Line = dict[str, Any]
KEYS = ("program", "operator", "device", "variant", "seed", "trials")
"""What names a run."""
ALONE = "not executed: an ablation compares latencies alone"


class AtOnce(Executor):
    """Does a job when it is given it, in this thread, and adds up the CPU seconds."""

    seconds: float = 0.0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor`."""
        began, job = time.process_time(), Future[Any]()
        try:
            job.set_result(fn(*args, **kwargs))
        except Exception as problem:
            job.set_exception(problem)
        self.seconds += time.process_time() - began
        return job


@dataclass
class LatencyBench(Bench):
    """Times kernels, and does nothing else with them."""

    replays: ClassVar[bool] = False
    seconds: float = 0.0
    """CPU seconds of timing."""
    curve: list[tuple[int, float]] = field(default_factory=list)
    """(kernels timed so far, least latency so far) wherever that fell."""
    _count: int = 0

    def time(self, schedule: Any, kernel: Callable[[], Any], draw: int = 0) -> Timing | Failure:
        """As the bench."""
        began = time.process_time()
        outcome = super().time(schedule, kernel, draw)
        self.seconds += time.process_time() - began
        if draw == 0:
            self._count += 1
            if isinstance(outcome, Timing) and (not self.curve or outcome.latency_s < self.curve[-1][1]):
                self.curve.append((self._count, outcome.latency_s))
        return outcome

    def meter(self, schedule: Any, kernel: Callable[[], Any], seconds: float, draw: int = 0) -> Failure:
        """Nothing is metered."""
        return Failure("not metered")

    def checked(self, schedule: Any) -> str:
        """Nothing is executed."""
        return ALONE


class Place:
    """An operator on a device, and all that its runs share."""

    def __init__(self, operator: str, device: str, folder: Path) -> None:
        self.operator, self.device_name = operator, device
        name = "".join(c if c.isalnum() else "-" for c in f"{operator} {device}")
        self.log, self._records = folder / f"{name}.jsonl", folder / f"{name}.db"
        self.device: Device = devices.open(device)
        self.op = OPERATORS[operator]()
        self._store: RecordStore | None = None
        self._space: tuple[Space, float] | None = None

    def knows(self, name: str) -> bool:
        """Whether the variant says something here."""
        return not VARIANTS[name].recorded

    def run(self, name: str, seed: int, trials: int) -> Line:
        """One run of a variant."""
        variant = VARIANTS[name]
        self._store = self._store or RecordStore(self._records)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began, wall = time.process_time(), time.monotonic()
        with changed(variant.changes), ExitStack() as stack:
            space, recording_s = self._made(variant, stack)
            bench, compiler = LatencyBench(self.device, self._store), AtOnce()
            calls = None if variant.calls_per_trial is None else variant.calls_per_trial * trials
            wish = Wish(trials, "latency", 0.05, False, seed, None, calls)
            method = Method(proposals=variant.method) if variant.method else Method()  # type: ignore[arg-type]
            search = Run(space, bench, compiler, wish, None, method)
            result = search.run(())
            used = time.process_time() - began - bench.seconds - compiler.seconds
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        beside = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        winner = next(c for c in search.task.candidates if c.schedule == result.best.schedule)
        return {
            "latency_s": winner.latency_s,
            "without_luck_s": without_luck(winner, self.device),
            "timed": sum(t.latency_s is not None for t in result.trials),
            "stopped": result.stopped,
            "bred": result.bred,
            "search_s": used - recording_s + beside,
            "recording_s": recording_s,
            "beside_s": beside,
            "measuring_s": bench.seconds + compiler.seconds,
            "wall_s": time.monotonic() - wall - recording_s,
            "curve": bench.curve,
            "course": _digest(result.trials),
        }

    def _made(self, variant: Variant, stack: ExitStack) -> tuple[Space, float]:
        """The space, and the CPU seconds that it took now to make it."""
        if self._space is not None and not variant.own_space:
            return self._space[0], 0.0
        began, worker = time.process_time(), None
        if variant.second_process:
            worker = Remote("the process aside", partial(Child, 0, "ekc.search.worker"))
            stack.callback(worker.close)
        space = Space(self.op, self.device.limits, worker=worker)
        for part in space.parts[: -1 if worker else None]:
            part.prepare()
        seconds = time.process_time() - began
        if not variant.own_space:
            self._space = space, seconds
        return space, seconds


def without_luck(winner: Candidate, device: Device) -> float:
    """The latency of a kernel without the seeded factor that is its own on a simulated device, as in
    `search_depth.py`."""
    made = generate(winner.schedule, device.limits)
    starts = len(made.launches) * LAUNCH_S
    return starts + (winner.latency_s - starts) / own_time(device.name, digest_of_text(made.source))


def _digest(trials: Any) -> str:
    """Of what was tried, in its order, and what came of it."""
    told = json.dumps([(t.schedule.digest, t.latency_s) for t in trials])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def read_lines(folder: Path) -> list[Line]:
    """All finished runs in a folder, each once, in the order they were written."""
    found: dict[tuple[Any, ...], Line] = {}
    for log in sorted(folder.glob("*.jsonl")):
        for line in _lines(log):
            found.setdefault(identity(line), line)
    return list(found.values())


def identity(line: Line) -> tuple[Any, ...]:
    """What names a run."""
    return tuple(line[k] for k in KEYS)


def _lines(log: Path) -> Iterator[Line]:
    for text in log.read_text().splitlines():
        try:
            yield json.loads(text)
        except json.JSONDecodeError:
            # Of a benchmark that was killed while it wrote: that run is run again.
            continue


def keep(log: Path, line: Line) -> None:
    """Add a finished run, on a line of its own even where the last one was cut short."""
    whole = not log.exists() or not log.stat().st_size or log.read_bytes().endswith(b"\n")
    with log.open("a") as file:
        file.write(("" if whole else "\n") + json.dumps(line) + "\n")


def check_program(lines: list[Line], program: str) -> None:
    """One name stands for one program: its runs must all be of this code."""
    others = {line["code"] for line in lines if line["program"] == program} - {code()}
    if others:
        raise SystemExit(f"--program: {program!r} is other code ({', '.join(others)}); name another")
