"""The sensors of one GPU, read through NVML, and how they behave. Reading needs no permission; nothing is run
or set.

Power is the instantaneous reading (field 186) where the card has it. Elsewhere `nvmlDeviceGetPowerUsage` is a
mean over one second on Ampere and later, except on the GA100 (NVML's documentation of that call), and
instantaneous on older cards. A sensor of your own: `ekc.devices.observer`.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ekc.devices.device import POWER_CAP, UNREPORTED
from ekc.devices.metering.checked_energy import (
    POLL_INTERVAL_S,
    STALL_S,
    compute_max_power_w,
    is_believable_power,
)
from ekc.devices.nvml.library import (
    RETRY_PAUSES_S,
    THROTTLE_FUNCTIONS,
    call_nvml,
    find_handle,
    is_passing,
    load_nvml,
    retry_nvml,
)
from ekc.errors import GpuUnusable
from ekc.forks import hold_forks

AVERAGING_S = 1.0
"""Averaging time in seconds of power readings that are not instantaneous."""
_AMPERE = 7
_GA100 = re.compile(r"\b(A100|A800|A30)\b")
_NAN = float("nan")
_THROTTLE_REASONS = {
    0x04: POWER_CAP,
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x200: "board limit",
    0x400: "reliability limit",
}
"""Bits of the reasons that throttle the clock; idleness and limits set by a user are none."""


class GpuSensors:
    """The sensors of one GPU, named by its UUID in the form of NVML or CUDA.

    A reading that fails is NaN or None, and `last_problem` gives the reason. Raises `ActuatorError` (a
    `DeviceError`) where there is no such GPU, and from any reading once the GPU is lost.
    """

    def __init__(self, uuid: str, library: Any = None) -> None:
        self.library = library or load_nvml()
        self.handle = find_handle(self.library, uuid)
        self.name = uuid
        self.last_problem = ""
        """Reason of the last failed reading."""
        self.power_problem = ""
        """The last power reading that was not believed."""
        self._missing: set[str] = set()
        """Functions that this card or driver does not have."""
        self._max_cap_w: float | None = None
        """The highest power cap in force so far, in watts."""
        self._mig_part = self._switch_to_mig_parent()
        self.uuid = str(call_nvml(f"the UUID of {uuid}", self.library.nvmlDeviceGetUUID, self.handle))
        """UUID of the whole GPU, as NVML reports it."""
        index = call_nvml(f"the index of {uuid}", self.library.nvmlDeviceGetIndex, self.handle)
        model = call_nvml(f"the name of {uuid}", self.library.nvmlDeviceGetName, self.handle)
        self.name = f"GPU {index} ({model})"
        self.is_instantaneous = self._has_instant_power()
        self.averaging_s = AVERAGING_S if not self.is_instantaneous and self._has_averaged_power() else 0.0

    def explain_sharing(self) -> str:
        """Why the energy of the board is not that of one kernel alone (MIG); "" where it is."""
        mode = self.query("nvmlDeviceGetMigMode")
        if self._mig_part is not None or (mode is not None and mode[0]):
            return f"{self.name} is split by MIG: its energy counter is that of all parts together"
        return ""

    def counter_mj(self) -> int | None:
        """Total energy of the board in millijoules (Volta and later); None where the board has no counter."""
        millijoules = self.poll("nvmlDeviceGetTotalEnergyConsumption")
        return None if millijoules is None else int(millijoules)

    def power_w(self) -> float:
        """Power in watts by the best reading that this card has; NaN for one that no such board draws, with
        `power_problem`."""
        if self.is_instantaneous:
            return self._read_instant_power_w()
        milliwatts = self.poll("nvmlDeviceGetPowerUsage")
        return _NAN if milliwatts is None else self._check_power(milliwatts / 1000.0)

    @property
    def has_power(self) -> bool:
        """Whether this card has a power reading, as far as that is known."""
        return self.is_instantaneous or "nvmlDeviceGetPowerUsage" not in self._missing

    def max_power_w(self) -> float:
        """Watts that this board draws at most, by the highest power cap that was in force so far."""
        milliwatts = self.poll("nvmlDeviceGetEnforcedPowerLimit")
        present_w = None if milliwatts is None else milliwatts / 1000.0
        caps = [cap for cap in (self._max_cap_w, present_w) if cap is not None]
        self._max_cap_w = max(caps, default=None)
        return compute_max_power_w(self._max_cap_w)

    def _check_power(self, watts: float) -> float:
        """The reading, or NaN where the board cannot draw that. The cap may have been raised since it was
        read."""
        known_w = 0.0 if self._max_cap_w is None else compute_max_power_w(self._max_cap_w)
        if is_believable_power(watts, known_w) or is_believable_power(watts, self.max_power_w()):
            return watts
        self.last_problem = self.power_problem = (
            f"its power sensor says {watts:,.0f} W, where a board with its cap draws more than 0 W and at "
            f"most {compute_max_power_w(self._max_cap_w):,.0f} W"
        )
        return _NAN

    def temperature_c(self) -> float:
        """Temperature of the die in degrees Celsius."""
        sensor = self.library.NVML_TEMPERATURE_GPU
        celsius = self.query("nvmlDeviceGetTemperature", sensor)
        if celsius is None:  # CUDA 14 removes the older call.
            celsius = self.query("nvmlDeviceGetTemperatureV", sensor)
        return _NAN if celsius is None else float(celsius)

    def clock_mhz(self) -> float:
        """Present SM clock in MHz."""
        mhz = self.poll("nvmlDeviceGetClockInfo", self.library.NVML_CLOCK_SM)
        return _NAN if mhz is None else float(mhz)

    def throttle(self) -> tuple[str, ...]:
        """Reasons why the clock is lower than it could be, or `UNREPORTED` where the driver gives none."""
        for function in THROTTLE_FUNCTIONS:
            bits = self.poll(function)
            if bits is not None:
                return tuple(name for bit, name in _THROTTLE_REASONS.items() if bits & bit)
        return (UNREPORTED,)

    def power_cap_w(self) -> float | None:
        """Power cap in force, in watts; None where the card has none."""
        cap = self.query("nvmlDeviceGetEnforcedPowerLimit")
        return None if cap is None else cap / 1000.0

    def read_driver_version(self) -> str:
        """Version of the driver, e.g. "570.86.15"."""
        return str(call_nvml("the driver's version", self.library.nvmlSystemGetDriverVersion))

    def poll(self, function: str, *arguments: Any) -> Any:
        """As `query`, tried once: for readings that are made again soon anyway."""
        return self.query(function, *arguments, run=_call_once)

    def query(self, function: str, *arguments: Any, run: Callable[..., Any] = retry_nvml) -> Any:
        """Result of an NVML call for this GPU, None if it failed, also when it was tried again
        (`retry_nvml`). Raises `GpuUnusable` for a lost GPU."""
        call = getattr(self.library, function, None)
        if call is None:
            self.last_problem = f"the installed nvidia-ml-py does not know {function}"
            return None
        try:
            return run(call, self.handle, *arguments)
        except self.library.NVMLError as problem:
            self.record_failure(function, problem)
            return None

    def record_failure(self, function: str, problem: Any) -> None:
        """Keep the reason of a failure; raise it where no later call can succeed."""
        self.last_problem = f"{function}: {problem}"
        if not is_passing(problem.value):
            self._missing.add(function)
        if problem.value == self.library.NVML_ERROR_GPU_IS_LOST:
            text = f"{self.name}, {self.last_problem}; reset it or restart the machine"
            raise GpuUnusable(text) from problem

    def _switch_to_mig_parent(self) -> Any:
        """For a MIG instance: read its parent GPU from here on, which alone has sensors."""
        if not self.query("nvmlDeviceIsMigDeviceHandle"):
            return None
        parent = self.query("nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
        if parent is None:
            return None
        self.handle, part = parent, self.handle
        return part

    def _has_instant_power(self) -> bool:
        """Whether field 186 answers with a believable power; an error that may pass does not decide it."""
        fields = self.query("nvmlDeviceGetFieldValues", [self.library.NVML_FI_DEV_POWER_INSTANT])
        for pause_s in RETRY_PAUSES_S:
            if fields is None or not is_passing(fields[0].nvmlReturn):
                break
            time.sleep(pause_s)
            fields = self.query("nvmlDeviceGetFieldValues", [self.library.NVML_FI_DEV_POWER_INSTANT])
        if fields is None or fields[0].nvmlReturn != self.library.NVML_SUCCESS:
            return False
        return is_believable_power(float(fields[0].value.uiVal) / 1000.0, self.max_power_w())

    def _read_instant_power_w(self) -> float:
        fields = self.poll("nvmlDeviceGetFieldValues", [self.library.NVML_FI_DEV_POWER_INSTANT])
        if fields is None:
            return _NAN
        if fields[0].nvmlReturn != self.library.NVML_SUCCESS:
            self.last_problem = f"the power field: {self.library.NVMLError(fields[0].nvmlReturn)}"
            return _NAN
        return self._check_power(float(fields[0].value.uiVal) / 1000.0)

    def _has_averaged_power(self) -> bool:
        """Whether `nvmlDeviceGetPowerUsage` is a mean here; True where the architecture is unknown."""
        arch = self.query("nvmlDeviceGetArchitecture")
        return (arch is None or arch >= _AMPERE) and not _GA100.search(self.name)


@hold_forks()
def _call_once(call: Callable[..., Any], *arguments: Any) -> Any:
    return call(*arguments)


OBSERVATION_S = 1.5
_PART_TIME_CARDS = re.compile(r"\b(A100|H100)\b")
PART_TIME_NOTE = "looks at 25 of every 100 ms (arXiv 2312.02741)"


@dataclass(frozen=True)
class SensorBehaviour:
    """Behaviour of the sensors of a GPU over `OBSERVATION_S` seconds."""

    has_counter: bool
    tick_interval_s: float | None
    """Seconds between two ticks of the energy counter; None where it did not tick twice."""
    is_instantaneous: bool
    """Whether there is an instantaneous power reading, not only a mean."""
    averaging_s: float
    """Averaging time of the power reading in seconds; 0 where it is instantaneous."""
    refresh_interval_s: float | None
    """Seconds between two values of the power reading; None where it did not change twice."""
    part_time_note: str
    """Note on a sensor that measures part of the time only; "" for other sensors."""


def observe_sensors(
    sensors: GpuSensors,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> SensorBehaviour:
    """Watch the sensors for `OBSERVATION_S` seconds. Raises `ActuatorError` if the GPU is lost."""
    ends = now() + OBSERVATION_S
    last_counter, last_watts = sensors.counter_mj(), sensors.power_w()
    has_counter = last_counter is not None
    ticks: list[float] = []
    changes: list[float] = []
    while (at := now()) < ends:
        counter, watts = sensors.counter_mj(), sensors.power_w()
        if counter != last_counter:
            ticks.append(at)
        if watts != last_watts and watts == watts:
            changes.append(at)
        last_counter, last_watts = counter, watts
        sleep(POLL_INTERVAL_S)
    part_time = _PART_TIME_CARDS.search(sensors.name)
    return SensorBehaviour(
        has_counter=has_counter,
        tick_interval_s=_compute_median_interval(ticks) if has_counter else None,
        is_instantaneous=sensors.is_instantaneous,
        averaging_s=sensors.averaging_s,
        refresh_interval_s=_compute_median_interval(changes),
        part_time_note=PART_TIME_NOTE if part_time else "",
    )


def _compute_median_interval(moments: list[float]) -> float | None:
    """Median interval in seconds; None where there is none, or where it is longer than the meter waits."""
    if len(moments) < 2:
        return None
    found = statistics.median(b - a for a, b in pairwise(moments))
    return found if found < STALL_S else None
