"""cuBLAS by ctypes: rows become columns, only exact float32 is float32, a missing library has a reason."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from benchmarks.gpu import cublas
from benchmarks.gpu.graphs import GraphContender
from benchmarks.gpu.items import Item, make_conv, make_matmul, make_matvec
from ekc import devices
from ekc.devices.cuda.timing import GRAPH_DURATION_S
from ekc.errors import DeviceError
from ekc.ir.dtypes import parse_dtype
from tests.benchmarks.helpers import expect
from tests.scripted.cuda.driver import ScriptedDriver

CALL_S = 40e-6
NUMPY_TYPES = {0: np.float32, 2: np.float16, 14: ml_dtypes.bfloat16}
"""By cudaDataType_t."""


class Library:
    """cuBLAS by its own conventions: columns in a column, types by number."""

    def __init__(self, driver: ScriptedDriver, status: int = 0) -> None:
        self.driver, self.status = driver, status
        self.computed: set[int] = set()

    def cublasCreate_v2(self, handle: Any) -> int:
        return 0

    def cublasGetVersion_v2(self, handle: Any, number: Any) -> int:
        ctypes.cast(number, ctypes.POINTER(ctypes.c_int))[0] = 130000
        return 0

    def cublasSetStream_v2(self, handle: Any, stream: ctypes.c_void_p) -> int:
        assert self.driver.handles[stream.value] == "stream"
        return 0

    def cublasGemmEx(self, handle: Any, *words: Any) -> int:
        ta, tb, m, _, k, _, *rest = words
        a, akind, lda, b, bkind, ldb, _, c, ckind, ldc, compute, algorithm = rest
        if self.status:
            return self.status
        assert (ta, tb, algorithm) == (0, 0, -1)
        assert akind == bkind == ckind
        assert ldc == m
        self.computed.add(compute)

        def multiply() -> None:
            memory = [self.driver.memory[x.value].data.view(NUMPY_TYPES[akind]) for x in (a, b, c)]
            left, right = _columns(memory[0], lda, m), _columns(memory[1], ldb, k)
            memory[2][:] = (left @ right).reshape(-1, order="F").astype(memory[2].dtype)
            self.driver.now_s += CALL_S

        self.driver._queue(multiply)
        return 0


def _columns(memory: Any, leading: int, rows: int) -> Any:
    """A matrix whose columns are stored one after the other."""
    return memory.reshape((leading, -1), order="F")[:rows].astype(np.float64)


def _graph(item: Item, status: int = 0) -> tuple[Library, cublas.BlasGraph]:
    driver = ScriptedDriver()
    driver.push_context(0)
    library = Library(driver, status)
    blas = cublas.Blas(library)
    assert blas.version == 130000
    return library, cublas.BlasGraph(driver, 0, blas, item, expect(item))


@pytest.mark.parametrize("dtype", cublas.TYPES)
def test_cublas_matches_the_operator_and_is_timed(dtype: str) -> None:
    library, graph = _graph(make_matmul(24, 40, 56, dtype))
    assert library.computed == {77 if dtype == "tf32" else 68}
    timing = GraphContender("cuBLAS", devices.open("a100"), graph).time(0)
    assert graph.calls == round(GRAPH_DURATION_S / CALL_S), "a graph as long as ours"
    assert timing.latency_s == pytest.approx(CALL_S)
    assert parse_dtype(dtype).name == dtype


def test_vector_is_a_matrix_of_one_column() -> None:
    _graph(make_matvec(24, 56, "float32"))


def test_status_has_a_name() -> None:
    with pytest.raises(DeviceError, match="cublasGemmEx: status 15"):
        _graph(make_matmul(24, 40, 56, "float16"), status=15)


def test_missing_library_has_a_reason() -> None:
    kit: Any = SimpleNamespace(device=devices.open("a100"), gpu=0)
    item = make_conv(1, 4, 8, 4, 3, 1, "float32")
    assert cublas.find_rivals(kit, item, expect(item)) == ([], {"cuDNN": "PyTorch is not installed"})
    triton = replace(make_matmul(8, 8, 8, "float32"), triton=True)
    assert cublas.find_rivals(kit, triton, expect(item)) == ([], {"Triton": "PyTorch is not installed"})
    if devices.open("auto").simulated:
        item = make_matmul(8, 8, 8, "float32")
        contenders, absent = cublas.find_rivals(kit, item, expect(item))
        assert not contenders
        assert absent["cuBLAS"].startswith("PyTorch is not installed, and called directly: ")
