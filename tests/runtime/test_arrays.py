"""Kernels called on arrays of libraries that ekc does not know, in the memory of the host."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import array_api_strict
import numpy as np
import pytest

import ekc
from ekc.errors import InvalidInput
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.runtime.kernel import Kernel

OP = ekc.matmul(8, 12, 4)
A, B = make_random_input_arrays(OP)
RIGHT = OP.reference(A, B)


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return ekc.compile(make_naive_schedule(OP))


def test_array_api_library_gets_its_own_array(kernel: Kernel) -> None:
    arrays = array_api_strict.asarray(A), array_api_strict.asarray(B)
    for found in (kernel(*arrays), OP.reference(*arrays), kernel(arrays[0], B)):
        assert isinstance(found, type(arrays[0]))
        np.testing.assert_allclose(np.asarray(found), RIGHT, rtol=1e-5, atol=1e-5)
    assert isinstance(kernel(A, arrays[1]), np.ndarray), "the first input decides"


def test_result_is_on_the_device_of_the_first_input(kernel: Kernel) -> None:
    device = array_api_strict.Device("device1")
    a, b = (array_api_strict.asarray(x, device=device) for x in (A, B))
    for call in (kernel, OP.reference):
        assert call(Held(a), B).device == device
        with pytest.raises(InvalidInput, match=r"^B cannot be read: Can't convert array on the '.*device1"):
            call(A, b)


class Held:
    """An array on a second device whose memory NumPy can read."""

    def __init__(self, array: Any) -> None:
        self._array, self.device = array, array.device

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self._array._array)

    def __array_namespace__(self) -> Any:
        return array_api_strict


class ByDlpack:
    """An array with DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


PROTOCOLS: dict[str, Callable[[np.ndarray], Any]] = {
    "buffer": memoryview,
    "interface": lambda a: SimpleNamespace(__array_interface__=a.__array_interface__, kept=a),
    "dlpack": ByDlpack,
    "matrix": lambda a: a.view(np.matrix),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_array_that_numpy_can_read_gives_numpy(kernel: Kernel, protocol: str) -> None:
    given = PROTOCOLS[protocol]
    found = kernel(given(A), given(B))
    assert type(found) is np.ndarray
    np.testing.assert_allclose(found, RIGHT, rtol=1e-5, atol=1e-5)


class Unreadable:
    """An array that refuses, as one of JAX does under `jax.jit`."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise TypeError("traced\nand so on")


def test_library_that_refuses_is_one_line(kernel: Kernel) -> None:
    for call in (kernel, OP.reference):
        with pytest.raises(InvalidInput, match=r"^B cannot be read: traced$"):
            call(A, Unreadable())


def test_array_of_objects_is_refused_by_its_type(kernel: Kernel) -> None:
    with pytest.raises(InvalidInput, match=r"A is object, needed float32; try A\.astype\('float32'\)"):
        kernel(A.astype(object), B)


CALL = """
import sys
import numpy as np
import ekc
from ekc.ir.schedule.naive import make_naive_schedule
kernel = ekc.compile(make_naive_schedule(ekc.matmul(4, 4, 4)))
kernel(np.ones((4, 4), np.float32), np.ones((4, 4), np.float32))
assert "torch" not in sys.modules
"""


def test_call_does_not_import_pytorch() -> None:
    subprocess.run([sys.executable, "-c", CALL], check=True)
