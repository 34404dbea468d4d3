"""Measuring through the record store: a stored figure is read, a new one is measured and stored.

Every figure of a search passes through here, one row at a time, each committed before the next measurement
begins. A run that was killed therefore resumes by running again: it requests the same measurements in the
same order and finds those of the first run in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar

from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import describe_toolchain
from ekc.devices.device import Device, ExecutionDevice, Metering, ParallelDevice, Timing
from ekc.devices.measurement_json import measurement_to_json
from ekc.devices.observer import Observer, observe
from ekc.errors import CompileError, EkcError, ScheduleError, ToolchainError
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.execute import EXECUTED_BY
from ekc.search.data.result import COMPILE_FAILURE_PREFIX, MeasurementCost
from ekc.search.database.database import RecordKey, RecordKind, RecordRow, RecordStore, to_canonical_json
from ekc.version import __version__


@dataclass(frozen=True)
class MeasurementFailure:
    """The failure of a schedule that could not be compiled or run."""

    status: str
    """Status of the schedule, as `Trial.status`: "compile: ..." or "device: ..."."""


@dataclass
class Measurer:
    """Measures schedules on one device, through one record store."""

    is_replay: ClassVar[bool] = False
    """Whether all figures come from a recording."""
    device: Device
    store: RecordStore
    cost: MeasurementCost = field(default_factory=MeasurementCost)
    """Device cost of all measurements so far, stored ones included."""
    observers: Sequence[Observer] = ()
    """Observers of each measurement. With some, kernels are timed one after another on several GPUs too."""
    _pending_timings: dict[str, Future[Timing]] = field(default_factory=dict)
    """First timings that run now on a device with several GPUs, by digest of the schedule."""

    @contextmanager
    def start_timings(self, jobs: Sequence[tuple[Schedule, Callable[[], CompiledKernel]]]) -> Iterator[None]:
        """Within the block, time schedules in parallel if the device has several GPUs. `time` still returns
        and stores them one by one. Timings that it was not asked for are cancelled at the end."""
        device = self.device
        if isinstance(device, ParallelDevice) and device.workers > 1 and not self.observers:
            new = [job for job in jobs if self.find_first_timing(job[0]) is None]
            self._pending_timings = {s.digest: device.submit(kernel, n) for n, (s, kernel) in enumerate(new)}
        try:
            yield
        finally:
            for job in self._pending_timings.values():
                job.cancel()
            self._pending_timings = {}

    def find_first_timing(self, schedule: Schedule) -> Timing | MeasurementFailure | None:
        """Find the first timing of a schedule, or its compile failure, in the store; None if it is new."""
        key = self._make_key(schedule)
        row = self.store.find("timing", key)
        return row.to_timing() if row is not None else self._find_compile_failure(key)

    def _find_compile_failure(self, key: RecordKey) -> MeasurementFailure | None:
        """Find the stored compile failure of a schedule. Failures of the device, and failures stored by
        another version of ekc, are tried again."""
        row = self.store.find("failure", key)
        if row is None or row.ekc_version != __version__:
            return None
        return MeasurementFailure(row.status) if row.status.startswith(COMPILE_FAILURE_PREFIX) else None

    def time(
        self, schedule: Schedule, get_kernel: Callable[[], CompiledKernel], repeat: int = 0
    ) -> Timing | MeasurementFailure:
        """Return the latency of a schedule, from the store or the device. Failures are stored too.
        `get_kernel` is called for a new measurement only."""
        outcome = self._find_or_time(schedule, get_kernel, repeat)
        if isinstance(outcome, Timing):
            self.cost.add_timing(outcome, self.device.peaks.board_power_w)
        return outcome

    def _find_or_time(
        self, schedule: Schedule, get_kernel: Callable[[], CompiledKernel], repeat: int
    ) -> Timing | MeasurementFailure:
        key = self._make_key(schedule, repeat)
        row = self.store.find("timing", key)
        if row is not None:
            return row.to_timing()
        refused = self._find_compile_failure(self._make_key(schedule))
        if refused is not None:
            return refused
        try:
            pending = self._pending_timings.pop(schedule.digest, None)
            timed = pending.result() if pending else self._time_kernel(get_kernel(), repeat)
            timing = replace(timed, resources=get_kernel().resources)
        except ToolchainError:
            raise
        except (CompileError, ScheduleError) as problem:
            return self.record_failure(schedule, f"{COMPILE_FAILURE_PREFIX}{problem}")
        except EkcError as problem:
            return self.record_failure(schedule, f"device: {problem}")
        self._add_row("timing", key, schedule, measurement_to_json(timing), "ok")
        return timing

    def _time_kernel(self, kernel: CompiledKernel, repeat: int) -> Timing:
        return observe(self.observers, kernel, lambda: self.device.time(kernel, repeat=repeat))

    def meter(
        self, schedule: Schedule, get_kernel: Callable[[], CompiledKernel], window_s: float, repeat: int = 0
    ) -> Metering | MeasurementFailure:
        """Return power and energy of a schedule, from the store or the device. Failures are stored too."""
        outcome = self._find_or_meter(schedule, get_kernel, window_s, repeat)
        if isinstance(outcome, Metering):
            self.cost.add_metering(outcome)
        return outcome

    def _find_or_meter(
        self, schedule: Schedule, get_kernel: Callable[[], CompiledKernel], window_s: float, repeat: int
    ) -> Metering | MeasurementFailure:
        key = self._make_key(schedule, repeat, window_s)
        row = self.store.find("metering", key)
        if row is not None:
            return row.to_metering()
        try:
            kernel = get_kernel()
            metering = observe(
                self.observers, kernel, lambda: self.device.meter(kernel, seconds=window_s, repeat=repeat)
            )
        except ToolchainError:
            raise
        except EkcError as problem:
            return self.record_failure(schedule, f"device: {problem}")
        self._add_row("metering", key, schedule, measurement_to_json(metering), "ok")
        return metering

    def find_metering_time(self, schedule: Schedule, window_s: float, repeat: int) -> datetime | None:
        """Find when a metering was stored; None if it was not, as in a replay."""
        row = self.store.find("metering", self._make_key(schedule, repeat, window_s))
        return datetime.fromisoformat(row.created) if row is not None else None

    def record_failure(self, schedule: Schedule, status: str) -> MeasurementFailure:
        """Store the failure of a schedule."""
        self._add_row("failure", self._make_key(schedule), schedule, {}, status)
        return MeasurementFailure(status)

    def find_verdict(self, schedule: Schedule) -> str | None:
        """Find the stored verdict of executing a kernel. Verdicts without an execution, and verdicts stored
        by another version of ekc, do not count."""
        row = self.store.find("check", self._make_key(schedule))
        counts = row is not None and row.is_executed and row.ekc_version == __version__
        return row.status if row is not None and counts else None

    def record_verdict(self, schedule: Schedule, verdict: str) -> None:
        """Store the verdict of executing a kernel."""
        by = [self.device.executed_by] if isinstance(self.device, ExecutionDevice) else []
        payload = {"executed_by": "; ".join([*by, EXECUTED_BY])}
        self._add_row("check", self._make_key(schedule), schedule, payload, verdict)

    def _make_key(self, schedule: Schedule, repeat: int = 0, window_s: float | None = None) -> RecordKey:
        device = self.device
        return RecordKey(
            operator=to_canonical_json(schedule.op.to_json()),
            schedule_digest=schedule.digest,
            device=device.name,
            simulated=device.simulated,
            driver=device.driver,
            nvrtc=describe_toolchain(),
            clock_regime=device.clock_regime,
            data_policy=device.data_policy,
            draw=repeat,
            window_s=window_s,
        )

    def _add_row(
        self, kind: RecordKind, key: RecordKey, schedule: Schedule, payload: dict[str, Any], status: str
    ) -> None:
        self.store.add(RecordRow(kind, key, schedule.to_json(), status, payload))
