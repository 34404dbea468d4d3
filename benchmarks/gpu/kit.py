"""State that the parts share: the device, the folder, whether the run is a dry run, and a part's time."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.gpu.folder import Folder
from ekc import devices
from ekc.codegen import nvrtc
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from ekc.devices.cuda.device import parse_target
from ekc.devices.device import Device, Timing
from ekc.errors import DeviceError, EkcError
from ekc.ir.comparison.compare import DATA_SEED
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.processes.pool import count_cores
from ekc.runtime.verify import verify, verify_if_executable
from ekc.version import __version__

DRY_TARGET = "a100"
AHEAD = 2
"""Kernels compiled ahead of those measured, for each core."""
RESERVE = 0.03
"""Share of a part's time that is kept for writing."""
REFERENCES = 4
"""Operators whose reference is kept: as many are recorded."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class NotRun(EkcError):
    """A part cannot run here; the text says why."""


class Budget:
    """Time of a part, from its creation. An item is begun only where it would still fit."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._now = seconds, now
        self._end = now() + seconds * (1 - RESERVE)
        self._longest: dict[float, float] = {}
        self.cut = False
        """Whether there was no time for some items."""

    def compute_left_s(self) -> float:
        """Remaining seconds without the reserve; below 0 after the end."""
        return self._end - self._now()

    def take_affordable(
        self, items: Iterable[Item], guess_s: Callable[[Item], float] = lambda item: 0.0
    ) -> Iterator[Item]:
        """The items in order, as far as the time goes. Those of one guess are of a kind: one is begun only
        where the longest of its kind so far would still fit, the first of a kind where the guess does. What
        is too long is passed over while there is time for a shorter kind."""
        for item in items:
            kind = guess_s(item)
            if self.compute_left_s() <= self._longest.get(kind, kind):
                self.cut = True
                if self.compute_left_s() <= min(self._longest.values(), default=0.0):
                    return
                continue
            began = self._now()
            yield item
            self._longest[kind] = max(self._longest.get(kind, 0.0), self._now() - began)

    def share_time(
        self, items: Sequence[Item], good_s: float, least_s: float
    ) -> Iterator[tuple[Item, float]]:
        """Items with a share of the time each: as many as can have `good_s`. One that took longer than its
        share keeps out no other that can still have `least_s`. The first is begun in any case."""
        chosen = items[: max(1, int(self.compute_left_s() // good_s))]
        for n, item in enumerate(chosen):
            share = self.compute_left_s() / (len(chosen) - n)
            if n and share < least_s:
                break
            yield item, share
        else:
            self.cut = self.cut or len(chosen) < len(items)
            return
        self.cut = True


@dataclass(frozen=True)
class Timed:
    """A schedule whose kernel was timed."""

    schedule: Schedule
    kernel: CompiledKernel
    timing: Timing


@dataclass
class Kit:
    """One run."""

    target: str
    opened_device: Device | None
    folder: Folder
    dry: bool
    seed: int
    set_clocks: bool
    now: Callable[[], float] = time.monotonic
    """Seconds of the clock that budgets are of; a rehearsal has a virtual one."""
    pack: Path | None = None
    """File of the part `pack`."""
    workers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(count_cores()))

    @classmethod
    def open(
        cls,
        target: str,
        out: Path,
        dry: bool,
        seed: int,
        set_clocks: bool,
        now: Callable[[], float] = time.monotonic,
        pack: Path | None = None,
    ) -> Kit:
        """Open the device; a dry run has a simulated one. Raises `EkcError`."""
        target = DRY_TARGET if dry else target
        device = devices.open(target)
        if set_clocks:
            device = _fix_clock(device)
        folder = Folder(out, describe_conditions(device, dry, seed))
        return cls(target, device, folder, dry, seed, set_clocks, now, pack)

    @classmethod
    def reopen(cls, out: Path) -> Kit:
        """Open the results of earlier runs without their device. Raises `RecordError`."""
        folder = Folder(out)
        then = folder.measured
        return cls(then["device"], None, folder, then["dry_run"], then["seed"], False)

    @property
    def device(self) -> Device:
        """The device. Raises `DeviceError` where the folder was reopened without it."""
        if self.opened_device is None:
            raise DeviceError(f"{self.folder.path} was opened without {self.label}")
        return self.opened_device

    @property
    def label(self) -> str:
        """The device of the rows."""
        return str(self.folder.measured["device"])

    @property
    def gpu(self) -> int:
        """The number of the GPU, as the driver counts."""
        return (parse_target(self.target).indices or (0,))[0]

    def compile_kernel(self, schedule: Schedule) -> CompiledKernel:
        """Compile a schedule for the device. Raises the errors of the compiler."""
        return compile_schedule(schedule, self.device.arch, self.device.limits)

    def compile_ahead(
        self, schedules: Iterable[Schedule]
    ) -> Iterator[tuple[Schedule, Callable[[], CompiledKernel]]]:
        """Schedules in order, each with its kernel, compiled a few ahead in the background."""
        return self.run_ahead(self.compile_kernel, schedules)

    def run_ahead(
        self, job: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Callable[[], Result]]]:
        """Items in order, each with the result of its job, which runs a few ahead in the background."""
        waiting: list[tuple[Item, Future[Result]]] = []
        ahead = AHEAD * count_cores()
        for item in items:
            waiting.append((item, self.workers.submit(job, item)))
            if len(waiting) > ahead:
                first, running = waiting.pop(0)
                yield first, running.result
        for first, running in waiting:
            yield first, running.result

    def time_schedules(self, schedules: Iterable[Schedule]) -> tuple[list[Timed], EkcError | None]:
        """Schedules that run, fastest first, and the last problem of the others."""
        timed: list[Timed] = []
        problem: EkcError | None = None
        for schedule, make in self.compile_ahead(schedules):
            try:
                kernel = make()
                timed.append(Timed(schedule, kernel, self.device.time(kernel)))
            except EkcError as why:
                problem = why
        return sorted(timed, key=lambda one: (one.timing.latency_s, one.schedule.digest)), problem

    def judge(
        self, schedule: Schedule, kernel: CompiledKernel, expected: ReferenceEvaluator | None = None
    ) -> tuple[str, str]:
        """(fault or "", verdict as text): executed on the device where it can, else by the PTX machine.

        `expected`: a reference on other inputs than the usual ones. Raises `EkcError` where neither can
        execute it."""
        expected = expected or make_reference(schedule.op)
        verdict = verify_if_executable(self.device, schedule, kernel, expected) or verify(
            schedule, kernel, expected
        )
        return verdict.fault, str(verdict)

    def close(self) -> None:
        """End the background threads and the device's worker."""
        self.workers.shutdown(cancel_futures=True)
        end = getattr(self.opened_device, "close", None)
        if end is not None:
            end()


@lru_cache(maxsize=REFERENCES)
def make_reference(op: Operator) -> ReferenceEvaluator:
    """The reference on the usual inputs."""
    return ReferenceEvaluator.from_seed(op, DATA_SEED)


def _fix_clock(device: Device) -> Device:
    """The device at its highest clock. Raises `DeviceError` where the clock cannot be set."""
    offered = device.clocks()
    if not offered.mhz:
        raise DeviceError(f"--set-clocks: {offered.reason}")
    return device.at_clock(offered.mhz[-1])


def describe_conditions(device: Device, dry: bool, seed: int) -> dict[str, Any]:
    """Conditions of the rows of a run."""
    return {
        "device": device.label,
        "simulated": device.simulated,
        "dry_run": dry,
        "arch": device.arch,
        "driver": device.driver,
        "nvrtc": nvrtc.version(),
        "clock_regime": device.clock_regime,
        "data_policy": device.data_policy,
        "seed": seed,
        **describe_machine(),
    }


def describe_machine() -> dict[str, Any]:
    """Facts about a run that do not depend on its device."""
    return {
        "ekc": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": f"{platform.machine()}, {count_cores()} cores",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
