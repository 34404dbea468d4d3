"""Complete devices for tests: scripted drivers in forked workers, scripted NVML, a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ekc.devices.cuda.device import CudaDevice, open_cuda
from ekc.devices.cuda.gpu import NvmlBoard
from ekc.devices.metering.meter import CompletedCalls
from ekc.devices.nvml.sensors import GpuSensors
from tests.scripted.cuda.driver import ScriptedDriver
from tests.scripted.cuda.forked_worker import Forked
from tests.scripted.nvml.card import Card, Clock, ScriptedGpu
from tests.scripted.nvml.library import ScriptedNvml

Hire = Callable[[int], Forked]


def forked(**script: Any) -> Hire:
    """Workers on a scripted driver."""
    return partial(Forked, partial(ScriptedDriver, **script))


class Both:
    """A kernel runner that keeps the kernel of the worker running, and the scripted card busy."""

    def __init__(self, worker: Any, gpu: ScriptedGpu) -> None:
        self._worker, self._gpu = worker, gpu

    def start(self, kernel: Any) -> None:
        self._worker.start(kernel)
        self._gpu.start(kernel)

    def stop(self) -> CompletedCalls:
        # The card goes idle even if the worker is dead.
        calls = self._gpu.stop() if self._gpu.running else None
        assert self._worker.stop().count >= 1
        assert calls is not None
        return calls


class ScriptedNode:
    """Scripted GPUs, their sensors, and how to open them."""

    def __init__(self, gpus: int = 1, card: Card | None = None) -> None:
        one, random, clock = card or Card(name="Scripted A100"), np.random.default_rng(0), Clock()
        self.cards = tuple(ScriptedGpu(one, random, clock) for _ in range(gpus))
        self.library = ScriptedNvml(*self.cards)

    def sensors(self, uuid: str) -> GpuSensors:
        """Sensors by the UUID of the scripted driver, whose end is the index."""
        return GpuSensors(str(int(uuid[-12:])), self.library)

    def open(self, text: str = "cuda:0", hire: Hire | None = None, **script: Any) -> CudaDevice:
        """The device of a target."""
        opened = open_cuda(text, hire or forked(gpus=len(self.cards), **script), self.sensors)
        return CudaDevice([replace(g, make_board=self.board) for g in opened._gpus], opened._rules)

    def board(self, sensors: GpuSensors, caller: Any) -> NvmlBoard:
        """The board of a GPU on the cards' virtual clock."""
        card = self.cards[sensors.handle]
        return NvmlBoard(sensors, Both(caller, card), card.clock.now, card.clock.sleep)
