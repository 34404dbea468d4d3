"""The SM clock of a real GPU, fixed for the duration of a measurement."""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from ekc.devices.clocks import zeusd
from ekc.devices.clocks.daemon import client
from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.limits import NvmlLimitReader, Settings
from ekc.devices.clocks.open import choose_actuator
from ekc.devices.device import OfferedClocks
from ekc.devices.nvml.library import explain_refusal
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import ActuatorError, DeviceError
from ekc.forks import detach_in_children


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
