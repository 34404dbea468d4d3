"""A stub of PyTorch by NumPy on a virtual clock: calls, graphs, events, one GPU."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

CALL_S = 25e-6
NAME, UUID = "Scripted GPU", "11111111-2222-3333-4444-555555555555"


class Tensor:
    """An array that may be on the GPU."""

    def __init__(self, array: Any, on_gpu: bool = False) -> None:
        self.array, self.on_gpu = array, on_gpu

    def cuda(self) -> Tensor:
        return Tensor(self.array, True)

    def cpu(self) -> Tensor:
        return Tensor(self.array)

    def float(self) -> Tensor:
        return Tensor(self.array.astype(np.float32), self.on_gpu)

    def view(self, dtype: Any) -> Tensor:
        return Tensor(self.array.view(dtype), self.on_gpu)

    def numpy(self) -> Any:
        assert not self.on_gpu, "the real one refuses to look into a GPU"
        return self.array


class Scripted:
    """The machine behind the module."""

    def __init__(self, off: float = 0.0) -> None:
        self.now_s = 0.0
        self.off = off
        self.graph: Graph | None = None
        self.tf32: Callable[[], bool] = lambda: False

    def run(self, calls: int) -> None:
        self.now_s += calls * CALL_S
        time.sleep(0)  # Lets a thread that watches have its turn.

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        assert a.on_gpu
        assert b.on_gpu
        if self.graph is not None:
            self.graph.calls += 1
        else:
            self.run(1)
        read = _cut if self.tf32() else (lambda array: array)
        wide = (read(x.array).astype(np.float64) for x in (a, b))
        product = np.matmul(*wide) + self.off
        return Tensor(product.astype(a.array.dtype), True)


class Graph:
    """A captured graph: the number of calls."""

    def __init__(self, machine: Scripted) -> None:
        self.calls, self._machine = 0, machine

    def replay(self) -> None:
        assert self.calls
        self._machine.run(self.calls)


class Event:
    """A moment on the virtual clock."""

    def __init__(self, machine: Scripted, enable_timing: bool) -> None:
        assert enable_timing
        self._machine, self.at_s = machine, float("nan")

    def record(self) -> None:
        self.at_s = self._machine.now_s

    def synchronize(self) -> None:
        assert self.at_s == self.at_s, "waited for before it was recorded"

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at_s - self.at_s)


def module(off: float = 0.0) -> ModuleType:
    """A `torch`; its products are wrong by `off`."""
    machine = Scripted(off)
    torch: Any = ModuleType("torch")
    torch.__spec__ = ModuleSpec("torch", None)
    torch.__version__ = "0.scripted"
    torch.version = SimpleNamespace(cuda="0.0")
    torch.bfloat16 = ml_dtypes.bfloat16
    torch.from_numpy = _from_numpy
    torch.matmul = machine.matmul
    matmul = SimpleNamespace(fp32_precision="none")
    cudnn = SimpleNamespace(conv=SimpleNamespace(fp32_precision="none"), benchmark=False, version=lambda: 1)
    machine.tf32 = lambda: matmul.fp32_precision == "tf32"
    torch.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=matmul), cudnn=cudnn)
    torch.cuda = SimpleNamespace(
        is_available=lambda: True,
        get_device_name=lambda index: NAME,
        get_device_properties=lambda index: SimpleNamespace(uuid=UUID),
        current_device=lambda: 0,
        set_device=lambda index: None,
        synchronize=lambda: None,
        Stream=_Stream,
        current_stream=_Stream,
        stream=contextlib.nullcontext,
        CUDAGraph=lambda: Graph(machine),
        Event=lambda enable_timing=False: Event(machine, enable_timing),
        graph=_capturing(machine),
    )
    return torch  # type: ignore[no-any-return]


def _cut(array: Any) -> Any:
    """TF32 by cutting off, which is the worst that a library may do."""
    return (array.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


class _Stream:
    def wait_stream(self, other: object) -> None:
        assert isinstance(other, _Stream)


def _from_numpy(array: Any) -> Tensor:
    assert array.dtype.name != "bfloat16", "the real one does not know the type"
    return Tensor(array)


def _capturing(machine: Scripted) -> Callable[[Graph], Any]:
    @contextlib.contextmanager
    def capture(graph: Graph) -> Iterator[None]:
        machine.graph = graph
        yield
        machine.graph = None

    return capture
