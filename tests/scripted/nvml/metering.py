"""Metering a scripted GPU through the sensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ekc.devices.cuda.gpu import NvmlBoard
from ekc.devices.metering.meter import MeteringWindow, meter_kernel
from ekc.devices.nvml.sensors import GpuSensors
from tests.devices import samples
from tests.scripted.nvml.card import Card, ScriptedGpu
from tests.scripted.nvml.library import ScriptedNvml

NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Metered:
    """Result of the meter, and the true mean power."""

    window: MeteringWindow
    true_w: float

    @property
    def error(self) -> float:
        return self.window.power_w / self.true_w - 1

    @property
    def held(self) -> bool:
        interval = self.window.power_interval_w
        return interval.low <= self.true_w <= interval.high


def scripted(card: Card, seed: int = 0) -> tuple[ScriptedGpu, ScriptedNvml]:
    gpu = ScriptedGpu(card, np.random.default_rng(seed))
    return gpu, ScriptedNvml(gpu)


def board_of(gpu: ScriptedGpu, library: ScriptedNvml) -> NvmlBoard:
    return NvmlBoard(GpuSensors("0", library), gpu, gpu.clock.now, gpu.clock.sleep)


def metered(card: Card, seconds: float = 3.0, seed: int = 0, fails: Mapping[str, int] = NOTHING) -> Metered:
    """Meter a scripted GPU; `fails`: NVML error codes by function."""
    gpu, library = scripted(card, seed)
    library.fails.update(fails)
    window = meter_kernel(board_of(gpu, library), samples.copy(1024), card.call_s, seconds)
    ends = window.start_s, window.start_s + window.seconds
    assert not gpu.running
    return Metered(window, (gpu.joules(ends[1]) - gpu.joules(ends[0])) / window.seconds)
