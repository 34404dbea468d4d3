"""`rfactor` and `pack`: the rewritten graph of computes, and its result."""

from __future__ import annotations

import json

import pytest

import ekc
import ekc.ir.operators as o
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.checks import check_tree


@pytest.mark.parametrize(
    ("schedule", "step", "python"),
    [
        (
            Schedule(o.matmul(8, 12, 64)).rfactor("k", 4),
            '"rfactor", "axis": "k", "parts": 4',
            '.rfactor("k", 4)',
        ),
        (
            Schedule(o.matmul(8, 12, 64)).pack("B", (1, 0)),
            '"pack", "tensor": "B", "order": [1, 0]',
            '.pack("B", (1, 0))',
        ),
    ],
)
def test_operator_of_schedule_and_json_stay(schedule: Schedule, step: str, python: str) -> None:
    assert schedule.op == o.matmul(8, 12, 64)
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert step in schedule.to_json()
    assert python in schedule.to_python()


def test_rfactor_makes_two_computes() -> None:
    program = Schedule(o.matmul(8, 12, 64, dtype="float16")).rfactor("k", 4).program
    assert [str(c) for c in program.op.computes] == [
        "C_parts[k_part, i, j] = sum[k < 16] A[i, k_part * 16 + k] * B[k_part * 16 + k, j]",
        "C[i_, j_] = sum[k_part_ < 4] C_parts[k_part_, i_, j_]",
    ]
    assert str(program.op.tensors["C_parts"]) == "C_parts[4, 8, 12] float32"
    assert str(program.op.outputs[0]) == "C[8, 12] float16"


def test_rfactor_avoids_names_in_use() -> None:
    body = lambda k_part, k, i, C_parts, A: C_parts[k_part, k] * A[k, i]  # noqa: E731
    op = o.compute(
        *("taken",),
        axes={"k_part": 3, "i": 5},
        reduce={"k": 8},
        inputs={"C_parts": (3, 8), "A": (8, 5)},
        body=body,
    )
    schedule = Schedule(op).rfactor("k", 2)
    computes = schedule.program.op.computes
    assert [c.output.name for c in computes[:-1]] == ["C_parts_"]
    assert [a.name for a in computes[0].axes] == ["k_part_", "k_part", "i", "k"]
    check_tree(schedule)


SUMS: dict[str, tuple[Operator, str, int]] = {
    "one of three axes": (o.conv2d(1, 8, 6, 6, out_channels=4, kernel=3, padding=1), "c", 4),
    "greatest": (o.reduce((5, 24), 1, "max"), "k1", 3),
    "dot": (o.einsum("a,a->", (96,), (96,)), "a", 8),
    "integers": (o.matmul(7, 5, 32, dtype="int8", out_dtype="int8"), "k", 2),
    "behind a sum": (o.matmul(6, 10, 32).epilogue(lambda c, bias: ekc.gelu(c + bias), bias=(10,)), "k", 16),
}


@pytest.mark.parametrize("name", SUMS)
def test_rfactor_sums_match_reference(name: str) -> None:
    op, axis, parts = SUMS[name]
    check_tree(Schedule(op).rfactor(axis, parts))


def test_rfactor_of_parts() -> None:
    schedule = Schedule(o.matmul(3, 4, 64)).rfactor("k", 16).rfactor("k_part_", 4).rfactor("k", 2)
    assert len(schedule.program.nests) == 4
    check_tree(schedule)


def test_rfactor_keeps_epilogue_behind_second_launch() -> None:
    op, axis, parts = SUMS["behind a sum"]
    schedule = Schedule(op).rfactor(axis, parts).cache_write("C").compute_inline("C")
    assert [n.output.name for n in schedule.program.nests] == ["C_parts", op.outputs[0].name]
    check_tree(schedule)


def test_pack_copies_input_in_another_order() -> None:
    program = Schedule(o.matmul(8, 12, 64, dtype="float16")).pack("A", (1, 0)).program
    assert [str(c) for c in program.op.computes] == [
        "A_packed[A_1, A_0] = A[A_0, A_1]",
        "C[i, j] = sum[k < 64] A_packed[k, i] * B[k, j]",
    ]
    assert str(program.op.tensors["A_packed"]) == "A_packed[64, 8] float16"


@pytest.mark.parametrize("order", ["10", [1, "0"], [1, 0.0], None])
def test_pack_refuses_order_of_wrong_type_in_json(order: object) -> None:
    text = json.loads(Schedule(o.matmul(8, 12, 64)).pack("B", (1, 0)).to_json())
    text["steps"][0]["order"] = order
    with pytest.raises(InvalidInput, match="order"):
        Schedule.from_json(json.dumps(text))


PACKED: dict[str, tuple[Operator, str, tuple[int, ...]]] = {
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


@pytest.mark.parametrize("name", PACKED)
def test_pack_results_match_reference(name: str) -> None:
    op, tensor, order = PACKED[name]
    check_tree(Schedule(op).pack(tensor, order))


def test_pack_avoids_names_in_use() -> None:
    op = o.compute(
        *("taken",),
        axes={"A_0": 5, "j": 3},
        reduce={"A_packed": 8},
        inputs={"A": (5, 8), "B": (8, 3)},
        body=lambda A, B, A_0, j, A_packed: A[A_0, A_packed] * B[A_packed, j],
    )
    schedule = Schedule(op).pack("A", (1, 0))
    assert str(schedule.program.op.computes[0]) == "A_packed_[A_1, A_0_] = A[A_0_, A_1]"
    check_tree(schedule)


def test_pack_of_all_inputs_before_rfactor() -> None:
    schedule = Schedule(o.matmul(6, 5, 32)).pack("A", (1, 0)).pack("B", (1, 0)).rfactor("k", 4)
    assert len(schedule.program.nests) == 4
    check_tree(schedule)


def test_pack_keeps_epilogue_behind_sum() -> None:
    op, *_ = PACKED["behind a sum"]
    schedule = Schedule(op).pack("A", (1, 0)).cache_write("C").compute_inline("C")
    assert [n.output.name for n in schedule.program.nests] == ["A_packed", op.outputs[0].name]
    check_tree(schedule)
