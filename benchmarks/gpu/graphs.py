"""A library's call, captured as a graph of many: timed and metered as ekc's own kernels are.

By the same rules (`ekc/devices/cuda/timing.py`): graphs as long, replayed as often in a sample, as long a
warm-up, as many samples. Between two graphs the GPU may pause: who has fewer of them would look faster. Who
is busy for longer may meet the power cap, and be timed at a lower clock. The GPU never waits for the host
between the events: samples are queued together. The L2 is warm, as calls follow each other.
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from benchmarks.gpu.items import Item
from benchmarks.gpu.rotation import Slice
from ekc.codegen import nvrtc
from ekc.devices.cuda.gpu import NvmlBoard
from ekc.devices.cuda.messages import TimingRules
from ekc.devices.cuda.timing import SAMPLE_DURATION_S, WARM_UP_DURATION_S, QueueUnit, sample_until_narrow
from ekc.devices.cuda.worker import BATCH_DURATION_S
from ekc.devices.device import Device, MeasurementConditions, Metering, Timing
from ekc.devices.metering import meter
from ekc.devices.metering.meter import CompletedCalls
from ekc.devices.nvml.sensors import GpuSensors
from ekc.devices.statistics import compute_median, compute_median_interval
from ekc.errors import DeviceError
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.runtime.verify import compute_library_tolerance, draw_compared_indices
from ekc.version import __version__

SEEN = ("clock_mhz", "temperature_c", "throttle", "power_cap_w")
"""Fields of a metering window that are kept: a library is throttled as our kernels are."""


class Machine(Protocol):
    """A captured graph on one GPU, and events about it."""

    calls: int
    """Calls of the library in one graph."""
    uuid: str
    """NVML's name of the GPU."""

    def make_current(self) -> None:
        """Make the GPU current in this thread."""

    def replay(self) -> None:
        """Queue the graph."""

    def create_event(self) -> Any:
        """Create an event."""

    def record_event(self, event: Any) -> None:
        """Queue an event."""

    def wait_for_event(self, event: Any) -> None:
        """Wait until the event has happened."""

    def compute_seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two events that have happened, by the GPU's clock."""


class GraphContender:
    """See `contenders.Contender`."""

    def __init__(self, name: str, device: Device, machine: Machine) -> None:
        self.name = name
        self._device, self._machine = device, machine

    def time(self, turn: int) -> Timing:
        """Median of the graphs; every measurement is fresh, whatever its turn."""
        began, unit = time.monotonic(), self._measure_unit()
        repeats = unit.count_repeats(SAMPLE_DURATION_S)
        for _ in range(unit.count_repeats(WARM_UP_DURATION_S)):
            unit.queue()

        def take(most: int) -> list[float]:
            return self._take_samples(repeats, most)

        samples = sample_until_narrow(take, TimingRules(), lambda: time.monotonic() - began)
        method = f"{unit.method}, {repeats * unit.calls} calls a sample"
        span, count = compute_median_interval(samples), len(samples)
        return Timing(
            compute_median(samples), span, count, self._describe_conditions(), method, tuple(samples)
        )

    def _measure_unit(self) -> QueueUnit:
        """The graph, with the rough time of a call in it."""
        (call_s,) = self._take_samples(1, 1)
        return QueueUnit(self._machine.replay, self._machine.calls, call_s, "graph replay")

    def _take_samples(self, repeats: int, count: int) -> list[float]:
        """Seconds of a call, by sample; a sample is `repeats` graphs queued together."""
        machine = self._machine
        events = [machine.create_event() for _ in range(count + 1)]
        machine.record_event(events[0])
        for event in events[1:]:
            self._queue_graphs(repeats)
            machine.record_event(event)
        machine.wait_for_event(events[-1])
        calls = repeats * machine.calls
        return [machine.compute_seconds(a, b) / calls for a, b in itertools.pairwise(events)]

    def meter(self, turn: int, seconds: float) -> Metering:
        """Meter for about `seconds`. Raises `DeviceError` where the board cannot be metered."""
        call_s = self.time(turn).latency_s
        board = NvmlBoard(GpuSensors(self._machine.uuid), self)
        # This object, not a kernel, gives `start` the work.
        window = meter.meter_kernel(board, None, call_s, seconds)  # type: ignore[arg-type]
        seen = {name: getattr(window, name) for name in SEEN}
        return window.to_metering(replace(self._describe_conditions(), **seen))

    def run(self, turn: int, seconds: float) -> Slice:
        """See `contenders.Contender`."""
        (call_s,) = self._take_samples(1, 1)
        board = NvmlBoard(GpuSensors(self._machine.uuid), self)
        return Slice.from_window(meter.run_hot(board, None, call_s, seconds))  # type: ignore[arg-type]

    def start(self, kernel: object) -> None:
        """Keep graphs queued until `stop`."""
        self._started, self._done = threading.Event(), CompletedCalls(0, 0.0)
        self._thread = threading.Thread(target=self._keep_busy, daemon=True)
        self._thread.start()

    def stop(self) -> CompletedCalls:
        """Stop; number of calls, and the GPU's seconds."""
        self._started.set()
        self._thread.join()
        return self._done

    def _keep_busy(self) -> None:
        machine = self._machine
        machine.make_current()
        # As long as the batches of ours, in which the host is not asked.
        batch = self._measure_unit().count_repeats(BATCH_DURATION_S)
        begin, before, after = (machine.create_event() for _ in range(3))
        machine.record_event(begin)
        self._queue_graphs(batch)
        machine.record_event(before)
        graphs, is_leading = batch, True
        while not self._started.is_set():
            self._queue_graphs(batch)
            machine.record_event(after)
            machine.wait_for_event(before)
            graphs += batch
            if is_leading and machine.compute_seconds(begin, before) >= meter.LEAD_IN_S:
                # Not counted, as the worker does not count it for ours: the clock still changes.
                graphs, is_leading, begin, before = batch, False, before, begin
            before, after = after, before
        machine.wait_for_event(before)
        self._done = CompletedCalls(graphs * machine.calls, machine.compute_seconds(begin, before))

    def _queue_graphs(self, graphs: int) -> None:
        for _ in range(graphs):
            self._machine.replay()

    def _describe_conditions(self) -> MeasurementConditions:
        device = self._device
        return MeasurementConditions(
            device=device.name,
            simulated=False,
            driver=device.driver,
            nvrtc=nvrtc.version(),
            clock_regime=device.clock_regime,
            clock_mhz=float("nan"),
            temperature_c=float("nan"),
            throttle=(),
            data_policy=device.data_policy,
            ekc_version=__version__,
            l2="warm",
        )


def check_result(name: str, got: Any, item: Item, expected: ReferenceEvaluator) -> None:
    """A rival must be right too: its result is compared with the same reference, at some places. Raises
    `DeviceError`."""
    places = draw_compared_indices(item.op)
    right = expected.evaluate_at(item.op.computes[-1], places)
    error = float(np.max(np.abs(got[np.ix_(*places.values())].astype(np.float64) - right.values)))
    allowed = compute_library_tolerance(item.op, right.tolerance)
    if not error <= allowed:
        raise DeviceError(f"{name} is off by {error:.3g}, where rounding explains {allowed:.3g}")
