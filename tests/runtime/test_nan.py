"""NaN and infinities: reference, evaluator and executed PTX agree on where they are, for every float type and
target, whatever a kernel does with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import ekc.ir.operators as o
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from ekc.ir import expr as ex
from ekc.ir.analysis.analysis import quantities
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.ir.hardware.target import LaunchLimits, restrict_to_arch
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.ptx.counting.counts import count_instructions
from tests.codegen import samples
from tests.drawn.checks import run_everywhere
from tests.ir.tensor_examples import half_matmul
from tests.ir.tilings import reduce_over_lanes

ODD = (np.nan, np.inf, -np.inf)
OLD, AMPERE, HOPPER = "sm_75", "sm_80", "sm_90"


def _over_lanes(combine: str, dtype: str) -> Schedule:
    """Rows reduced in registers, then across eight lanes; tails in both axes."""
    return reduce_over_lanes(Schedule(o.reduce((5, 45), 1, combine, dtype=dtype)), "Y", "i0", "k1", (8, 3))


def _in_parts(combine: str, dtype: str) -> Schedule:
    """Two launches: equal parts, each by a block of its own, then the parts."""
    s = Schedule(o.reduce((3, 32), 1, combine, dtype=dtype)).rfactor("k1", 4)
    return s.bind("k1_part", "block.x").bind("i0", "thread.x").cache_write("Y")


def _functions(dtype: str) -> Schedule:
    """A chain of all functions: a NaN that one of them loses does not come back."""

    def body(x: Any, i: Any) -> ex.Expr:
        bounded = ex.maximum(ex.minimum(x[i], 2), -2)
        return ex.relu(ex.gelu(ex.silu(ex.sigmoid(ex.exp(ex.erf(ex.tanh(ex.abs(bounded))))))))

    op = o.compute("chain", axes={"i": 24}, inputs={"x": (24,)}, body=body, output="y", dtype=dtype)
    return Schedule(op).bind("i", "thread.x")


def _between(dtype: str) -> Schedule:
    """The larger and the smaller of two tensors, on either side."""

    def body(a: Any, b: Any, i: Any) -> ex.Expr:
        return ex.maximum(a[i], b[i]) - ex.minimum(b[i + 1], a[i])

    op = o.compute("between", axes={"i": 16}, inputs={"a": (16,), "b": (17,)}, body=body, dtype=dtype)
    return Schedule(op).bind("i", "thread.x")


def _layer(dtype: str) -> Schedule:
    """A product whose bias and activation are applied where it is written."""
    op = o.matmul(6, 5, 7, dtype=dtype).epilogue(lambda c, bias: ex.relu(c + bias), bias=(5,))
    return Schedule(op).bind("i", "thread.y").bind("j", "thread.x").cache_write("C").compute_inline("C")


def _clipped_convolution(dtype: str) -> Schedule:
    """Padding, whose zeros meet infinite weights, and tiles that exceed the tensor."""
    op = o.conv1d(1, 3, 9, out_channels=4, kernel=3, padding=1, dtype=dtype)
    op = op.epilogue(lambda y: ex.minimum(ex.relu(y), 6))
    s = Schedule(op).split("c", (2,)).bind("o", "thread.x").cache_write("Y").compute_inline("Y")
    return s.cache_read("X", "shared", at="c.0").cache_read("W", "shared", at="c.0")


def _softmax(dtype: str) -> Schedule:
    return samples.softmax(5, 72, dtype=dtype)


KERNELS: dict[str, tuple[Callable[[], Schedule], str]] = {
    "max over lanes, float32": (lambda: _over_lanes("max", "float32"), OLD),
    "min over lanes, bfloat16": (lambda: _over_lanes("min", "bfloat16"), OLD),
    "max over lanes, float16": (lambda: _over_lanes("max", "float16"), AMPERE),
    "min over lanes, float32": (lambda: _over_lanes("min", "float32"), HOPPER),
    "max in parts": (lambda: _in_parts("max", "float16"), OLD),
    "min in parts": (lambda: _in_parts("min", "float32"), AMPERE),
    "softmax, float16": (lambda: _softmax("float16"), OLD),
    "softmax, float32": (lambda: _softmax("float32"), HOPPER),
    "functions, float32": (lambda: _functions("float32"), OLD),
    "functions, bfloat16": (lambda: _functions("bfloat16"), AMPERE),
    "two tensors, float16": (lambda: _between("float16"), OLD),
    "two tensors, float32": (lambda: _between("float32"), AMPERE),
    "layer, tf32": (lambda: _layer("tf32"), OLD),
    "layer, float32": (lambda: _layer("float32"), HOPPER),
    "convolution": (lambda: _clipped_convolution("bfloat16"), OLD),
    "on the spot": (lambda: samples.relu_matmul("float16"), AMPERE),
    "atomic sums": (lambda: samples.shared_sum(6, 5, 260), OLD),
    "tensor cores": (lambda: half_matmul(32, 32, 32), AMPERE),
}


@cache
def made(name: str) -> tuple[Schedule, CompiledKernel]:
    schedule, arch = KERNELS[name][0](), KERNELS[name][1]
    return schedule, compile_schedule(schedule, arch)


def spoiled(op: Operator, draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[NDArray[Any]]:
    """Ordinary inputs with NaN and infinities at a few drawn places."""
    arrays = [a.copy() for a in make_random_input_arrays(op)]
    for array in arrays:
        places = draw(st.lists(st.integers(0, array.size - 1), max_size=3))
        for place in places:
            array.reshape(-1)[place] = draw(st.sampled_from(ODD))
    return arrays


def agree(found: NDArray[Any], right: NDArray[Any]) -> None:
    """NaN where NaN is right, infinities too, and the rest but for rounding."""
    tolerance = {"float16": 4e-2, "bfloat16": 2e-1}.get(right.dtype.name, 2e-3)
    np.testing.assert_allclose(
        found.astype(np.float64), right.astype(np.float64), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("name", KERNELS)
@settings(max_examples=8)
@given(data=st.data())
def test_nan_and_infinities_are_where_the_reference_has_them(name: str, data: st.DataObject) -> None:
    schedule, compiled = made(name)
    arrays = spoiled(schedule.op, data.draw)
    right, interpreted, executed = run_everywhere(schedule, arrays, compiled)
    agree(interpreted, right)
    agree(executed, right)


@pytest.mark.parametrize("name", KERNELS)
def test_nan_in_each_input_reaches_the_result(name: str) -> None:
    schedule, compiled = made(name)
    for number in range(len(schedule.op.inputs)):
        arrays = [a.copy() for a in make_random_input_arrays(schedule.op)]
        arrays[number].reshape(-1)[0] = np.nan
        for found in run_everywhere(schedule, arrays, compiled):
            assert np.isnan(found.astype(np.float32)).any()


@pytest.mark.parametrize("combine", ["max", "min"])
@pytest.mark.parametrize(("arch", "selects"), [(OLD, True), (AMPERE, False), (HOPPER, False)])
def test_nan_keeping_instruction_is_used_where_it_exists(combine: str, arch: str, selects: bool) -> None:
    ptx = compile_schedule(_over_lanes(combine, "float32"), arch).ptx
    plain, kept = (len(re.findall(rf"\b{combine}{way}\.f32", ptx)) for way in ("", r"\.NaN"))
    assert (plain > 0, kept > 0) == (selects, not selects)
    assert len(re.findall(r"selp\.f32\s[^;]*0f7FFFFFFF", ptx)) == plain


def _counted(schedule: Schedule, arch: str) -> tuple[float, float]:
    """Instructions of the arithmetic pipes, as the analysis counts them and as the simulated device does."""
    compiled = compile_schedule(schedule, arch)
    limits = restrict_to_arch(LaunchLimits(), arch)
    run = [
        (count_instructions(compiled.ptx, x.name), np.prod([*x.grid, *x.block]) / 32)
        for x in compiled.launches
    ]
    pipes = sum((c.fp32 + c.int_ops) * warps for c, warps in run)
    return float(quantities(schedule.program, limits)["total_operations"]), float(pipes)


def _whole_warps(combine: str) -> Schedule:
    """A row for each warp, no tail: the registers of 32 lanes, then five shuffles."""
    s = Schedule(o.reduce((4, 128), 1, combine)).split("k1", (32,)).reorder("i0", "k1.1", "k1.0")
    return s.bind("i0", "block.x").bind("k1.1", "thread.x").cache_write("Y")


def _elementwise(combine: str) -> Schedule:
    fold = ex.maximum if combine == "max" else ex.minimum
    op = o.compute("fold", axes={"i": 64}, inputs={"x": (64,)}, body=lambda x, i: fold(fold(x[i], 1), -x[i]))
    return Schedule(op).split("i", (32,)).bind("i.0", "block.x").bind("i.1", "thread.x")


def _behind(combine: str) -> Schedule:
    fold = ex.maximum if combine == "max" else ex.minimum
    op = o.matmul(4, 32, 8).epilogue(lambda c: fold(c, 0))
    return Schedule(op).bind("i", "block.x").bind("j", "thread.x").cache_write("C").compute_inline("C")


@pytest.mark.parametrize("make", [_whole_warps, _elementwise, _behind])
@pytest.mark.parametrize("combine", ["max", "min"])
def test_analysis_and_simulated_device_count_the_selects(
    make: Callable[[str], Schedule], combine: str
) -> None:
    schedule = make(combine)
    old, new = (_counted(schedule, arch) for arch in (OLD, AMPERE))
    assert old[0] - new[0] == old[1] - new[1] > 0


def test_integers_need_no_selects() -> None:
    op = o.reduce((4, 64), 1, "max", dtype="int32")
    old, new = (_counted(Schedule(op), arch) for arch in (OLD, AMPERE))
    assert old == new


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "tf32"])
def test_factors_are_not_summed_before_they_meet_an_infinity(dtype: str) -> None:
    """2 * inf - inf is NaN, though (2 - 1) * inf is not."""
    op = o.einsum("ij,k->k", (1, 2), (2,), dtype=dtype)
    a, b = (
        np.array([[2, -1]], op.inputs[0].dtype.numpy_dtype),
        np.array([np.inf, 3], op.inputs[1].dtype.numpy_dtype),
    )
    schedule = Schedule(op).cache_write("C")
    for found in run_everywhere(schedule, [a, b], compile_schedule(schedule, OLD)):
        np.testing.assert_array_equal(found.astype(np.float32), [np.nan, 3])
