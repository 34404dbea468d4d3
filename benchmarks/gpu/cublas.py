"""cuBLAS itself, for a machine without PyTorch: found by cuda-pathfinder, called through ctypes.

Matrices of ours are stored row by row, cuBLAS's column by column: C = A B is asked for as C' = B' A'.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from benchmarks.gpu.contenders import Contender
from benchmarks.gpu.graphs import GraphContender, check_result
from benchmarks.gpu.items import Item
from benchmarks.gpu.kit import Kit
from ekc.devices.cuda.driver import Driver
from ekc.devices.cuda.timing import choose_graph_calls
from ekc.errors import DeviceError, EkcError
from ekc.ir.interpreter.tolerance import ReferenceEvaluator

TYPES = {"float32": 0, "tf32": 0, "float16": 2, "bfloat16": 14}
"""cudaDataType_t of library_types.h."""
COMPUTE = {"tf32": 77}
EXACT = 68
"""cublasComputeType_t: CUBLAS_COMPUTE_32F_FAST_TF32, and CUBLAS_COMPUTE_32F, which takes no TF32."""
PLAIN, DEFAULT = 0, -1
"""CUBLAS_OP_N, CUBLAS_GEMM_DEFAULT."""
ROUGH = 6
"""Calls that tell how long one takes."""


def find_rivals(kit: Kit, item: Item, expected: ReferenceEvaluator) -> tuple[list[Contender], dict[str, str]]:
    """cuBLAS, or why not; cuDNN and Triton are called through PyTorch only."""
    why = "PyTorch is not installed"
    if item.triton or item.kind == "conv2d":
        return [], {"Triton" if item.triton else "cuDNN": why}
    try:
        from ekc.devices.cuda.driver_bindings import CudaBindings

        driver = CudaBindings()
        driver.push_context(kit.gpu)
        blas = Blas(load_library())
        graph = BlasGraph(driver, kit.gpu, blas, item, expected)
    except EkcError as problem:
        return [], {"cuBLAS": f"{why}, and called directly: {problem}"}
    how = " (as a GEMM)" if item.kind == "matvec" else ""
    return [GraphContender(f"cuBLAS {blas.version}{how}", kit.device, graph)], {}


def load_library() -> Any:
    """The library. Raises `DeviceError` where there is none."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        return ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
    except (RuntimeError, OSError) as problem:
        raise DeviceError(f"cuBLAS is not found ({str(problem).splitlines()[0]})") from None


class Blas:
    """A handle of the library."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        number = ctypes.c_int()
        self._call("cublasGetVersion_v2", self._handle, ctypes.byref(number))
        self.version = number.value
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def set_stream(self, stream: int) -> None:
        """Queue on a stream from here on."""
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(stream))

    def multiply(self, a: int, b: int, c: int, m: int, n: int, k: int, dtype: str) -> None:
        """C[m, n] = A[m, k] B[k, n], rows in a row; sums are float32, C has the type of the inputs."""
        kind = TYPES[dtype]
        self._call(
            *("cublasGemmEx", self._handle, PLAIN, PLAIN, n, m, k, ctypes.byref(self._one)),
            *(ctypes.c_void_p(b), kind, n, ctypes.c_void_p(a), kind, k),
            *(ctypes.byref(self._zero), ctypes.c_void_p(c), kind, n, COMPUTE.get(dtype, EXACT), DEFAULT),
        )

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise DeviceError(f"{name}: status {status}")


class BlasGraph:
    """A `graphs.Machine`: one item on one GPU."""

    def __init__(
        self, driver: Driver, gpu: int, blas: Blas, item: Item, expected: ReferenceEvaluator
    ) -> None:
        self._driver, self._gpu = driver, gpu
        self.uuid = f"GPU-{driver.get_uuid(gpu)}"
        self._stream = driver.create_stream()
        blas.set_stream(self._stream)
        rooms = [self._allocate(np.ascontiguousarray(array)) for array in expected.arrays]
        output = np.zeros(item.op.outputs[0].shape, item.op.outputs[0].dtype.numpy_dtype)
        result = self._allocate(output)
        (m, k), n = item.op.inputs[0].shape, (*item.op.inputs[1].shape, 1)[1]
        dtype = item.op.inputs[0].dtype.name

        def call() -> None:
            blas.multiply(*rooms, result, m, n, k, dtype)

        # The first call chooses and allocates, which no graph can hold.
        call()
        driver.download(output, result)
        check_result("cuBLAS", output, item, expected)
        self.calls, self._graph = 1, self._capture(call, 1)
        self.calls = choose_graph_calls(self._measure_call_s())
        self._graph = self._capture(call, self.calls)

    def make_current(self) -> None:
        """See `Machine`."""
        self._driver.push_context(self._gpu)

    def replay(self) -> None:
        """See `Machine`."""
        self._driver.launch_graph(self._graph, self._stream)

    def create_event(self) -> int:
        """See `Machine`."""
        return self._driver.create_event()

    def record_event(self, event: int) -> None:
        """See `Machine`."""
        self._driver.record_event(event, self._stream)

    def wait_for_event(self, event: int) -> None:
        """See `Machine`."""
        self._driver.wait_for_event(event)

    def compute_seconds(self, begin: int, end: int) -> float:
        """See `Machine`."""
        return self._driver.elapsed_s(begin, end)

    def _allocate(self, array: Any) -> int:
        address = self._driver.allocate(array.nbytes)
        self._driver.upload(address, array)
        return address

    def _capture(self, call: Any, calls: int) -> int:
        self._driver.begin_capture(self._stream)
        for _ in range(calls):
            call()
        return self._driver.end_capture(self._stream)

    def _measure_call_s(self) -> float:
        events = [self.create_event() for _ in range(ROUGH)]
        for event in events:
            self.record_event(event)
            self.replay()
        self.wait_for_event(events[-1])
        return self.compute_seconds(events[ROUGH // 2], events[-1]) / (ROUGH - 1 - ROUGH // 2)
