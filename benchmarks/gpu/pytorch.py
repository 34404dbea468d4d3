"""cuBLAS and cuDNN, and Triton where PyTorch has it, called through PyTorch and timed as ekc times itself.

Batches of calls between two events, replayed as one graph, so that no host time is in them; the L2 is warm,
as calls follow each other; the inputs hold the same numbers as those of ekc's kernel.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu.contenders import Contender
from benchmarks.gpu.items import Item
from benchmarks.gpu.kit import Kit
from ekc.codegen import nvrtc
from ekc.devices import meter
from ekc.devices.base import Conditions, Device, Metering, Timing
from ekc.devices.cuda.median import interval, median
from ekc.devices.meter import Calls
from ekc.errors import DeviceError
from ekc.ir.expected import Expected
from ekc.ir.operator import Operator
from ekc.version import __version__

LIBRARIES = ("cuBLAS", "cuDNN", "Triton")
BATCH_S, SAMPLES, WARM_UP_CALLS = 0.01, 20, 3
MOST_CALLS = 1000
COMPILED = frozenset({"float16", "bfloat16", "tf32", "float32"})
Call = Callable[[], object]


def rivals(kit: Kit, item: Item, expected: Expected) -> tuple[list[Contender], dict[str, str]]:
    """What PyTorch can hold against an item here, and why the rest cannot be had."""
    device = kit.device
    library = "cuDNN" if item.kind == "conv2d" else "cuBLAS"
    if importlib.util.find_spec("torch") is None:
        return [], dict.fromkeys((library, "Triton"), "PyTorch is not installed")
    import torch

    if not torch.cuda.is_available():
        return [], dict.fromkeys((library, "Triton"), f"PyTorch {torch.__version__} sees no GPU")
    index = kit.gpu
    if torch.cuda.get_device_name(index) != device.name:
        why = f"PyTorch's GPU {index} is a {torch.cuda.get_device_name(index)}, not a {device.name}"
        return [], dict.fromkeys((library, "Triton"), why)
    torch.cuda.set_device(index)
    if item.op.inputs[0].dtype.name not in COMPILED:
        return [], {library: f"PyTorch has no {item.kind} of {item.op.inputs[0].dtype} on a GPU"}
    lab = Lab(torch, device, item, expected)
    found, absent = _made([(library, lab.library), ("Triton", lab.triton)])
    return found, absent


def _made(makers: list[tuple[str, Callable[[], Contender]]]) -> tuple[list[Contender], dict[str, str]]:
    found, absent = [], {}
    for name, make in makers:
        try:
            found.append(make())
        except Exception as problem:
            # Whatever a library raises, the others are compared all the same.
            absent[name] = f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
    return found, absent


class Lab:
    """The tensors of one item, and calls on them."""

    def __init__(self, torch: Any, device: Device, item: Item, expected: Expected) -> None:
        self._torch, self._device, self._item, self._expected = torch, device, item, expected
        dtype = item.op.inputs[0].dtype.name
        _allow_tf32(torch.backends, dtype == "tf32")
        torch.backends.cudnn.benchmark = True
        self._inputs = [self._tensor(array) for array in expected.arrays]

    def library(self) -> Contender:
        """cuBLAS or cuDNN."""
        function = self._function()
        inputs = self._inputs
        version = (
            self._torch.backends.cudnn.version() if self._item.kind == "conv2d" else self._torch.version.cuda
        )
        name = f"{'cuDNN' if self._item.kind == 'conv2d' else 'cuBLAS'} {version}"
        return self._contender(name, lambda: function(*inputs))

    def triton(self) -> Contender:
        """A kernel that PyTorch writes in Triton and tunes."""
        if self._item.kind != "matmul":
            raise DeviceError("PyTorch writes matrix products only")
        if importlib.util.find_spec("triton") is None:
            raise DeviceError("Triton is not installed")
        import triton

        options = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}
        function = self._torch.compile(self._function(), options=options)
        inputs = self._inputs
        return self._contender(f"Triton {triton.__version__}", lambda: function(*inputs))

    def _contender(self, name: str, call: Call) -> Contender:
        made = TorchContender(f"{name}, PyTorch {self._torch.__version__}", self._torch, self._device, call)
        made.check(self._item, self._expected)
        return made

    def _function(self) -> Callable[..., Any]:
        torch, item = self._torch, self._item
        if item.kind != "conv2d":
            return torch.matmul
        return lambda x, w: torch.nn.functional.conv2d(x, w, stride=item.stride, padding=item.padding)

    def _tensor(self, array: Any) -> Any:
        if array.dtype.name == "bfloat16":
            return self._torch.from_numpy(array.view(np.int16)).cuda().view(self._torch.bfloat16)
        return self._torch.from_numpy(np.ascontiguousarray(array)).cuda()


def _allowance(op: Operator, slack: float) -> float:
    """What a rival may be off: ten times as much as ours, for sums in another order; and as libraries may cut
    off what ours rounds, four times the last bit of the inputs, as it adds up in a sum of random terms."""
    terms = op.flops / 2 / op.outputs[0].elements
    return 10 * slack + 4 * op.inputs[0].dtype.epsilon * terms**0.5


def _allow_tf32(backends: Any, allowed: bool) -> None:
    """Exact float32, unless tf32 is compared. PyTorch says it in one way up to 2.8 and in another from
    2.9 on, and some of it fails where both are used."""
    if hasattr(backends.cuda.matmul, "fp32_precision"):
        mode = "tf32" if allowed else "ieee"
        backends.cuda.matmul.fp32_precision = mode
        backends.cudnn.conv.fp32_precision = mode
    else:
        backends.cuda.matmul.allow_tf32 = allowed
        backends.cudnn.allow_tf32 = allowed


def gpu_uuid(torch: Any) -> str:
    """NVML's name of the GPU that PyTorch uses."""
    said = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    return said if said.startswith("GPU-") else f"GPU-{said}"


