"""Measure the energy of any Python callable with ekc's meter.

Run:     python meter_script.py [cuda | simulated]
Prints:  time, power and joules of one call of two callables, with the 95 % interval of the joules and the
         notes of the meter.

The meter runs a callable back to back while it reads the energy counter of the board through NVML. A
callable must return only when its work on the GPU is done, e.g. `lambda: (layer(x),
torch.cuda.synchronize())`. Joules are those of the whole board, idle power included.

Without a GPU the board is simulated: `SimulatedNvml` stands for NVIDIA's library, and its power is made up.
Time is real in both cases, 2 to 7 s for each callable. With `cuda`, put your own callables into
`CALLABLES`.
"""

import ctypes
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pynvml

from ekc.devices.cuda.gpu import NvmlBoard
from ekc.devices.metering.meter import CompletedCalls, MeteringWindow, meter_kernel
from ekc.devices.nvml.library import list_uuids
from ekc.devices.nvml.sensors import GpuSensors

small, large = np.ones((64, 64), np.float32), np.ones((128, 128), np.float32)
CALLABLES: dict[str, Callable[[], object]] = {
    "64 x 64 product": lambda: small @ small,
    "128 x 128 product": lambda: large @ large,
}


class CallableRunner:
    """Calls a function back to back in a thread, from `start` to `stop`: the runner that the meter needs."""

    def __init__(self) -> None:
        self.is_running = False
        self._count = 0
        self._thread = threading.Thread()
        self._start_s = 0.0

    def start(self, function: Callable[[], object]) -> None:
        self.is_running, self._count, self._start_s = True, 0, time.monotonic()
        self._thread = threading.Thread(target=self._loop, args=(function,), daemon=True)
        self._thread.start()

    def _loop(self, function: Callable[[], object]) -> None:
        while self.is_running or not self._count:
            function()
            self._count += 1

    def stop(self) -> CompletedCalls:
        self.is_running = False
        self._thread.join()
        return CompletedCalls(self._count, time.monotonic() - self._start_s)


class SimulatedNvml:
    """The functions of NVML that the meter reads, for one made-up board: 60 W idle, 180 W busy. The counter
    ticks every 20 ms."""

    def __init__(self, runner: CallableRunner) -> None:
        self._runner, self._random = runner, np.random.default_rng(0)
        self._tick_s, self._watts, self._millijoules = time.monotonic(), 60.0, 0.0

    def __getattr__(self, name: str) -> object:
        """Constants and error classes are those of the real library; what it lacks counts as unsupported."""
        return getattr(pynvml, name) if name.startswith("NVML") else self._refuse

    def _refuse(self, *_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _advance(self) -> None:
        while time.monotonic() - self._tick_s > 0.02:
            self._tick_s += 0.02
            self._watts = (180.0 if self._runner.is_running else 60.0) + float(self._random.normal(0, 1))
            self._millijoules += 1000.0 * self._watts * 0.02

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return 0

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return "GPU-simulated"

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return 0

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "simulated board"

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return 1410

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return 0  # Nothing throttles the clock.

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        self._advance()
        return int(self._millijoules)

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> ctypes.Array:
        self._advance()
        values = (pynvml.c_nvmlFieldValue_t * len(fields))()
        values[0].value.uiVal = round(1000 * self._watts)
        return values


def open_board(kind: str) -> NvmlBoard:
    """The first GPU, or the simulated board."""
    runner = CallableRunner()
    if kind == "cuda":
        return NvmlBoard(GpuSensors(next(iter(list_uuids().values()))), runner)
    return NvmlBoard(GpuSensors("GPU-simulated", SimulatedNvml(runner)), runner)


def meter(board: NvmlBoard, function: Callable[[], object], seconds: float = 0.5) -> MeteringWindow:
    """Meter calls of a function over a window of about `seconds`; use 5 s for a figure that is published."""
    start = time.monotonic()
    function()
    return meter_kernel(board, function, time.monotonic() - start, seconds)


def main(kind: str) -> None:
    board = open_board(kind)
    print(f"board: {'a GPU' if kind == 'cuda' else 'simulated, its power is made up'}\n")
    for name, function in CALLABLES.items():
        window = meter(board, function)
        interval = window.power_interval_w
        joules, low, high = (watts * window.call_s for watts in (window.power_w, interval.low, interval.high))
        print(
            f"{name:18}{1e6 * window.call_s:8.1f} us{window.power_w:8.1f} W{1e3 * joules:9.3f} mJ a call "
            f"({1e3 * low:.3f} to {1e3 * high:.3f}), by the {window.estimator}"
        )
        for note in window.notes:
            print(f"  note: {note}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "simulated")
