"""A packed input is read as the input was."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ekc
import ekc.ir.operators as o
from ekc.errors import InvalidInput
from ekc.ir.interpreter.compare import make_random_input_arrays
from ekc.ir.interpreter.interpret import interpret_program
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule


def test_the_docstrings_example() -> None:
    program = Schedule(o.matmul(8, 12, 64, dtype="float16")).pack("A", (1, 0)).program
    assert [str(c) for c in program.op.computes] == [
        "A_packed[A_1, A_0] = A[A_0, A_1]",
        "C[i, j] = sum[k < 64] A_packed[k, i] * B[k, j]",
    ]
    assert str(program.op.tensors["A_packed"]) == "A_packed[64, 8] float16"


def test_the_operator_of_the_schedule_is_the_callers() -> None:
    op = o.matmul(8, 12, 64)
    schedule = Schedule(op).pack("B", (1, 0))
    assert schedule.op is op
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert '"pack", "tensor": "B", "order": [1, 0]' in schedule.to_json()
    assert '.pack("B", (1, 0))' in schedule.to_python()


@pytest.mark.parametrize("order", ["10", [1, "0"], [1, 0.0], None])
def test_an_order_in_a_file_that_is_none(order: object) -> None:
    text = json.loads(Schedule(o.matmul(8, 12, 64)).pack("B", (1, 0)).to_json())
    text["steps"][0]["order"] = order
    with pytest.raises(InvalidInput, match="order"):
        Schedule.from_json(json.dumps(text))


def same(op: Operator, schedule: Schedule) -> bool:
    arrays = make_random_input_arrays(op)
    found = interpret_program(schedule.program, arrays)
    right = op.reference(*arrays).astype(np.float64)
    near = np.allclose(found.output.astype(np.float64), right, rtol=1e-2, atol=1e-2)
    return bool(found.written_mask.all()) and near


CASES: dict[str, tuple[Operator, str, tuple[int, ...]]] = {
    "image": (o.conv2d(2, 8, 6, 6, out_channels=4, kernel=3, padding=1, dtype="float16"), "X", (0, 2, 3, 1)),
    "weights": (o.conv2d(2, 8, 6, 6, out_channels=4, kernel=3, groups=2), "W", (3, 2, 1, 0)),
    "three dimensions": (o.einsum("abc,cd->dba", (3, 7, 16), (16, 12)), "A", (2, 0, 1)),
    "integers": (o.matmul(7, 5, 32, dtype="int8", out_dtype="int8"), "A", (1, 0)),
    "bfloat16": (o.matmul(7, 5, 32, dtype="bfloat16"), "B", (1, 0)),
    "read by two": (o.softmax((5, 9)), "X", (1, 0)),
    "behind a sum": (
        o.matmul(6, 10, 32).epilogue(lambda c, before: ekc.relu(c + before), before=(6, 10)),
        "before",
        (1, 0),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_operator(name: str) -> None:
    op, tensor, order = CASES[name]
    assert same(op, Schedule(op).pack(tensor, order))


def test_names_that_are_taken() -> None:
    op = o.compute(
        *("taken",),
        axes={"A_0": 5, "j": 3},
        reduce={"A_packed": 8},
        inputs={"A": (5, 8), "B": (8, 3)},
        body=lambda A, B, A_0, j, A_packed: A[A_0, A_packed] * B[A_packed, j],
    )
    schedule = Schedule(op).pack("A", (1, 0))
    assert str(schedule.program.op.computes[0]) == "A_packed_[A_1, A_0_] = A[A_0_, A_1]"
    assert same(op, schedule)


def test_all_inputs_and_then_parts_of_the_sum() -> None:
    op = o.matmul(6, 5, 32)
    schedule = Schedule(op).pack("A", (1, 0)).pack("B", (1, 0)).rfactor("k", 4)
    assert len(schedule.program.nests) == 4
    assert same(op, schedule)


def test_an_epilogue_goes_behind_the_sum_all_the_same() -> None:
    op, *_ = CASES["behind a sum"]
    schedule = Schedule(op).pack("A", (1, 0)).cache_write("C").compute_inline("C")
    assert [n.output.name for n in schedule.program.nests] == ["A_packed", op.outputs[0].name]
    assert same(op, schedule)
