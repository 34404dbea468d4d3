"""The NVML probe of a real GPU: power, utilisation, clock and energy.

`BoardEnergy` has the joules of the board from its counter or from power readings, and `SensorSampler` reads
repeatedly in a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np

from ekc.devices.metering.checked_energy import MAX_BOARD_W, CheckedEnergy
from ekc.devices.nvml.library import retry_nvml
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import ActuatorError, DriverTrouble
from ekc.governor.protocols import CountersMissing, Probe
from ekc.governor.readings import NOT_MEASURED
from ekc.governor.samples import SensorSamples, Values

INSTANT_WINDOW_S = 0.1
"""Averaging window in seconds that is assumed for an instantaneous power reading."""

NvmlReading = tuple[float, float, float, float]
"""(watts, SM use in percent, memory use in percent, SM clock in MHz); NaN where a reading failed."""


INSTANT_INTERVAL_S, AVERAGED_INTERVAL_S = 0.05, 0.1
"""Seconds between readings of an instantaneous power sensor, and of one that averages."""
POLL_S = 0.1
"""Seconds between two checks whether the job is still running."""
POWER_TIMEOUT_S = 5.0
"""Seconds of failed power readings after which the power of the job is unknown."""
SILENCE_TIMEOUT_S = 1.0
"""Seconds without a first reading after which a driver counts as hanging."""


STALL_S = 5.0
"""Seconds without a change after which the energy counter counts as stopped; cards update it every second."""


class BoardEnergy:
    """Joules of one board, by its counter as long as that agrees with the power readings
    (`ekc.devices.metering.checked_energy`), then by the readings; `on_message` gets one line.

    `read_counter_j` is the counter, None where the card has none or the reading failed. Every recording is
    added by `add_readings`. `read_max_power_w`: watts that the board draws at most, which a higher power cap
    raises.
    """

    def __init__(
        self,
        read_counter_j: Callable[[], float | None],
        name: str,
        on_message: Callable[[str], None],
        read_max_power_w: Callable[[], float] = lambda: MAX_BOARD_W,
    ) -> None:
        self._read_counter_j, self._name, self._on_message = read_counter_j, name, on_message
        self._read_max_power_w = read_max_power_w
        self._checked = CheckedEnergy(STALL_S, read_max_power_w())

    def compute_joules(self, now_s: float) -> float:
        """Joules up to now, never less than before; only differences have a meaning."""
        self._read_counter(now_s)
        return self._checked.compute_joules(now_s)

    def add_readings(self, time_s: Values, power_w: Values) -> None:
        """Add the power readings since the last call; NaN where a reading failed."""
        if (power_w > self._checked.max_power_w).any():
            self._checked.max_power_w = self._read_max_power_w()
        for at_s, watts in zip(time_s.tolist(), power_w.tolist(), strict=True):
            self._checked.add_power(at_s, watts)
        if len(time_s):
            self._read_counter(float(time_s[-1]))

    def _read_counter(self, at_s: float) -> None:
        if self._checked.problem:
            return
        self._checked.add_count(at_s, self._read_counter_j())
        if self._checked.problem:
            self._on_message(f"{self._name} {self._checked.problem}; its power readings are added up instead")


T = TypeVar("T")
MAX_CORE_SHARE = 0.005
"""Largest share of one core for readings; expensive readings are made less often."""
EXIT_TIMEOUT_S = 1.0
"""Longest wait in seconds for a driver that does not answer."""


class SensorSampler(Generic[T]):
    """Reads in a thread: `with SensorSampler(read, 0.1) as sampler: ...`, then `sampler.rows` has (time,
    value) rows.

    Late readings are not repeated. An exception of `read` ends the sampling and is kept in `failure`.
    `due_s`: time (by `time.monotonic`) of the first reading; afterwards, of the next one.
    """

    def __init__(self, read: Callable[[], T], interval_s: float, due_s: float = 0.0) -> None:
        self.rows: list[tuple[float, T]] = []
        self.failure: Exception | None = None
        self.core_s = 0.0
        """Processor seconds of the readings."""
        self.due_s = due_s
        self._read_start_s: float | None = None
        """Start of the reading in progress; None between readings."""
        self._read, self._interval_s = read, interval_s
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ekc-sampler", daemon=True)

    def compute_pending_s(self) -> float:
        """Seconds since the start of the reading in progress; 0 between readings."""
        start_s = self._read_start_s
        return 0.0 if start_s is None else time.monotonic() - start_s

    def __enter__(self) -> SensorSampler[T]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_event.set()
        self._thread.join(max(0.0, EXIT_TIMEOUT_S - self.compute_pending_s()))

    def _run(self) -> None:
        start_core_s = time.thread_time()
        self.due_s = max(self.due_s, time.monotonic())
        try:
            while not self._stop_event.wait(max(0.0, self.due_s - time.monotonic())):
                self._read_start_s = before = time.monotonic()
                value = self._read()
                self._read_start_s = None
                self.rows.append((0.5 * (before + time.monotonic()), value))
                self.core_s = time.thread_time() - start_core_s
                self.due_s = max(self.due_s + self._compute_spacing_s(), time.monotonic())
        except Exception as problem:  # The thread that uses the rows raises it.
            self.failure = problem

    def _compute_spacing_s(self) -> float:
        return max(self._interval_s, self.core_s / len(self.rows) / MAX_CORE_SHARE)


GPM_METRICS = {
    "sm_active": ("NVML_GPM_METRIC_SM_UTIL",),
    "dram": ("NVML_GPM_METRIC_DRAM_BW_UTIL",),
    "tensor": ("NVML_GPM_METRIC_ANY_TENSOR_UTIL",),
    "fma": ("NVML_GPM_METRIC_FP64_UTIL", "NVML_GPM_METRIC_FP32_UTIL", "NVML_GPM_METRIC_FP16_UTIL"),
}
"""Metrics of NVML whose sum is each of `ekc.governor.model_file.COUNTERS`."""


class NvmlProbe:
    """Probe of one GPU, named by UUID, through NVML, while a job runs. Needs no permission.

    `read_step_count` returns the training steps of the job, None where nothing counts them. `on_message`
    gets a line where the energy counter or a power reading is not believed. Failed readings are NaN. Raises
    `ActuatorError` where there is no such GPU, or no power reading: `GpuUnusable` when the GPU is lost,
    `DriverTrouble` when readings fail for a while, or the driver does not answer.
    """

    simulated = False

    def __init__(
        self,
        gpu: str,
        is_running: Callable[[], bool],
        read_step_count: Callable[[], float | None],
        on_message: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._sensors = GpuSensors(gpu)
        self._sensor_s = self._sensors.averaging_s or INSTANT_WINDOW_S
        self._energy = BoardEnergy(
            self._read_counter_j, self._sensors.name, on_message, self._sensors.max_power_w
        )
        self._on_message, self._has_warned = on_message, False
        self.label = f"NVML, {self._sensors.name}"
        self.is_running = is_running
        self.read_step_count = read_step_count
        self.now: Callable[[], float] = time.monotonic
        self._powered_s = self.now()
        """Time of the last power reading that did not fail."""
        self._due_s = 0.0
        """Earliest time of the next reading: expensive readings stay rare in short recordings too."""

    def _read_sensors(self) -> NvmlReading:
        """Read all sensors now."""
        watts, use = self._sensors.power_w(), self._sensors.poll("nvmlDeviceGetUtilizationRates")
        sm, memory = (NOT_MEASURED,) * 2 if use is None else (float(use.gpu), float(use.memory))
        return watts, sm, memory, self._sensors.clock_mhz()

    def _read_counter_j(self) -> float | None:
        """Total-energy counter of the board (Volta and later); None where it has none."""
        counter_mj = self._sensors.counter_mj()
        return None if counter_mj is None else counter_mj / 1000.0

    def read_energy_j(self) -> float:
        """Total-energy counter of the board, or the integral of its power where the counter does not move."""
        return self._energy.compute_joules(self.now())

    def record(self, seconds: float) -> SensorSamples:
        """Wait that long, less where the job ends, and return the samples, which may be empty."""
        spacing = INSTANT_INTERVAL_S if self._sensor_s <= INSTANT_WINDOW_S else AVERAGED_INTERVAL_S
        with SensorSampler(self._read_sensors, spacing, self._due_s) as sampler:
            self._wait(seconds, sampler)
        self._due_s = sampler.due_s
        if sampler.failure is not None:
            raise sampler.failure
        rows = np.array([(at, *reading) for at, reading in list(sampler.rows)]).reshape(-1, 5)
        silent_s = sampler.compute_pending_s()
        if not len(rows) and silent_s >= SILENCE_TIMEOUT_S and self.is_running():
            raise DriverTrouble(f"{self.label}: the driver has not answered for {silent_s:.0f} s")
        time_s, power_w, sm_util, memory_util, clock_mhz = rows.T
        self._check_power(time_s, power_w)
        self._energy.add_readings(time_s, power_w)
        cap_w = self._sensors.power_cap_w()
        limit_w = NOT_MEASURED if cap_w is None else cap_w
        return SensorSamples(time_s, power_w, sm_util, memory_util, clock_mhz, limit_w, self._sensor_s)

    def read_counters(self, seconds: float) -> dict[str, float]:
        """Mean counters of the next seconds by GPM, which Hopper and later cards have. Raises
        `CountersMissing` with the reason elsewhere, and where it is not permitted."""
        sensors, library = self._sensors, self._sensors.library
        support = sensors.query("nvmlGpmQueryDeviceSupport")
        if support is None or not support.isSupportedDevice:
            self._refuse_counters("this card has none that the driver reads (Hopper and later have)")
        pair: list[Any] = []
        try:
            for wait_s in (seconds, 0.0):
                pair.append(retry_nvml(library.nvmlGpmSampleAlloc))
                if sensors.query("nvmlGpmSampleGet", pair[-1]) is None:
                    self._refuse_counters(sensors.last_problem)
                self.record(wait_s)
            return self._compute_counters(*pair)
        except library.NVMLError as problem:
            self._refuse_counters(str(problem))
        finally:
            for sample in pair:
                with suppress(library.NVMLError):
                    retry_nvml(library.nvmlGpmSampleFree, sample)

    def _compute_counters(self, first: Any, second: Any) -> dict[str, float]:
        """The mean counters between two samples of GPM."""
        library = self._sensors.library
        names = [name for parts in GPM_METRICS.values() for name in parts]
        request = library.c_nvmlGpmMetricsGet_t()
        request.version = library.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics, request.sample1, request.sample2 = len(names), first, second
        for slot, name in enumerate(names):
            request.metrics[slot].metricId = getattr(library, name)
        answer = retry_nvml(library.nvmlGpmMetricsGet, request)
        slots = {name: answer.metrics[slot] for slot, name in enumerate(names)}
        if missing := [name for name, slot in slots.items() if slot.nvmlReturn != library.NVML_SUCCESS]:
            self._refuse_counters(f"the driver gives no {missing[0]}")
        return {key: min(100.0, sum(slots[p].value for p in parts)) for key, parts in GPM_METRICS.items()}

    def _refuse_counters(self, reason: str) -> NoReturn:
        raise CountersMissing(f"{self.label}: counters cannot be read: {reason}")

    def _check_power(self, time_s: Values, power_w: Values) -> None:
        """Say once that a power reading was not believed. Raises `ActuatorError` where the card has none, and
        `DriverTrouble` where all readings have failed for `POWER_TIMEOUT_S`."""
        if self._sensors.power_problem and not self._has_warned:
            self._has_warned = True
            self._on_message(f"{self._sensors.name}: {self._sensors.power_problem}; that is left out")
        is_valid = np.isfinite(power_w)
        if is_valid.any():
            self._powered_s = float(time_s[is_valid][-1])
        elif len(time_s):
            line = f"{self.label} gives no power reading: {self._sensors.last_problem}"
            if not self._sensors.has_power:
                raise ActuatorError(line)
            if time_s[-1] - self._powered_s >= POWER_TIMEOUT_S:
                raise DriverTrouble(line)

    def _wait(self, seconds: float, sampler: SensorSampler[NvmlReading]) -> None:
        end_s = self.now() + seconds
        while (left_s := end_s - self.now()) > 0 and self.is_running() and sampler.failure is None:
            time.sleep(min(POLL_S, left_s))


JobProbeFactory = Callable[[str, Callable[[], bool]], Probe]
"""Makes the probe of a GPU, named by UUID, that measures while a function returns True."""
