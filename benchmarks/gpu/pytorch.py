"""cuBLAS and cuDNN, and what PyTorch writes in Triton, called through PyTorch on the same numbers as ours.

A call is captured as a graph of many, and timed and metered as ekc's own kernels are, by the same rules
(`ekc/devices/cuda/timing.py`): graphs as long, replayed as often in a sample, as long a warm-up, as many
samples. Between two graphs the GPU may pause: who has fewer of them would look faster. Who is busy for longer
may meet the power cap, and be timed at a lower clock. The GPU never waits for the host between the events:
samples are queued together. The L2 is warm, as calls follow each other.
"""

from __future__ import annotations

import importlib.util
import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from benchmarks.gpu.contenders import Contender, Slice, describe_problem
from benchmarks.gpu.items import Item
from benchmarks.gpu.kit import Kit
from ekc.codegen import nvrtc
from ekc.devices.cuda.gpu import NvmlBoard
from ekc.devices.cuda.messages import TimingRules
from ekc.devices.cuda.timing import (
    SAMPLE_DURATION_S,
    WARM_UP_DURATION_S,
    QueueUnit,
    choose_graph_calls,
    sample_until_narrow,
)
from ekc.devices.cuda.worker import BATCH_DURATION_S
from ekc.devices.device import Device, MeasurementConditions, Timing
from ekc.devices.metering import meter
from ekc.devices.metering.meter import CompletedCalls
from ekc.devices.nvml.sensors import GpuSensors
from ekc.devices.statistics import compute_median, compute_median_interval
from ekc.errors import DeviceError
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.runtime.verify import compute_library_tolerance, draw_compared_indices
from ekc.version import __version__

WARM_UP_CALLS = 3
DTYPES = ("float32", "tf32", "float16", "bfloat16")
Call = Callable[[], Any]


HALVES = ("float16", "bfloat16")
"""cuBLAS has no product of a matrix and a vector of these; PyTorch asks it for one of two matrices."""


def is_installed() -> bool:
    """Whether PyTorch is installed."""
    return importlib.util.find_spec("torch") is not None


def wake_gpu(kit: Kit) -> None:
    """Import PyTorch and wake the GPU before any item is begun: the first would pay for it, and later ones be
    thought as long. A failure here comes again in use, and is printed there for every item."""
    with suppress(Exception):
        import torch

        torch.cuda.set_device(kit.gpu)
        torch.cuda.synchronize()


def find_rivals(kit: Kit, item: Item, expected: ReferenceEvaluator) -> tuple[list[Contender], dict[str, str]]:
    """Rivals of an item that PyTorch has here, or why there are none."""
    library = "Triton" if item.triton else "cuDNN" if item.kind == "conv2d" else "cuBLAS"
    try:
        import torch

        why = _explain_unusable(torch, kit, item)
        if not why:
            torch.cuda.set_device(kit.gpu)
            lab = Lab(torch, kit, item, expected)
    except Exception as problem:
        # After a fault every call of it fails, and ours, in a process of their own, do not.
        why = f"PyTorch is installed and does not work ({(str(problem).splitlines() or [''])[0]})"
    if why:
        return [], {library: why}
    try:
        return [lab.make_triton_contender() if item.triton else lab.make_library_contender()], {}
    except Exception as problem:
        # A library may raise anything; our kernel is measured all the same.
        return [], {library: describe_problem(problem)}


def _explain_unusable(torch: Any, kit: Kit, item: Item) -> str:
    """The reason why nothing can be compared, or ""."""
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} sees no GPU"
    theirs = torch.cuda.get_device_name(kit.gpu)
    if theirs != kit.device.name:
        return f"PyTorch's GPU {kit.gpu} is a {theirs}, not a {kit.device.name}"
    dtype = item.op.inputs[0].dtype.name
    return "" if dtype in DTYPES else f"PyTorch has no {item.kind} of {dtype} on a GPU"


def _require_float32_sums(products: Any) -> None:
    """Sums of halves in float32, as ours are: PyTorch lets cuBLAS add parts of them in 16 bits."""
    products.allow_fp16_reduced_precision_reduction = False
    products.allow_bf16_reduced_precision_reduction = False


class Lab:
    """The tensors of one item, and calls on them."""

    def __init__(self, torch: Any, kit: Kit, item: Item, expected: ReferenceEvaluator) -> None:
        self._torch, self._kit, self._item, self._expected = torch, kit, item, expected
        allow_tf32(torch.backends, item.op.inputs[0].dtype.name == "tf32")
        _require_float32_sums(torch.backends.cuda.matmul)
        torch.backends.cudnn.benchmark = True
        # All plans; by default it tries ten.
        torch.backends.cudnn.benchmark_limit = 0
        self._inputs = [self._make_tensor(array) for array in expected.arrays]

    def make_library_contender(self) -> Contender:
        """cuBLAS or cuDNN."""
        torch, inputs, function = self._torch, self._inputs, self._find_function()
        conv = self._item.kind == "conv2d"
        name = f"cuDNN {torch.backends.cudnn.version()}" if conv else f"cuBLAS of CUDA {torch.version.cuda}"
        if self._item.kind == "matvec" and self._item.op.inputs[0].dtype.name in HALVES:
            name += " (as a GEMM)"
        return self._make_contender(name, lambda: function(*inputs))

    def make_triton_contender(self) -> Contender:
        """A kernel that PyTorch writes in Triton and tunes."""
        if importlib.util.find_spec("triton") is None:
            raise DeviceError("Triton is not installed")
        import triton

        options = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}
        function, inputs = self._torch.compile(self._find_function(), options=options), self._inputs
        return self._make_contender(f"Triton {triton.__version__}", lambda: function(*inputs))

    def _make_contender(self, name: str, call: Call) -> Contender:
        name = f"{name}, PyTorch {self._torch.__version__}"
        result = _warm_up(self._torch, call)
        check_result(name, result.float().cpu().numpy(), self._item, self._expected)
        return CapturedCall(name, self._kit.device, self._torch, call)

    def _find_function(self) -> Callable[..., Any]:
        torch, item = self._torch, self._item
        if item.kind != "conv2d":
            matmul: Callable[..., Any] = torch.matmul
            return matmul
        return lambda x, w: torch.nn.functional.conv2d(x, w, stride=item.stride, padding=item.padding)

    def _make_tensor(self, array: Any) -> Any:
        if array.dtype.name == "bfloat16":
            return self._torch.from_numpy(array.view(np.int16)).cuda().view(self._torch.bfloat16)
        return self._torch.from_numpy(np.ascontiguousarray(array)).cuda()


