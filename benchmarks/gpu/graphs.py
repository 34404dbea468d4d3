"""A library's call, captured as a graph of many: timed and metered as ekc's own kernels are.

By the same rules (`ekc/devices/cuda/timing.py`): as long a warm-up, samples as long, as many of them. Who is
busy for longer may meet the power cap, and be timed at a lower clock. The GPU never waits for the host
between the events: a graph is queued before each and one after. The L2 is warm, as calls follow each other.
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from benchmarks.gpu.items import Item
from ekc.codegen import nvrtc
from ekc.devices import meter
from ekc.devices.base import Conditions, Device, Metering, Timing
from ekc.devices.cuda.median import interval, median
from ekc.devices.cuda.messages import Rules
from ekc.devices.cuda.timing import SAMPLE_S, WARM_UP_S, enough
from ekc.devices.meter import Calls
from ekc.devices.nvml.board import NvmlBoard
from ekc.devices.nvml.sensors import Sensors
from ekc.errors import DeviceError
from ekc.ir.dtypes import FLOAT32
from ekc.ir.expected import Expected
from ekc.ir.operator import Operator
from ekc.version import __version__

MOST_CALLS = 1000
"""A graph is a sample (`SAMPLE_S`), and never holds more calls."""
AHEAD = 5
"""Graphs between two events while a call is metered: 10 ms, in which the host is not asked."""
SEEN = ("clock_mhz", "temperature_c", "throttle", "power_cap_w")
"""What the meter tells of its window: a library is throttled as ours is."""


class Machine(Protocol):
    """A captured graph on one GPU, and events about it."""

    calls: int
    """Of the library, in one graph."""
    uuid: str
    """NVML's name of the GPU."""

    def use(self) -> None:
        """Make the GPU current in this thread."""

    def replay(self) -> None:
        """Queue the graph."""

    def event(self) -> Any:
        """A new event."""

    def record(self, event: Any) -> None:
        """Queue it."""

    def wait(self, event: Any) -> None:
        """Until it has happened."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two that have happened, by the GPU's clock."""


class GraphContender:
    """See `contenders.Contender`."""

    def __init__(self, name: str, device: Device, machine: Machine) -> None:
        self.name = name
        self._device, self._machine = device, machine

    def time(self, turn: int) -> Timing:
        """Median of the graphs; every measurement is fresh, whatever its turn."""
        began = time.monotonic()
        (look,) = self._samples(1)
        for _ in range(round(WARM_UP_S / (look * self._machine.calls))):
            self._machine.replay()
        samples = enough(self._samples, Rules(), lambda: time.monotonic() - began)
        method = f"graph replay, {self._machine.calls} calls a sample"
        span, count = interval(samples), len(samples)
        return Timing(median(samples), span, count, self._conditions(), method, tuple(samples))

    def _samples(self, count: int) -> list[float]:
        """Seconds of a call, of graphs queued together."""
        machine = self._machine
        events = [machine.event() for _ in range(count + 1)]
        for event in events:
            machine.record(event)
            machine.replay()
        machine.wait(events[-1])
        return [machine.seconds(a, b) / machine.calls for a, b in itertools.pairwise(events)]

    def meter(self, turn: int, seconds: float) -> Metering:
        """Over a window of about so many seconds. Raises `DeviceError` where the board cannot be metered."""
        call_s = self.time(turn).latency_s
        board = NvmlBoard(Sensors(self._machine.uuid), self)
        # What runs is told to `start` by this object, not by a kernel.
        window = meter.meter(board, None, call_s, seconds)  # type: ignore[arg-type]
        seen = {name: getattr(window, name) for name in SEEN}
        return window.metering(replace(self._conditions(), **seen))

    def start(self, kernel: object) -> None:
        """Keep graphs queued until `stop`."""
        self._told, self._done = threading.Event(), Calls(0, 0.0)
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def stop(self) -> Calls:
        """How many calls there were, and the GPU's seconds."""
        self._told.set()
        self._thread.join()
        return self._done

    def _keep(self) -> None:
        machine = self._machine
        machine.use()
        begin, before, after = (machine.event() for _ in range(3))
        machine.record(begin)
        self._ahead()
        machine.record(before)
        graphs = AHEAD
        while not self._told.is_set():
            self._ahead()
            machine.record(after)
            machine.wait(before)
            graphs += AHEAD
            before, after = after, before
        machine.wait(before)
        self._done = Calls(graphs * machine.calls, machine.seconds(begin, before))

    def _ahead(self) -> None:
        for _ in range(AHEAD):
            self._machine.replay()

    def _conditions(self) -> Conditions:
        device = self._device
        return Conditions(
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


def calls_for(one_s: float) -> int:
    """Calls in a graph, when one takes so long."""
    return min(max(round(SAMPLE_S / one_s), 1), MOST_CALLS)


def check(name: str, got: Any, item: Item, expected: Expected) -> None:
    """A rival must be right too: its result is held against the same reference, at some places. Raises
    `DeviceError`."""
    compute = item.op.computes[-1]
    drawn = np.random.default_rng(0).integers(0, 2**31, (len(compute.spatial), 64))
    places = {a.name: np.unique(r % a.extent)[:8] for a, r in zip(compute.spatial, drawn, strict=True)}
    right = expected.at(compute, places)
    error = float(np.max(np.abs(got[np.ix_(*places.values())].astype(np.float64) - right.value)))
    allowed = _allowance(item.op, right.slack)
    if not error <= allowed:
        raise DeviceError(f"{name} is off by {error:.3g}, where rounding explains {allowed:.3g}")


def _allowance(op: Operator, slack: float) -> float:
    """What a rival may be off: ten times as much as ours, for sums in another order; and as libraries may cut
    off what ours rounds, four times the last bit of the inputs, as it adds up in a sum of random terms. In
    float32 twice ours, which holds any order: who took narrower factors on the way (TF32, by a switch of its
    own) is off by more."""
    read, terms = op.inputs[0].dtype, op.flops / 2 / op.outputs[0].elements
    return (2 if read is FLOAT32 else 10) * slack + 4 * read.epsilon * terms**0.5
