"""Measuring through the record store: what is on file is not measured again, what is new is filed first.

Every figure the tuner uses passes through here, one row at a time, each committed before the next
measurement begins. A run that was killed therefore resumes by running again: it asks the same
questions in the same order and finds the answers on file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar

from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import toolchain
from ekc.devices.base import Device, Executes, Metering, Spreads, Timing
from ekc.devices.execute import EXECUTED_BY
from ekc.devices.plain import plain
from ekc.errors import CompileError, EkcError, ScheduleError, ToolchainError
from ekc.ir.operator import Operator
from ekc.ir.schedule import Schedule
from ekc.search.records.store import Key, Kind, RecordStore, Row, canonical_json
from ekc.search.spent import Spent
from ekc.version import __version__

LABEL_WINDOW_S = 1.0
"""Window of a figure that only labels a row for the model."""
FINAL_WINDOW_S = 5.0
"""Window of a figure that is quoted."""
COMPILE = "compile: "
"""How the status of a schedule begins that the compiler refused."""


@dataclass(frozen=True)
class Failure:
    """A schedule that could not be compiled or run, and why."""

    status: str


@dataclass
class Bench:
    """One operator on one device with one record store."""

    replays: ClassVar[bool] = False
    """Whether the figures were all measured before."""
    device: Device
    store: RecordStore
    spent: Spent = field(default_factory=Spent)
    _ahead: dict[str, Future[Timing]] = field(default_factory=dict)
    """By schedule: first timings under way on a device that has several GPUs."""

    @contextmanager
    def ahead(self, jobs: Sequence[tuple[Schedule, Callable[[], CompiledKernel]]]) -> Iterator[None]:
        """Within the block these schedules are timed side by side, where the device can. They are asked for
        and filed one by one, in the caller's order, all the same; what nobody asked for is given up."""
        device = self.device
        if isinstance(device, Spreads) and device.workers > 1:
            new = [job for job in jobs if self.known(job[0]) is None]
            self._ahead = {s.digest: device.submit(kernel, n) for n, (s, kernel) in enumerate(new)}
        try:
            yield
        finally:
            for job in self._ahead.values():
                job.cancel()
            self._ahead = {}

    def known(self, schedule: Schedule) -> Timing | Failure | None:
        """What is on file of a schedule's first timing: no need to compile it again."""
        key = self._key(schedule)
        row = self.store.find("timing", key)
        return row.timing() if row is not None else self._uncompilable(key)

    def timed_before(self, op: Operator) -> int:
        """How many schedules of an operator have a timing on file that this device would give now."""
        key = self._key(Schedule(op))
        rows = self.store.rows(operator=key.operator, device=key.device, kind="timing")
        same = (r.key for r in rows if replace(r.key, schedule_digest=key.schedule_digest, draw=0) == key)
        return len({k.schedule_digest for k in same})

    def _uncompilable(self, key: Key) -> Failure | None:
        """The refusal of the compiler on file. A device may do tomorrow what it failed to do today, and
        another ekc may emit another text: those are tried again."""
        row = self.store.find("failure", key)
        same = row is not None and row.status.startswith(COMPILE) and row.ekc_version == __version__
        return Failure(row.status) if row is not None and same else None

    def time(
        self, schedule: Schedule, kernel: Callable[[], CompiledKernel], draw: int = 0
    ) -> Timing | Failure:
        """Latency, from the file or the device; the kernel is asked for only when it is needed.

        What the compiler or the device refuses is a Failure, and filed too.
        """
        outcome = self._time(schedule, kernel, draw)
        if isinstance(outcome, Timing):
            self.spent.timed(outcome, self.device.peaks.board_power_w)
        return outcome

    def _time(self, schedule: Schedule, kernel: Callable[[], CompiledKernel], draw: int) -> Timing | Failure:
        key = self._key(schedule, draw)
        row = self.store.find("timing", key)
        if row is not None:
            return row.timing()
        refused = self._uncompilable(self._key(schedule))
        if refused is not None:
            return refused
        try:
            begun = self._ahead.pop(schedule.digest, None)
            timed = begun.result() if begun is not None else self.device.time(kernel(), draw=draw)
            timing = replace(timed, resources=kernel().resources)
        except ToolchainError:
            raise
        except (CompileError, ScheduleError) as problem:
            return self.fail(schedule, f"{COMPILE}{problem}")
        except EkcError as problem:
            return self.fail(schedule, f"device: {problem}")
        self._file("timing", key, schedule, plain(timing))
        return timing

    def meter(
        self, schedule: Schedule, kernel: Callable[[], CompiledKernel], seconds: float, draw: int = 0
    ) -> Metering | Failure:
        """Power and energy, from the file or the device."""
        outcome = self._meter(schedule, kernel, seconds, draw)
        if isinstance(outcome, Metering):
            self.spent.metered(outcome)
        return outcome

    def _meter(
        self, schedule: Schedule, kernel: Callable[[], CompiledKernel], seconds: float, draw: int
    ) -> Metering | Failure:
        key = self._key(schedule, draw, seconds)
        row = self.store.find("metering", key)
        if row is not None:
            return row.metering()
        try:
            metering = self.device.meter(kernel(), seconds=seconds, draw=draw)
        except ToolchainError:
            raise
        except EkcError as problem:
            return self.fail(schedule, f"device: {problem}")
        self._file("metering", key, schedule, plain(metering))
        return metering

    def metered_at(self, schedule: Schedule, seconds: float, draw: int) -> datetime | None:
        """When this metering was filed; None where nobody knows, as of a recording."""
        row = self.store.find("metering", self._key(schedule, draw, seconds))
        return datetime.fromisoformat(row.created) if row is not None else None

    def fail(self, schedule: Schedule, status: str) -> Failure:
        """File why a schedule has no figures."""
        self._file("failure", self._key(schedule), schedule, {}, status)
        return Failure(status)

    def checked(self, schedule: Schedule) -> str | None:
        """The verdict on file of an execution of the kernel's PTX. One that only looked at the schedule
        does not count, nor one by another ekc, which may emit another text."""
        row = self.store.find("check", self._key(schedule))
        counts = row is not None and is_executed(row) and row.ekc_version == __version__
        return row.status if row is not None and counts else None

    def file_check(self, schedule: Schedule, verdict: str) -> None:
        """File the verdict of an execution of the kernel."""
        by = f"{self.device.executed_by}; {EXECUTED_BY}" if isinstance(self.device, Executes) else EXECUTED_BY
        self._file("check", self._key(schedule), schedule, {"executed_by": by}, verdict)

    def _key(self, schedule: Schedule, draw: int = 0, window_s: float | None = None) -> Key:
        device = self.device
        return Key(
            operator=canonical_json(schedule.op.to_json()),
            schedule_digest=schedule.digest,
            device=device.name,
            simulated=device.simulated,
            driver=device.driver,
            nvrtc=toolchain(),
            clock_regime=device.clock_regime,
            data_policy=device.data_policy,
            draw=draw,
            window_s=window_s,
        )

    def _file(
        self,
        kind: Kind,
        key: Key,
        schedule: Schedule,
        payload: dict[str, Any],
        status: str = "ok",
    ) -> None:
        self.store.add(Row(kind, key, schedule.to_json(), status, payload))


def is_executed(row: Row) -> bool:
    """Whether the verdict of a row comes from executing the kernel, and not from its schedule alone."""
    return bool(row.payload.get("executed_by"))
