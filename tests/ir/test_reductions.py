"""Reductions, softmax and the norms, against NumPy in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ekc.ir.operators as o
from ekc.ir import expr as ex
from ekc.ir import reference
from ekc.ir.dtypes import DTYPE_NAMES
from ekc.ir.operator import operator_from_json
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.checks import make_inputs, run_everywhere
from tests.ir.interpret import interpret_program
from tests.ir.test_operators import Array, close

SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


def draw_axes(data: st.DataObject, rank: int) -> Any:
    """One axis, several, or all, as an operator takes them."""
    places = st.integers(-rank, rank - 1)
    some = st.lists(places, min_size=1, max_size=rank, unique_by=lambda a: a % rank).map(tuple)
    return data.draw(st.none() | places | some)


@settings(max_examples=150, deadline=None)
@given(
    st.data(), SHAPES, st.sampled_from(("sum", "prod", "max", "min", "mean")), st.booleans(), st.booleans()
)
def test_reduce_matches_numpy(
    data: st.DataObject, shape: Any, combine: str, keepdims: bool, half: bool
) -> None:
    axes = draw_axes(data, len(shape))
    op = o.reduce(shape, axes, combine, keepdims=keepdims, dtype="float16" if half else "float32")
    (x,) = make_inputs(op)
    expected = getattr(np, combine)(x.astype(np.float64), axis=axes, keepdims=keepdims)
    close(op, op.reference(x), np.atleast_1d(expected))


def flat_index(x: Array, axes: Any, how: str, keepdims: bool) -> Array:
    """np.argmax or np.argmin over some axes, which are first made one last axis."""
    over = range(x.ndim) if axes is None else sorted(a % x.ndim for a in np.atleast_1d(axes).tolist())
    rows = np.moveaxis(x, list(over), range(x.ndim - len(over), x.ndim))
    found = getattr(np, how)(rows.reshape(*rows.shape[: x.ndim - len(over)], -1), axis=-1)
    return np.expand_dims(found, tuple(over)) if keepdims else np.atleast_1d(found)


@settings(max_examples=150, deadline=None)
@given(st.data(), SHAPES, st.sampled_from(("argmax", "argmin")), st.booleans(), st.sampled_from(DTYPE_NAMES))
def test_argmax_and_argmin_match_numpy(
    data: st.DataObject, shape: Any, how: str, keepdims: bool, dtype: str
) -> None:
    """Few values, so that many are equal; infinities and NaN among floats."""
    axes = draw_axes(data, len(shape))
    op = o.reduce(shape, axes, how, keepdims=keepdims, dtype=dtype)
    values = [-2, -1, 0, 1, 2] + [np.nan, np.inf, -np.inf] * (not op.inputs[0].dtype.is_integer)
    some = st.lists(st.sampled_from(values), min_size=math.prod(shape), max_size=math.prod(shape))
    x = np.array(data.draw(some)).reshape(shape).astype(op.inputs[0].dtype.numpy_dtype)
    right = flat_index(x.astype(np.float64), axes, how, keepdims)
    if axes is None or isinstance(axes, int):
        numpys = getattr(np, how)(x.astype(np.float64), axis=axes, keepdims=keepdims)
        np.testing.assert_array_equal(right, np.atleast_1d(numpys))
    for found in (op.reference(x), interpret_program(Schedule(op).program, [x]).output):
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, right)
    assert operator_from_json(op.to_json()) == op


@settings(max_examples=100, deadline=None)
@given(st.data(), SHAPES, st.booleans())
def test_softmax_matches_numpy(data: st.DataObject, shape: Any, half: bool) -> None:
    axis = draw_axes(data, len(shape))
    op = o.softmax(shape, axis, dtype="float16" if half else "float32")
    (x,) = make_inputs(op)
    powers = np.exp(x.astype(np.float64))
    close(op, op.reference(x), powers / np.sum(powers, axis, keepdims=True))
    assert operator_from_json(op.to_json()) == op


def stretched(column: Array, shape: Any, axes: Any) -> Array:
    """gamma or beta, broadcast to a tensor."""
    over = range(len(shape)) if axes is None else {a % len(shape) for a in np.atleast_1d(axes).tolist()}
    assert column.shape == tuple(shape[d] for d in sorted(over))
    return column.astype(np.float64).reshape([e if d in over else 1 for d, e in enumerate(shape)])


@settings(max_examples=100, deadline=None)
@given(st.data(), SHAPES, st.sampled_from((1e-5, 0.25)), st.booleans())
def test_layer_norm_matches_numpy(data: st.DataObject, shape: Any, eps: float, half: bool) -> None:
    axes = draw_axes(data, len(shape))
    op = o.layer_norm(shape, eps, axes=axes, dtype="float16" if half else "float32")
    x, gamma, beta = make_inputs(op)
    rows = x.astype(np.float64)
    normal = (rows - np.mean(rows, axes, keepdims=True)) / np.sqrt(np.var(rows, axes, keepdims=True) + eps)
    close(
        op,
        op.reference(x, gamma, beta),
        normal * stretched(gamma, shape, axes) + stretched(beta, shape, axes),
    )


@settings(max_examples=100, deadline=None)
@given(st.data(), SHAPES, st.booleans())
def test_rms_norm_matches_numpy(data: st.DataObject, shape: Any, half: bool) -> None:
    axes = draw_axes(data, len(shape))
    op = o.rms_norm(shape, 1e-6, axes=axes, dtype="float16" if half else "float32")
    x, gamma = make_inputs(op)
    rows = x.astype(np.float64)
    normal = rows / np.sqrt(np.mean(rows**2, axes, keepdims=True) + 1e-6)
    close(op, op.reference(x, gamma), normal * stretched(gamma, shape, axes))


def test_norms_default_to_last_axis() -> None:
    for make in (o.layer_norm, o.rms_norm):
        assert make((3, 4, 5)) == make((3, 4, 5), axes=2) == make((3, 4, 5), axes=(-1,))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_row_sums_are_float32(dtype: str) -> None:
    for op in (
        o.softmax((4, 8), dtype=dtype),
        o.layer_norm((4, 8), dtype=dtype),
        o.rms_norm((4, 8), dtype=dtype),
    ):
        assert {c.output.dtype.name for c in op.computes[:-1]} == {"float32"}
        assert {t.dtype.name for t in (*op.inputs, *op.outputs)} == {dtype}


@pytest.mark.parametrize("how", ["max", "min"])
def test_extremes_keep_nan(how: str) -> None:
    op = o.reduce((4, 4), 1, how)
    x = np.array([[1, np.nan, 2, 3], [np.nan] * 4, [np.nan, -1, -2, -3]], np.float32)
    x = np.concatenate([x, np.array([[np.inf, 4, -np.inf, 5]], np.float32)])
    right = [np.nan] * 3 + [np.inf if how == "max" else -np.inf]
    schedule = Schedule(op)
    for found in run_everywhere(schedule, [x]):
        np.testing.assert_array_equal(found, right)


def test_relu_of_nan_is_nan() -> None:
    op = o.compute("relu", axes={"i": 2}, inputs={"x": (2,)}, body=lambda x, i: ex.relu(x[i]))
    x = np.array([np.nan, 2], np.float32)
    for found in run_everywhere(Schedule(op), [x]):
        np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize(("how", "right"), [("sum", 64 * 63 // 2), ("prod", 0), ("max", 63), ("min", 0)])
def test_long_reduction_is_computed_in_slices(how: str, right: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices are taken even where only the reduction axis is long."""
    points = []
    evaluated = reference._evaluate

    def counted(*arguments: Any) -> Any:
        found = evaluated(*arguments)
        points.append(found.size)
        return found

    monkeypatch.setattr(reference, "_POINTS_AT_ONCE", 16)
    monkeypatch.setattr(reference, "_evaluate", counted)
    assert o.reduce((64,), None, how).reference(np.arange(64, dtype=np.float32)).tolist() == [right]
    assert points == [16] * 4
