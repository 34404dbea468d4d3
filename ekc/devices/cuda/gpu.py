"""One real GPU: its worker, its properties, its SM clock, fixed for the duration of a measurement, and its
sensors, which are read while the worker measures: the GPU is idle before and soon after."""

from __future__ import annotations

import atexit
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self

from ekc.devices.clocks import zeusd
from ekc.devices.clocks.daemon import client
from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.limits import NvmlLimitReader, Settings
from ekc.devices.clocks.open import choose_actuator
from ekc.devices.cuda.device_attributes import GpuProperties
from ekc.devices.cuda.driver import explain_old_driver
from ekc.devices.cuda.messages import STOP_CALLS, Work, WorkerRequest, make_request
from ekc.devices.device import POWER_CAP, OfferedClocks
from ekc.devices.metering.meter import Board, CompletedCalls, MeteringWindow, meter_kernel
from ekc.devices.nvml.library import explain_refusal
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import ActuatorError, DeviceError
from ekc.forks import detach_in_children
from ekc.processes.child import RemoteWorker


class SmClockControl:
    """Sets the SM clock as an upper limit; a busy GPU runs at it unless its power cap or heat throttles it.

    The clock is set under a lease: previous settings come back after each measurement, and also when this
    process is killed. The lease and its guard process begin with the first clock that is set. A clock limit
    from before cannot be read, so it is not restored: afterwards there is none.
    """

    def __init__(self, sensors: GpuSensors) -> None:
        self._sensors = sensors
        self._lease_keeper: LeaseKeeper | None = None
        detach_in_children(self)

    def list_clocks(self) -> OfferedClocks:
        """Clocks that can be set, ascending, or why none can. Nothing is tried: a driver may still refuse."""
        current = self._sensors.clock_mhz()
        if self._sensors.explain_sharing():
            return OfferedClocks(reason=f"{self._sensors.name} is split by MIG", current_mhz=current)
        refused = explain_refusal()
        if refused and client.find_socket() is None and zeusd.find_daemon_address() is None:
            return OfferedClocks(reason=f"{refused}, and no daemon runs", current_mhz=current)
        try:
            mhz = NvmlLimitReader(self._sensors.uuid).list_offered().sm_mhz
        except ActuatorError as problem:
            return OfferedClocks(reason=str(problem), current_mhz=current)
        reason = "" if mhz else f"{self._sensors.name} has no SM clock that can be limited"
        return OfferedClocks(mhz, reason, current)

    @contextmanager
    def fix_clock(self, mhz: int) -> Iterator[None]:
        """Within the block the clock is `mhz` at most; afterwards it has no limit.

        Raises `ActuatorError` (a `DeviceError`) where the driver refuses or another process governs the GPU,
        and `DeviceError` for a clock that is not offered.
        """
        if self._lease_keeper is None:
            self._lease_keeper = LeaseKeeper(
                [choose_actuator("auto", self._sensors.uuid)], on_message=warnings.warn
            )
            atexit.register(self.close)
        actuator = self._lease_keeper.actuators[0]
        offered = OfferedClocks(actuator.list_offered().sm_mhz, "it has no SM clock that can be limited")
        if refusal := offered.explain_refusal(mhz):
            raise DeviceError(f"{self._sensors.name} cannot be set to {mhz} MHz: {refusal}")
        try:
            actuator.apply(Settings(sm_mhz=mhz))
            yield
        finally:
            actuator.apply(Settings())

    def detach(self) -> None:
        """In a forked child: the lease belongs to the parent."""
        self._lease_keeper = None

    def close(self) -> None:
        """End the lease. Warns where settings could not be restored; the guard goes on trying."""
        keeper, self._lease_keeper = self._lease_keeper, None
        if keeper is not None:
            atexit.unregister(self.close)
            for line in keeper.close():
                warnings.warn(line, stacklevel=2)


SENSOR_POLL_INTERVAL_S = 0.05
"""Seconds between two reads of the sensors; timing a kernel takes ten times as long."""
NEAR_CAP = 0.85
"""Share of the power cap that a board draws at least while the cap throttles it: kernels under the cap of an
H100 drew 0.99 to 1.01 of it. Lower, as the reading may be a tenth of a second old."""


@dataclass(frozen=True)
class SensorState:
    """Clock, temperature and throttle reasons of a measurement."""

    clock_mhz: float
    """SM clock in MHz at the last read, which is while samples were taken or just after."""
    temperature_c: float
    throttle: tuple[str, ...]
    """All throttle reasons that were read."""
    power_cap_w: float | None


