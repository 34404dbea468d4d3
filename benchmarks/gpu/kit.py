"""State that the parts share: the device, the folder, and whether the run is a dry run."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.folder import Folder
from ekc import devices
from ekc.codegen import nvrtc
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from ekc.devices.cuda.device import parse_target
from ekc.devices.device import Device
from ekc.errors import DeviceError
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.schedule.schedule import Schedule
from ekc.processes.pool import count_cores
from ekc.runtime.verify import verify, verify_if_executable
from ekc.version import __version__

DRY_TARGET = "a100"
AHEAD = 2
"""Kernels compiled ahead of those measured, for each core."""


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
        waiting: list[tuple[Schedule, Future[CompiledKernel]]] = []
        ahead = AHEAD * count_cores()
        for schedule in schedules:
            waiting.append((schedule, self.workers.submit(self.compile_kernel, schedule)))
            if len(waiting) > ahead:
                first, job = waiting.pop(0)
                yield first, job.result
        for first, job in waiting:
            yield first, job.result

    def judge(
        self, schedule: Schedule, kernel: CompiledKernel, expected: ReferenceEvaluator
    ) -> tuple[str, str]:
        """(fault or "", verdict as text): executed on the device where it can, else by the PTX machine.

        Raises `EkcError` where neither can execute it."""
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
