"""cuBLAS by ctypes: rows become columns, only exact float32 is float32, a missing library has a reason."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import cublas
from benchmarks.gpu.graphs import GraphContender
from benchmarks.gpu.items import Item, conv, matmul, matvec
from ekc import devices
from ekc.devices.cuda.timing import GRAPH_DURATION_S
from ekc.errors import DeviceError
from ekc.ir.dtypes import parse_dtype
from ekc.ir.interpreter.compare import make_random_input_arrays
from ekc.ir.interpreter.tolerance import ReferenceEvaluator

CALL_S = 40e-6


class Driver:
    """Memory by address, a virtual clock, graphs that count their calls."""

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.now_s, self.capturing = 0.0, False
        self.captured = 0
        self.graphs: list[int] = []
        self.events: list[float] = []

    def push_context(self, index: int) -> None: ...

    def get_uuid(self, index: int) -> str:
        return "1-2-3"

    def create_stream(self) -> int:
        return 7

    def allocate(self, size: int) -> int:
        return 4096 * (len(self.memory) + 1)

    def upload(self, address: int, array: Any) -> None:
        self.memory[address] = array.copy()

    def download(self, array: Any, address: int) -> None:
        array[...] = self.memory[address]

    def begin_capture(self, stream: int) -> None:
        self.capturing, self.captured = True, 0

    def end_capture(self, stream: int) -> int:
        self.capturing = False
        self.graphs.append(self.captured)
        return len(self.graphs) - 1

    def launch_graph(self, graph: int, stream: int) -> None:
        self.now_s += self.graphs[graph] * CALL_S

    def create_event(self) -> int:
        self.events.append(float("nan"))
        return len(self.events) - 1

    def record_event(self, event: int, stream: int) -> None:
        self.events[event] = self.now_s

    def wait_for_event(self, event: int) -> None: ...

    def elapsed_s(self, start: int, end: int) -> float:
        return self.events[end] - self.events[start]


class Library:
    """cuBLAS by its own conventions: columns in a column, types by number."""

    def __init__(self, driver: Driver, status: int = 0) -> None:
        self.driver, self.status = driver, status
        self.computed: set[int] = set()

    def cublasCreate_v2(self, handle: Any) -> int:
        return 0

    def cublasGetVersion_v2(self, handle: Any, number: Any) -> int:
        ctypes.cast(number, ctypes.POINTER(ctypes.c_int))[0] = 130000
        return 0

    def cublasSetStream_v2(self, handle: Any, stream: ctypes.c_void_p) -> int:
        assert stream.value == 7
        return 0

    def cublasGemmEx(self, handle: Any, *words: Any) -> int:
        ta, tb, m, _, k, _, *rest = words
        a, akind, lda, b, bkind, ldb, _, c, ckind, ldc, compute, algorithm = rest
        if self.status:
            return self.status
        assert (ta, tb, algorithm) == (0, 0, -1)
        assert akind == bkind == ckind
        self.computed.add(compute)
        if self.driver.capturing:
            self.driver.captured += 1
            return 0
        left = _columns(self.driver.memory[a.value], lda, m)
        right = _columns(self.driver.memory[b.value], ldb, k)
        into = self.driver.memory[c.value]
        product = (left @ right).reshape(-1, order="F")
        assert ldc == m
        into.reshape(-1)[:] = product.astype(into.dtype)
        return 0


def _columns(memory: Any, leading: int, rows: int) -> Any:
    """A matrix whose columns lie one after the other."""
    return memory.reshape(-1).reshape((leading, -1), order="F")[:rows].astype(np.float64)


def _graph(item: Item, status: int = 0) -> tuple[Library, cublas.BlasGraph]:
    driver = Driver()
    library = Library(driver, status)
    blas = cublas.Blas(library)
    assert blas.version == 130000
    expected = ReferenceEvaluator(item.op, make_random_input_arrays(item.op))
    return library, cublas.BlasGraph(driver, 0, blas, item, expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", cublas.TYPES)
def test_cublas_matches_the_operator_and_is_timed(dtype: str) -> None:
    library, graph = _graph(matmul(24, 40, 56, dtype))
    assert library.computed == {77 if dtype == "tf32" else 68}
    timing = GraphContender("cuBLAS", devices.open("a100"), graph).time(0)
    assert graph.calls == round(GRAPH_DURATION_S / CALL_S), "a graph as long as ours"
    assert timing.latency_s == pytest.approx(CALL_S)
    assert parse_dtype(dtype).name == dtype


def test_vector_is_a_matrix_of_one_column() -> None:
    _graph(matvec(24, 56, "float32"))


def test_status_has_a_name() -> None:
    with pytest.raises(DeviceError, match="cublasGemmEx: status 15"):
        _graph(matmul(24, 40, 56, "float16"), status=15)


def test_missing_library_has_a_reason() -> None:
    kit: Any = SimpleNamespace(device=devices.open("a100"), gpu=0)
    item = conv(1, 4, 8, 4, 3, 1, "float32")
    expected = ReferenceEvaluator(item.op, make_random_input_arrays(item.op))
    assert cublas.rivals(kit, item, expected) == ([], {"cuDNN": "PyTorch is not installed"})
    triton = replace(matmul(8, 8, 8, "float32"), triton=True)
    assert cublas.rivals(kit, triton, expected) == ([], {"Triton": "PyTorch is not installed"})
    if devices.open("auto").simulated:
        item = matmul(8, 8, 8, "float32")
        found, absent = cublas.rivals(
            kit, item, ReferenceEvaluator(item.op, make_random_input_arrays(item.op))
        )
        assert not found
        assert absent["cuBLAS"].startswith("PyTorch is not installed, and called directly: ")