class SensorPoller:
    """Reads the sensors in a thread while the `with` block runs."""

    def __init__(self, sensors: GpuSensors) -> None:
        self._sensors = sensors
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll_until_stopped, daemon=True)
        self._last_state: SensorState | None = None
        self._throttle: set[str] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def read_state(self) -> SensorState:
        """State of the sensors during the block; a block that was too short is followed by one read. Raises
        `DeviceError` where the GPU is lost."""
        if self._last_state is None:
            self._poll_once()
        assert self._last_state is not None
        return self._last_state

    def _poll_until_stopped(self) -> None:
        # A lost GPU is reported by the worker, or by the next read.
        while not self._stopped.wait(SENSOR_POLL_INTERVAL_S):
            try:
                self._poll_once()
            except DeviceError:
                return

    def _poll_once(self) -> None:
        s = self._sensors
        self._throttle.update(self._read_throttle())
        throttle = tuple(sorted(self._throttle))
        clock_mhz = s.clock_mhz()
        if math.isnan(clock_mhz) and self._last_state is not None:
            clock_mhz = self._last_state.clock_mhz
        self._last_state = SensorState(clock_mhz, s.temperature_c(), throttle, s.power_cap_w())

    def _read_throttle(self) -> tuple[str, ...]:
        """Reasons that hold now. The driver shows the power cap as a reason up to 0.3 s longer than it acts
        (seen on an H100): below `NEAR_CAP` of the cap it is left from the kernel before."""
        reasons, cap_w = self._sensors.throttle(), self._sensors.power_cap_w()
        if POWER_CAP in reasons and cap_w is not None and self._sensors.power_w() < NEAR_CAP * cap_w:
            return tuple(reason for reason in reasons if reason != POWER_CAP)
        return reasons


class RemoteKernelRunner:
    """Calls a kernel back to back in the worker of one GPU until `stop`, so that the GPU never idles in
    between."""

    def __init__(self, remote: RemoteWorker) -> None:
        self._remote = remote
        self._is_running = False
        self._queued_s = 0.0

    def start(self, kernel: Work) -> None:
        """Start to call the kernel; returns when it runs. `DeviceError` when it faults."""
        self._queued_s = self._remote.query(make_request("call_until_stopped", kernel))
        self._is_running = True

    def stop(self) -> CompletedCalls:
        """Stop the calls. `DeviceError` if the kernel faulted meanwhile, or nothing was started."""
        if not self._is_running:
            raise DeviceError(f"{self._remote.name}: no kernel runs; call start() first")
        self._is_running = False
        timeout_s = self._remote.timeouts.stop_s + self._queued_s
        calls: CompletedCalls = self._remote.query(STOP_CALLS, timeout_s)
        return calls


class NvmlBoard:
    """A `Board` of the meter: sensors are read in this process, the kernel runs in a worker. Raises
    `DeviceError` where the energy of the board is not that of one kernel (MIG)."""

    def __init__(
        self,
        sensors: GpuSensors,
        kernel_runner: RemoteKernelRunner,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if shared := sensors.explain_sharing():
            raise DeviceError(f"{shared}; nothing can be metered, latency can be timed")
        self._sensors, self._kernel_runner = sensors, kernel_runner
        self.now_s, self.wait, self.start = now, sleep, kernel_runner.start
        self.averaging_s, self.counter_mj = sensors.averaging_s, sensors.counter_mj
        self.power_w, self.power_cap_w = sensors.power_w, sensors.power_cap_w
        self.temperature_c, self.clock_mhz = sensors.temperature_c, sensors.clock_mhz
        self.throttle = sensors.throttle

    def stop(self) -> CompletedCalls:
        """Stop soon, and report the calls."""
        called = self._kernel_runner.stop()
        if called.count < 1:
            raise DeviceError(f"{self._sensors.name}: the kernel was not called once while it was metered")
        return called


@dataclass(eq=False)
class Gpu:
    """A GPU for one thread at a time: hold `lock` from a request to its reply."""

    index: int
    remote: RemoteWorker
    properties: GpuProperties
    sensors: GpuSensors
    clocks: SmClockControl
    make_board: Callable[[GpuSensors, RemoteKernelRunner], Board] = NvmlBoard
    lock: Any = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        detach_in_children(self)

    def detach(self) -> None:
        """In a forked child: a thread that held the lock does not exist here."""
        self.lock = threading.RLock()

    @classmethod
    def connect(
        cls, index: int, remote: RemoteWorker, open_sensors: Callable[[str], GpuSensors], nvrtc: str
    ) -> Gpu:
        """Ask the worker for the GPU's properties, and find its sensors by UUID. Raises `DeviceError` where
        there is no GPU, or its driver is too old."""
        facts: GpuProperties = remote.query(WorkerRequest("describe"))
        if reason := explain_old_driver(facts.driver_version, nvrtc):
            raise DeviceError(f"{facts.name}: its driver is {reason}")
        found = open_sensors(facts.uuid)
        return cls(index, remote, facts, found, SmClockControl(found))

    def query(self, request: Any, fixed_mhz: int | None = None) -> tuple[Any, SensorState]:
        """Reply of the worker, and the sensors meanwhile; at a fixed clock, or as the driver chooses."""
        with self.lock, self._fix_clock(fixed_mhz):
            with SensorPoller(self.sensors) as watch:
                answer = self.remote.query(request)
            return answer, watch.read_state()

    def meter(
        self,
        kernel: Work,
        call_s: float,
        seconds: float,
        fixed_mhz: int | None = None,
        measure: Callable[[Board, Any, float, float], MeteringWindow] = meter_kernel,
    ) -> MeteringWindow:
        """Power of back-to-back calls; see `ekc.devices.metering.meter`, also for `measure`."""
        with self.lock, self._fix_clock(fixed_mhz):
            board = self.make_board(self.sensors, RemoteKernelRunner(self.remote))
            return measure(board, kernel, call_s, seconds)

    def _fix_clock(self, mhz: int | None) -> AbstractContextManager[None]:
        return nullcontext() if mhz is None else self.clocks.fix_clock(mhz)