def allow_tf32(backends: Any, allowed: bool) -> None:
    """Exact float32, unless tf32 is compared. PyTorch says it in one way up to 2.8 and in another from 2.9
    on, and some of it fails where both are used."""
    if hasattr(backends.cuda.matmul, "fp32_precision"):
        mode = "tf32" if allowed else "ieee"
        backends.cuda.matmul.fp32_precision = mode
        backends.cudnn.conv.fp32_precision = mode
    else:
        backends.cuda.matmul.allow_tf32 = allowed
        backends.cudnn.allow_tf32 = allowed


def read_gpu_uuid(torch: Any) -> str:
    """NVML's name of the GPU that PyTorch uses."""
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"


def _warm_up(torch: Any, call: Call) -> Any:
    """The result of a call, after a few on a stream of their own: libraries allocate and choose in their
    first ones, which no graph can hold."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_CALLS):
            result = call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    return result


class CapturedCall:
    """A call captured as a graph of many; see `contenders.Contender`."""

    def __init__(self, name: str, device: Device, torch: Any, call: Call) -> None:
        self.name = name
        self._device, self._torch = device, torch
        self._index, self._uuid = torch.cuda.current_device(), read_gpu_uuid(torch)
        self._calls, self._graph = 1, self._capture(call, 1)
        self._calls = choose_graph_calls(self._measure_call_s())
        self._graph = self._capture(call, self._calls)

    def _capture(self, call: Call, calls: int) -> Any:
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        return graph

    def _measure_call_s(self) -> float:
        """Seconds of a call, roughly."""
        events = [self._create_event() for _ in range(2 * WARM_UP_CALLS)]
        for event in events:
            event.record()
            self._graph.replay()
        events[-1].synchronize()
        return _compute_seconds(events[WARM_UP_CALLS], events[-1]) / (WARM_UP_CALLS - 1)

    def _create_event(self) -> Any:
        return self._torch.cuda.Event(enable_timing=True)

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
        return QueueUnit(self._graph.replay, self._calls, call_s, "graph replay")

    def _take_samples(self, repeats: int, count: int) -> list[float]:
        """Seconds of a call, by sample; a sample is `repeats` graphs queued together."""
        events = [self._create_event() for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            self._queue_graphs(repeats)
            event.record()
        events[-1].synchronize()
        calls = repeats * self._calls
        return [_compute_seconds(a, b) / calls for a, b in itertools.pairwise(events)]

    def run(self, turn: int, seconds: float) -> Slice:
        """See `contenders.Contender`."""
        (call_s,) = self._take_samples(1, 1)
        board = NvmlBoard(GpuSensors(self._uuid), self)
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
        # A thread begins with the first GPU.
        self._torch.cuda.set_device(self._index)
        # As long as the batches of ours, in which the host is not asked.
        batch = self._measure_unit().count_repeats(BATCH_DURATION_S)
        begin, before, after = (self._create_event() for _ in range(3))
        begin.record()
        self._queue_graphs(batch)
        before.record()
        graphs, is_leading = batch, True
        while not self._started.is_set():
            self._queue_graphs(batch)
            after.record()
            before.synchronize()
            graphs += batch
            if is_leading and _compute_seconds(begin, before) >= meter.LEAD_IN_S:
                # Not counted, as the worker does not count it for ours: the clock still changes.
                graphs, is_leading, begin, before = batch, False, before, begin
            before, after = after, before
        before.synchronize()
        self._done = CompletedCalls(graphs * self._calls, _compute_seconds(begin, before))

    def _queue_graphs(self, graphs: int) -> None:
        for _ in range(graphs):
            self._graph.replay()

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


def _compute_seconds(begin: Any, end: Any) -> float:
    """Seconds between two events that have happened, by the GPU's clock; CUDA counts in milliseconds."""
    return float(begin.elapsed_time(end)) / 1e3


def check_result(name: str, got: Any, item: Item, expected: ReferenceEvaluator) -> None:
    """A rival must be right too: its result is compared with the same reference, at some places. Raises
    `DeviceError`."""
    places = draw_compared_indices(item.op)
    right = expected.evaluate_at(item.op.computes[-1], places)
    error = float(np.max(np.abs(got[np.ix_(*places.values())].astype(np.float64) - right.values)))
    allowed = compute_library_tolerance(item.op, right.tolerance)
    if not error <= allowed:
        raise DeviceError(f"{name} is off by {error:.3g}, where rounding explains {allowed:.3g}")
