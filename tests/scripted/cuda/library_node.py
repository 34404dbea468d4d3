"""A scripted GPU with cuBLASLt and cuDNN: real ctypes and real calls into libraries of C without a GPU."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ekc.devices.cuda.gpu import NvmlBoard
from ekc.devices.cuda.library_kernel import LibraryKernel
from ekc.devices.metering.meter import CompletedCalls
from ekc.devices.nvml.sensors import GpuSensors
from tests.scripted.cuda.driver import Memory, ScriptedDriver
from tests.scripted.cuda.forked_worker import Forked
from tests.scripted.cuda.node import Both, ScriptedNode
from tests.scripted.nvml.card import Card

SOURCE = Path(__file__).with_name("libraries.c")
ALIGNMENT = 256
VERSIONS = {"cublasLt": ("13", 130102), "cudnn": ("9", 91900)}
"""Major version in the file name, and the version that the library says."""


def build_libraries(folder: Path, compiler: str, **versions: int) -> tuple[Path, ...]:
    """Compile both libraries; `versions` replaces what one of them says."""
    made = []
    for name, (major, version) in VERSIONS.items():
        file = folder / f"lib{name}.so.{major}"
        flags = [
            "-shared",
            "-fPIC",
            "-O1",
            f"-Wl,-soname,{file.name}",
            f"-DVERSION={versions.get(name, version)}",
        ]
        flags += [f"-D{name.upper()}"] if name == "cublasLt" else []
        subprocess.run([compiler, *flags, "-o", str(file), str(SOURCE)], check=True)
        made.append(file)
    return tuple(made)


@dataclass
class LibraryDriver(ScriptedDriver):
    """The scripted driver with its memory at real addresses, and the time of the libraries on its clock."""

    libraries: tuple[Path, ...] = ()
    settings: Mapping[str, float] = field(default_factory=dict)
    """Values of `scripted_...` in the libraries: call_s in seconds, others as bits or counts."""

    def __post_init__(self) -> None:
        # A library that is loaded under its name is found in any folder.
        self._loaded = [ctypes.CDLL(str(file)) for file in self.libraries]
        self._kept: list[Any] = []
        for library in self._loaded:
            for name, value in self.settings.items():
                kind = ctypes.c_double if name == "call_s" else ctypes.c_int
                kind.in_dll(library, f"scripted_{name}").value = value  # type: ignore[attr-defined]

    def allocate(self, size: int) -> int:
        """No address is used twice: what was freed is kept."""
        assert self.opened
        room = np.empty(size + ALIGNMENT, np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        data = room[start : start + size]
        self._kept.append(room)
        self.memory[int(data.ctypes.data)] = Memory(data)
        return int(data.ctypes.data)

    def record_event(self, event: int, stream: int) -> None:
        self.now_s += self._take_seconds()
        super().record_event(event, stream)

    def begin_capture(self, stream: int) -> None:
        self.now_s += self._take_seconds()
        super().begin_capture(stream)

    def end_capture(self, stream: int) -> int:
        """Calls of a library computed while they were captured; a replay takes their time."""
        seconds = self._take_seconds()
        if seconds:
            self._queue(partial(self._pass_time, seconds))
        return super().end_capture(stream)

    def _pass_time(self, seconds: float) -> None:
        self.now_s += seconds * (1.0 + 0.003 * float(self.noise.standard_normal()))

    def _take_seconds(self) -> float:
        """Seconds of calls since the last time."""
        counts = [ctypes.c_double.in_dll(library, "scripted_seconds") for library in self._loaded]
        seconds = sum(count.value for count in counts)
        for count in counts:
            count.value = 0.0
        return seconds


class PacedRunner(Both):
    """The card's calls take the time that the driver counted, and a library's its own power."""

    def __init__(self, worker: Any, gpu: Any, library_w: float) -> None:
        super().__init__(worker, gpu)
        self._library_w, self._own = library_w, gpu.card

    def start(self, kernel: Any) -> None:
        watts = self._library_w if isinstance(kernel, LibraryKernel) else self._own.busy_w
        self._gpu.card = replace(self._own, busy_w=watts)
        super().start(kernel)

    def stop(self) -> CompletedCalls:
        done = self._worker.stop()
        self._gpu.card = replace(self._gpu.card, call_s=done.seconds / done.count)
        calls = self._gpu.stop()
        self._gpu.card = self._own
        return calls


class LibraryNode(ScriptedNode):
    """One scripted GPU on which a library's kernels draw `library_w`."""

    def __init__(self, library_w: float = 250.0, card: Card | None = None) -> None:
        super().__init__(1, card)
        self._library_w = library_w

    def board(self, sensors: GpuSensors, caller: Any) -> NvmlBoard:
        card = self.cards[sensors.handle]
        runner = PacedRunner(caller, card, self._library_w)
        return NvmlBoard(sensors, runner, card.clock.now, card.clock.sleep)


def hire_with_libraries(
    libraries: tuple[Path, ...], script: Mapping[str, Any], **settings: float
) -> Callable[[int], Forked]:
    """Workers on a scripted driver with these libraries."""
    return partial(Forked, partial(LibraryDriver, libraries=libraries, settings=settings, **script))
