"""Element types as NumPy types."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ekc
import ekc.ir.operators as o
from ekc.ir.compute import TensorSpec
from ekc.ir.dtypes import DTYPE_NAMES, DType, parse_dtype

HELD: dict[str, Any] = {
    "float32": np.float32,
    "tf32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "int8": np.int8,
    "int32": np.int32,
}
TAKEN: dict[str, Callable[[TensorSpec], Any]] = {
    "dtype": lambda t: np.dtype(t.dtype),
    "zeros": lambda t: np.zeros(t.shape, t.dtype).dtype,
    "ones": lambda t: np.ones(t.shape, dtype=t.dtype).dtype,
    "full": lambda t: np.full(t.shape, 3, t.dtype).dtype,
    "empty_like": lambda t: np.empty_like(np.zeros(t.shape), dtype=t.dtype).dtype,
    "asarray": lambda t: np.asarray([[1, 2]], t.dtype).dtype,
    "arange": lambda t: np.arange(4, dtype=t.dtype).dtype,
    "astype": lambda t: np.arange(4).astype(t.dtype).dtype,
    "view": lambda t: np.zeros(16, np.uint8).view(t.dtype).dtype,
    "frombuffer": lambda t: np.frombuffer(bytes(16), t.dtype).dtype,
    "sum": lambda t: np.ones(4, np.float32).sum(dtype=t.dtype).dtype,
    "result_type": lambda t: np.result_type(np.dtype(t.dtype), t.dtype),
    "structured": lambda t: np.dtype([("x", t.dtype)])["x"],
}


@pytest.mark.parametrize("name", DTYPE_NAMES)
@pytest.mark.parametrize("way", TAKEN)
def test_numpy_takes_every_element_type(name: str, way: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = TAKEN[way](TensorSpec("x", (2, 2), parse_dtype(name)))
    assert found == np.dtype(HELD[name])
    assert found.type is HELD[name]


@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_dtype_attributes_give_numpy_type(name: str) -> None:
    """NumPy reads `dtype` up to 2.3, and `__numpy_dtype__` first from 2.4 on."""
    dtype = parse_dtype(name)
    assert dtype.dtype is dtype.__numpy_dtype__ is dtype.numpy_dtype


@pytest.mark.parametrize("name", ["float32", "tf32", "float16", "bfloat16"])
def test_arrays_of_a_spec_are_kernel_arguments(name: str) -> None:
    op = o.matmul(2, 3, 4, dtype=name)
    arrays = [np.ones(t.shape, t.dtype) for t in op.inputs]
    (out,) = op.outputs
    schedule = ekc.Schedule(op).cache_write("C")
    np.testing.assert_array_equal(ekc.compile(schedule)(*arrays), np.full(out.shape, 4, out.dtype))


@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_copies_of_a_type_are_identical(name: str) -> None:
    """Types are compared by identity: tf32 is float32 to NumPy, and not to ekc."""
    dtype = parse_dtype(name)
    copies: list[DType] = [copy.deepcopy(dtype), pickle.loads(pickle.dumps(dtype))]
    assert all(c is dtype for c in copies)
    assert [other for other in DTYPE_NAMES if parse_dtype(other) == dtype] == [name]
