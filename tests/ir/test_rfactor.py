"""A sum in parts is the sum."""

from __future__ import annotations

import numpy as np
import pytest

import ekc
import ekc.ir.operators as o
from ekc.errors import InvalidInput
from ekc.ir.interpreter.interpret import interpret_program
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule


def test_the_two_computes() -> None:
    program = Schedule(o.matmul(8, 12, 64, dtype="float16")).rfactor("k", 4).program
    assert [str(c) for c in program.op.computes] == [
        "C_parts[k_part, i, j] = sum[k < 16] A[i, k_part * 16 + k] * B[k_part * 16 + k, j]",
        "C[i_, j_] = sum[k_part_ < 4] C_parts[k_part_, i_, j_]",
    ]
    assert str(program.op.tensors["C_parts"]) == "C_parts[4, 8, 12] float32"
    assert str(program.op.outputs[0]) == "C[8, 12] float16"


def test_the_operator_of_the_schedule_is_the_callers() -> None:
    op = o.matmul(8, 12, 64)
    schedule = Schedule(op).rfactor("k", 4)
    assert schedule.op is op
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert '"rfactor", "axis": "k", "parts": 4' in schedule.to_json()


def test_names_that_are_taken() -> None:
    body = lambda k_part, k, i, C_parts, A: C_parts[k_part, k] * A[k, i]  # noqa: E731
    op = o.compute(
        *("taken",),
        axes={"k_part": 3, "i": 5},
        reduce={"k": 8},
        inputs={"C_parts": (3, 8), "A": (8, 5)},
        body=body,
    )
    program = Schedule(op).rfactor("k", 2).program
    assert [c.output.name for c in program.op.computes[:-1]] == ["C_parts_"]
    assert [a.name for a in program.op.computes[0].axes] == ["k_part_", "k_part", "i", "k"]
    assert same(op, Schedule(op).rfactor("k", 2))


OPERATORS: dict[str, tuple[Operator, str, int]] = {
    "one of three axes": (o.conv2d(1, 8, 6, 6, out_channels=4, kernel=3, padding=1), "c", 4),
    "greatest": (o.reduce((5, 24), 1, "max"), "k1", 3),
    "dot": (o.einsum("a,a->", (96,), (96,)), "a", 8),
    "integers": (o.matmul(7, 5, 32, dtype="int8", out_dtype="int8"), "k", 2),
    "behind a sum": (
        o.matmul(6, 10, 32).epilogue(lambda c, bias: ekc.gelu(c + bias), bias=(10,)),
        "k",
        16,
    ),
}


def same(op: Operator, schedule: Schedule) -> bool:
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(-9, 9, t.shape).astype(t.dtype.numpy_dtype)
        if t.dtype.is_integer
        else rng.uniform(-1, 1, t.shape).astype(t.dtype.numpy_dtype)
        for t in op.inputs
    ]
    found = interpret_program(schedule.program, arrays)
    right = op.reference(*arrays).astype(np.float64)
    return bool(found.written_mask.all()) and np.allclose(found.output, right, atol=1e-4)


@pytest.mark.parametrize("name", OPERATORS)
def test_it_is_the_sum(name: str) -> None:
    op, axis, parts = OPERATORS[name]
    assert same(op, Schedule(op).rfactor(axis, parts))


def test_parts_of_parts() -> None:
    op = o.matmul(3, 4, 64)
    schedule = Schedule(op).rfactor("k", 16).rfactor("k_part_", 4).rfactor("k", 2)
    assert len(schedule.program.nests) == 4
    assert same(op, schedule)


def test_an_epilogue_goes_behind_the_second_launch() -> None:
    op, axis, parts = OPERATORS["behind a sum"]
    schedule = Schedule(op).rfactor(axis, parts).cache_write("C").compute_inline("C")
    assert [n.output.name for n in schedule.program.nests] == ["C_parts", op.outputs[0].name]
    assert same(op, schedule)


@pytest.mark.parametrize("parts", [2.0, "2", (2,)])
def test_parts_are_a_number(parts: object) -> None:
    with pytest.raises(InvalidInput, match="rfactor: parts="):
        Schedule(o.matmul(8, 8, 8)).rfactor("k", parts)  # type: ignore[arg-type]