class TorchContender:
    """A call of PyTorch's, captured as a graph of many."""

    def __init__(self, name: str, torch: Any, device: Device, call: Call) -> None:
        self.name = name
        self._torch, self._device = torch, device
        self._result = self._warm(call)
        self._graph, self._calls = self._captured(call)

    def check(self, item: Item, expected: Expected) -> None:
        """A rival must be right too: its result is held against the same reference, element by element where
        that is cheap. Raises `DeviceError`."""
        got = self._result.float().cpu().numpy().astype(np.float64)
        compute = item.op.computes[-1]
        rows = np.random.default_rng(0).integers(0, 2**31, (len(compute.spatial), 64))
        places = {a.name: np.unique(r % a.extent)[:8] for a, r in zip(compute.spatial, rows, strict=True)}
        right = expected.at(compute, places)
        error = float(np.max(np.abs(got[np.ix_(*places.values())] - right.value)))
        allowed = _allowance(item.op, right.slack)
        if not error <= allowed:
            raise DeviceError(f"{self.name} is off by {error:.3g}, where rounding explains {allowed:.3g}")

    def time(self, turn: int) -> Timing:
        """See `Contender`."""
        samples = tuple(self._replayed() / self._calls for _ in range(SAMPLES))
        told = self._conditions()
        method = f"graph replay, {self._calls} calls a sample"
        return Timing(median(samples), interval(samples), SAMPLES, told, method, samples)

    def meter(self, turn: int, seconds: float) -> Metering:
        """See `Contender`. Raises `DeviceError` where the board cannot be metered."""
        from ekc.devices.nvml.board import NvmlBoard
        from ekc.devices.nvml.sensors import Sensors

        board = NvmlBoard(Sensors(gpu_uuid(self._torch)), self)
        window = meter.meter(board, None, self._replayed() / self._calls, seconds)
        return window.metering(self._conditions())

    def start(self, kernel: object) -> None:
        """Keep two graphs queued until `stop`."""
        self._told, self._done = threading.Event(), Calls(0, 0.0)
        index = self._torch.cuda.current_device()
        self._thread = threading.Thread(target=self._keep, args=(index,), daemon=True)
        self._thread.start()

    def stop(self) -> Calls:
        """How many calls there were, and the GPU's seconds."""
        self._told.set()
        self._thread.join()
        return self._done

    def _keep(self, index: int) -> None:
        self._torch.cuda.set_device(index)  # A thread begins with the first GPU.
        event = self._torch.cuda.Event
        begin, *ends = (event(enable_timing=True) for _ in range(3))
        begin.record()
        self._graph.replay()
        ends[0].record()
        graphs = 1
        while not self._told.is_set():
            self._graph.replay()
            ends[graphs % 2].record()
            ends[(graphs - 1) % 2].synchronize()
            graphs += 1
        last = ends[(graphs - 1) % 2]
        last.synchronize()
        self._done = Calls(graphs * self._calls, begin.elapsed_time(last) / 1e3)

    def _warm(self, call: Call) -> Any:
        side = self._torch.cuda.Stream()
        side.wait_stream(self._torch.cuda.current_stream())
        with self._torch.cuda.stream(side):
            for _ in range(WARM_UP_CALLS):
                result = call()
        self._torch.cuda.current_stream().wait_stream(side)
        self._torch.cuda.synchronize()
        return result

    def _captured(self, call: Call) -> tuple[Any, int]:
        """A graph of as many calls as take `BATCH_S`."""
        one = self._graph_of(call, 1)
        self._graph = one
        self._replayed()
        calls = int(min(max(BATCH_S / self._replayed(), 1), MOST_CALLS))
        return (one, 1) if calls == 1 else (self._graph_of(call, calls), calls)

    def _graph_of(self, call: Call, calls: int) -> Any:
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        return graph

    def _replayed(self) -> float:
        """Seconds of one replay by the GPU's clock."""
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self._graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

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
