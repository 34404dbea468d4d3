"""Roofline bounds and break-even calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ekc
from ekc.search.data.result import compute_break_even_calls, compute_roofline_bound, get_arithmetic_type


@pytest.mark.parametrize(
    ("best", "other", "calls"), [(1.0, 3.0, 500.0), (3.0, 3.0, None), (3.0, 1.0, None), (None, 1.0, None)]
)
def test_break_even_calls_equal_hand_computed_values(
    best: float | None, other: float | None, calls: float | None
) -> None:
    assert compute_break_even_calls(1000.0, best, other) == calls


@pytest.mark.parametrize(
    ("types", "bound"),
    [
        ({}, "float32"),
        ({"dtype": "tf32"}, "tf32"),
        ({"dtype": "bfloat16", "out_dtype": "float32"}, "bfloat16"),
        ({"dtype": "int8"}, "int8"),
        ({"dtype": "int8", "acc_dtype": "float32"}, "float32"),
    ],
)
def test_arithmetic_type_depends_on_inputs_and_accumulator(types: dict[str, str], bound: str) -> None:
    assert get_arithmetic_type(ekc.matmul(8, 8, 8, **types)) == bound


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (ekc.matmul(256, 256, 256), "arithmetic: 17.6 TFLOP/s of float32 (NVIDIA A100 "),
        (ekc.matmul(4096, 4096, 4096, dtype="float16"), "arithmetic: 282 TFLOP/s of float16 (NVIDIA A100 "),
        (ekc.matmul(4096, 4096, 4096, dtype="int8"), "arithmetic: 564 TOP/s of int8 (NVIDIA A100 "),
        (ekc.matvec(256, 256), "compulsory memory traffic: 1,555 GB/s (NVIDIA A100 "),
    ],
)
def test_roofline_bound_names_ceiling_and_source(op: ekc.Operator, words: str) -> None:
    peaks = ekc.devices.open("a100").peaks
    assert str(compute_roofline_bound(op, peaks)).startswith(words)
    assert str(compute_roofline_bound(op, replace(peaks, source=""))) == words.partition(" (")[0]
    arithmetic, traffic = op.flops / peaks.flops_by_type[get_arithmetic_type(op)], op.min_bytes / 1555e9
    assert compute_roofline_bound(op, peaks).least_s == max(arithmetic, traffic)
