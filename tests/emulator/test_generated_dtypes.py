"""Generated kernels of every element type: conversions bit by bit, sums across lanes, wide moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import ekc.ir.operators as o
from ekc.codegen.generate import compile_schedule, generate
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.ir.dtypes import round_to_tf32
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.execute import execute
from tests.codegen import samples
from tests.drawn.schedules import keep_legal
from tests.drawn.types import TRIPLES, Types, retyped
from tests.emulator.generated import run
from tests.emulator.predicted import TRAFFIC, check_traffic

ARCHS = ("sm_75", "sm_80")
"""Without and with the instructions that round to bfloat16 and tf32."""


@pytest.mark.parametrize("types", TRIPLES, ids="-".join)
def test_every_choice_of_types_matches_reference(types: Types) -> None:
    arch = ARCHS[TRIPLES.index(types) % 2]
    drawn = samples.small_matmul(18, 36, 8, vector=2)
    run(keep_legal(drawn, retyped(drawn.op, types)), arch).check()


WORDS = np.random.default_rng(1).integers(0, 2**32, 4096).astype(np.uint32)
# Halves between two results, even and odd below; the largest numbers; NaN, infinity; the smallest.
# fmt: off
EDGES = np.array([
    0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0xBF808000, 0x3F801000, 0x3F803000, 0x3F800FFF,
    0x7F7FFFFF, 0xFF7FFFFF, 0x7F7F7FFF, 0x7FFFFFFF, 0x7FC00000, 0xFF800001, 0x7F800000, 0xFF800000,
    0x00000001, 0x80000001, 0x00008000, 0x00018000, 0x00001000, 0x00003000, 0x80000000, 0x00000000,
], np.uint32)
# fmt: on
FLOATS = np.concatenate([EDGES, WORDS]).view(np.float32)
INTS = np.concatenate([np.array([-(2**31), 2**31 - 1]), np.arange(-200, 200)]).astype(np.int32)
BRAINS = np.arange(2**16).astype(np.uint16).view(ml_dtypes.bfloat16)
Passage = tuple[str, str, NDArray[Any], Callable[[NDArray[Any]], NDArray[Any]]]
PASSAGES: dict[str, Passage] = {
    "to bfloat16": ("float32", "bfloat16", FLOATS, lambda x: x.astype(ml_dtypes.bfloat16)),
    "from bfloat16": ("bfloat16", "float32", BRAINS, lambda x: x.astype(np.float32)),
    "tf32": ("tf32", "float32", FLOATS, round_to_tf32),
    "to int8": ("int32", "int8", INTS, lambda x: np.clip(x, -128, 127).astype(np.int8)),
    "int32 to float32": ("int32", "float32", INTS, lambda x: x.astype(np.float32)),
    "int8 to int32": ("int8", "int32", np.arange(-128, 128).astype(np.int8), lambda x: x.astype(np.int32)),
}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", PASSAGES)
def test_conversions_are_exact(name: str, arch: str) -> None:
    source, target, values, convert = PASSAGES[name]
    found = run_schedule(make_copy(values.size, source, target), arch, values)
    with np.errstate(all="ignore"):
        expected = convert(values)
    number = expected == expected
    word = np.dtype(f"u{expected.dtype.itemsize}")
    np.testing.assert_array_equal(found.view(word)[number], expected.view(word)[number])
    assert np.isnan(found[~number]).all()


def make_copy(elements: int, dtype: str, out: str) -> Schedule:
    op = o.compute(
        "copied", axes={"i": elements}, inputs={"X": (elements,)}, body=lambda X, i: X[i], output="Y",
        dtype=dtype, out_dtype=out,
    )  # fmt: skip
    return Schedule(op).split("i", (128,)).bind("i.0", "block.x").bind("i.1", "thread.x")


def run_schedule(schedule: Schedule, arch: str, *arrays: NDArray[Any]) -> NDArray[Any]:
    """The output of a kernel without findings."""
    last = execute(schedule.op, compile_schedule(schedule, arch), arrays)[-1]
    assert last.report.findings == ()
    assert last.is_written.all()
    return last.output


def test_sixteen_int8_move_in_one_access() -> None:
    op = o.compute(
        "wide", axes={"i": 3, "j": 256}, inputs={"X": (3, 256)}, body=lambda X, i, j: X[i, j], output="Y",
        dtype="int8", out_dtype="int8",
    )  # fmt: skip
    schedule = Schedule(op).split("j", (16,)).bind("i", "block.x").bind("j.0", "thread.x").vectorize("j.1")
    assert "1 x char16" in str(schedule)
    ptx = compile_schedule(schedule).ptx
    assert "ld.global.nc.v4.u32" in ptx
    assert "st.global.v4.u32" in ptx
    (x,) = make_random_input_arrays(op)
    np.testing.assert_array_equal(run_schedule(schedule, "sm_80", x), x)


@pytest.mark.parametrize("combine", ["sum", "max", "min"])
def test_integers_combine_across_lanes(combine: str) -> None:
    op = make_reduction(combine)
    s = Schedule(op).split("k", (32,)).reorder("i", "k.1", "k.0")
    schedule = s.bind("i", "block.x").bind("k.1", "thread.x").cache_write("C")
    (x,) = make_random_input_arrays(op)
    np.testing.assert_array_equal(run_schedule(schedule, "sm_80", x), op.reference(x))


def make_reduction(combine: str) -> Operator:
    """Beyond the ragged end there must be nothing that counts: values lie above 0 or below."""
    away = {"sum": 3, "max": -200, "min": 200}[combine]
    return o.compute(
        "reduced", axes={"i": 5}, reduce={"k": 45}, inputs={"x": (5, 45)}, combine=combine, dtype="int8",
        body=lambda x, i, k: x[i, k] + away,
    )  # fmt: skip


def test_nvrtc_uses_dot_products_of_four_int8() -> None:
    """A product unrolled along its reduction becomes dp4a; the machine runs it."""
    s = Schedule(o.matvec(32, 64, dtype="int8")).split("k", (16,)).bind("i", "thread.x").cache_write("y")
    for tensor in ("A", "x"):
        s = s.cache_read(tensor, "register", at="k.0", vector=16)
    schedule = s.unroll("k.1")
    arrays = make_random_input_arrays(schedule.op)
    assert "dp4a.s32.s32" in compile_schedule(schedule).ptx
    np.testing.assert_array_equal(run_schedule(schedule, "sm_80", *arrays), schedule.op.reference(*arrays))


@pytest.mark.parametrize("columns", [32, 33, 40, 63])
def test_sectors_of_single_bytes_are_predicted_exactly(columns: int) -> None:
    """Rows of any length, so that warps start at any byte."""
    op = o.compute(
        "cut", axes={"i": 64, "j": 32}, inputs={"X": (64, columns)}, body=lambda X, i, j: X[i, j], output="Y",
        dtype="int8",
    )  # fmt: skip
    ran = run(Schedule(op).bind("i", "block.x").bind("j", "thread.x"))
    check_traffic(ran, TRAFFIC)


@pytest.mark.parametrize(("register", "vector"), [(False, 1), (True, 1), (True, 2)])
@pytest.mark.parametrize("rows", [1, 2])
def test_pairs_of_int8_rows_match_reference(rows: int, register: bool, vector: int) -> None:
    """NVRTC 13.5 forms wrong dot products from bytes 0 and 2 of a word; `widen_int8` keeps it from that."""
    schedule = samples.int8_pairs(register=register, rows=rows, vector=vector)
    assert "widen_int8(" in generate(schedule).source
    run(schedule).check()


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_int8_steps_match_reference(step: int) -> None:
    schedule = samples.int8_steps(step)
    assert ("widen_int8(" in generate(schedule).source) == (step == 2)
    run(schedule).check()


def test_four_columns_of_int8_keep_dot_products() -> None:
    schedule = samples.int8_pairs(columns=4)
    assert "widen_int8(" not in generate(schedule).source
    assert "dp2a" in compile_schedule(schedule).ptx
    run(schedule).check()
