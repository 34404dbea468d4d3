"""Element types: schedules of any types, legal combinations, conversions, tf32, exact integers."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import ekc.ir.operators as o
from ekc.emulator.numerics.fma import tf32_round
from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.ir.dtypes import (
    DTYPE_NAMES,
    FLOAT32,
    INT8,
    INT32,
    TF32,
    find_reduction_identity,
    parse_dtype,
    round_to_tf32,
)
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.types import TRIPLES, Types
from tests.ir.interpret import convert_values, interpret_program
from tests.ir.starts import make_int8


@pytest.mark.parametrize(
    ("dtype", "acc", "out"),
    [
        ("float32", "float32", "float32"),
        ("tf32", "float32", "float32"),
        ("float16", "float32", "float16"),
        ("bfloat16", "float32", "bfloat16"),
        ("int8", "int32", "int32"),
        ("int32", "int32", "int32"),
    ],
)
def test_default_accumulator_and_output_types(dtype: str, acc: str, out: str) -> None:
    op = o.matmul(2, 3, 4, dtype=dtype)
    assert [t.dtype.name for t in op.inputs] == [dtype, dtype]
    assert (op.computes[0].acc_dtype.name, op.outputs[0].dtype.name) == (acc, out)


def test_int8_sums_in_float32_are_stored_as_float() -> None:
    assert o.matmul(2, 3, 4, dtype="int8", acc_dtype="float32").outputs[0].dtype is FLOAT32


def test_every_legal_triple_of_types_builds() -> None:
    assert {t[0] for t in TRIPLES} == set(DTYPE_NAMES)
    for dtype, acc, out in TRIPLES:
        op = o.matmul(2, 3, 4, dtype=dtype, acc_dtype=acc, out_dtype=out)
        assert (op.computes[0].acc_dtype.name, op.outputs[0].dtype.name) == (acc, out)


def _refused(types: Types) -> str:
    """The message for an illegal triple of types, one line with a legal choice; "" for a legal triple."""
    dtype, acc, out = types
    try:
        o.matmul(2, 3, 4, dtype=dtype, acc_dtype=acc, out_dtype=out)
    except InvalidInput as problem:
        line = str(problem)
    else:
        return ""
    assert "\n" not in line
    assert "use" in line
    return line


def test_other_triples_of_types_are_refused() -> None:
    usual = {("float32", "float32", "float32"), ("float16", "float32", "float16")}
    more = {
        ("int32", "int32", out) for out in ("int8", "float32")
    } | {
        (dtype, "float32", out)
        for dtype in DTYPE_NAMES
        for out in ("float32", "float16", "bfloat16")
    }  # fmt: skip
    legal = {
        triple
        for triple in itertools.product(DTYPE_NAMES, DTYPE_NAMES, DTYPE_NAMES)
        if _refused(triple) == ""
    }
    assert legal == usual | more | set(TRIPLES)


def test_then_reads_the_stored_type() -> None:
    """Dequantisation: an int32 sum times a float scale."""
    op = o.matmul(5, 7, 9, dtype="int8").then(
        "D",
        axes={"p": 5, "q": 7},
        inputs={"scale": (7,)},
        body=lambda C, scale, p, q: C[p, q] * scale[q],
        dtype="float32",
    )
    assert [t.dtype.name for t in (*op.inputs, *op.outputs)] == ["int8", "int8", "float32", "float32"]
    assert [c.acc_dtype.name for c in op.computes] == ["int32", "float32"]
    a, b, scale = make_random_input_arrays(op)
    np.testing.assert_allclose(op.reference(a, b, scale), (a.astype(int) @ b.astype(int)) * scale, rtol=1e-6)
    assert o.matmul(2, 2, 2, dtype="int8").then(
        "D", axes={"p": 2, "q": 2}, inputs={"bias": (2,)}, body=lambda C, bias, p, q: C[p, q] + bias[q]
    ).inputs[2].dtype is INT32  # fmt: skip


def test_longest_safe_int8_sum_is_exact() -> None:
    op = o.matvec(1, 131_071, dtype="int8")
    lowest = np.full((1, 131_071), -128, np.int8)
    assert op.reference(lowest, lowest[0])[0] == 131_071 * 16384


def test_absolute_values_and_extremes_of_integers_are_exact() -> None:
    op = make_int8(lambda x, i: ex.Call("abs", ex.minimum(x[i], 3) - i) * ex.maximum(x[i], -2))
    x = np.array([-128, 127, 5, -1], np.int8)
    want = [abs(min(int(v), 3) - i) * max(int(v), -2) for i, v in enumerate(x)]
    assert op.reference(x).tolist() == want
    assert interpret_program(Schedule(op).program, [x]).output.tolist() == want


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((2, 3), np.float32), r"A is float32, needed bfloat16; try A.astype\('bfloat16'\)"),
        (np.zeros((2, 3), np.uint16), r"A is uint16, needed bfloat16; try A.view\('bfloat16'\)"),
    ],
)
def test_wrong_arrays_for_bfloat16_are_refused(array: NDArray[Any], words: str) -> None:
    op = o.matmul(2, 4, 3, dtype="bfloat16")
    with pytest.raises(InvalidInput, match=words):
        op.reference(array, np.zeros((3, 4), ml_dtypes.bfloat16))


HALF = 2.0**-11


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1.0, 1.0),
        (1 + HALF, 1 + 2 * HALF),
        (-1 - HALF, -1 - 2 * HALF),
        (1 + 3 * HALF, 1 + 4 * HALF),
        (np.nextafter(np.float32(1 + HALF), np.float32(0)), 1.0),
        (3.4028235e38, math.inf),
        (-math.inf, -math.inf),
        (0.0, 0.0),
        (2.0**-149, 0.0),
        (2.0**-137, 2.0**-136),
    ],
)
def test_tf32_rounds_halves_away_from_zero(value: float, rounded: float) -> None:
    assert round_to_tf32(np.array([value], np.float32))[0] == np.float32(rounded)


def test_tf32_rounding_equals_the_machine() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000).astype(np.uint32)
    values = bits.view(np.float32)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(round_to_tf32(values)[numbers], tf32_round(values)[numbers])
    assert np.isnan(round_to_tf32(values)[~numbers]).all()


def test_tf32_inputs_are_rounded_and_sums_are_not() -> None:
    op = o.matmul(1, 1, 2, dtype="tf32")
    a, b = np.array([[1 + HALF, 1]], np.float32), np.array([[1], [HALF]], np.float32)
    assert op.reference(a, b)[0, 0] == np.float32(1 + 2 * HALF + HALF)
    assert (
        op.reference(a, b)[0, 0]
        == interpret_program(Schedule(op).cache_write("C").program, [a, b]).output[0, 0]
    )


@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_types_are_single_objects(name: str) -> None:
    dtype = parse_dtype(name)
    assert pickle.loads(pickle.dumps(dtype)) is copy.deepcopy(dtype) is dtype
    assert str(dtype) == repr(dtype) == name


def test_conversions_between_types() -> None:
    numbers = np.array([-(2**31), -129, -128, 0, 127, 128, 2**31 - 1], np.int32)
    assert convert_values(numbers, INT32, INT8).tolist() == [-128, -128, -128, 0, 127, 127, 127]
    assert convert_values(numbers, INT32, FLOAT32)[-1] == 2.0**31
    ones = np.ones(2, np.float32)
    assert convert_values(ones, TF32, TF32) is ones


@pytest.mark.parametrize("name", ["float32", "int32"])
def test_reduction_identities(name: str) -> None:
    dtype = parse_dtype(name)
    for combine, function in (("sum", np.add), ("max", np.maximum), ("min", np.minimum)):
        start = np.array(find_reduction_identity(combine, dtype), dtype.numpy_dtype)
        values = np.array([-7, 0, 9], dtype.numpy_dtype)
        np.testing.assert_array_equal(function(start, values), values)


def test_old_records_are_read() -> None:
    """JSON and digest of operators are what they were when float32 and float16 were the only types."""
    assert o.matmul(64, 64, 64).digest == "4e36a209e68869da"
    assert o.matvec(8, 16, dtype="float16").digest == "a6742e6797106672"
