"""Random schedules compute the result of their operator, and survive JSON and Python text."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from numpy.typing import NDArray

import ekc
from ekc.ir.interpreter.compare import sample_blocks
from ekc.ir.interpreter.interpret import interpret_program
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.operator import Operator
from ekc.ir.printer import format_program
from ekc.ir.schedule import STEP_CLASSES, Step
from ekc.ir.schedule.schedule import Schedule
from tests.ir.strategies import schedules, seeded_schedule

FEW = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
MANY = settings(FEW, max_examples=250)
FAST_SEEDS = 30


def arrays_for(op: Operator, seed: int = 0) -> list[NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return [rng.uniform(-1, 1, t.shape).astype(t.dtype.numpy_dtype) for t in op.inputs]


def tolerance(op: Operator, expected: NDArray[Any]) -> float:
    """One rounding for each term of each sum, in the type with the largest epsilon."""
    eps = max(d.epsilon for c in op.computes for d in (c.acc_dtype, c.output.dtype))
    terms = sum(math.prod(a.extent for a in c.reduction_axes) + 2 for c in op.computes)
    return 2 * eps * terms * max(1.0, float(np.abs(expected).max()))


def assert_same(schedule: Schedule) -> None:
    """A run of all blocks writes every element correctly; a run of some blocks writes the same values."""
    op = schedule.op
    arrays = arrays_for(op)
    expected = op.reference(*arrays).astype(np.float64)
    whole = interpret_program(schedule.program, arrays)
    assert whole.written_mask.all(), f"{(~whole.written_mask).sum()} elements not written\n{schedule}"
    np.testing.assert_allclose(
        whole.output.astype(np.float64), expected, rtol=0, atol=tolerance(op, expected), err_msg=str(schedule)
    )
    last = derive_launches(schedule.program)[-1]
    blocks = sample_blocks(last, 3, seed=1)
    part = interpret_program(schedule.program, arrays, blocks)
    # Blocks that split a reduction are sampled together, as a single one has no result.
    parts = math.prod(int(x.extent) for x in last.block_loops if x.is_reduction)
    assert part.blocks == len(blocks) == len(set(blocks.tolist())) <= 3 * parts
    assert part.written_mask.any()
    np.testing.assert_array_equal(
        part.output[part.written_mask], whole.output[part.written_mask], err_msg=str(schedule)
    )


@FEW
@given(schedules())
def test_random_schedule_matches_reference(schedule: Schedule) -> None:
    assert_same(schedule)


@pytest.mark.slow
@MANY
@given(schedules())
def test_many_random_schedules_match_reference(schedule: Schedule) -> None:
    assert_same(schedule)


@pytest.mark.parametrize(
    "seed", [*range(FAST_SEEDS), *(pytest.param(n, marks=pytest.mark.slow) for n in range(FAST_SEEDS, 100))]
)
def test_fixed_sample_of_long_schedules_matches_reference(seed: int) -> None:
    assert_same(seeded_schedule(seed))


def test_split_sum_of_one_term_matches_reference() -> None:
    schedule = Schedule(ekc.matmul(5, 3, 1)).split("k", (8,)).reorder("i", "k.0", "k.1", "j").cache_write("C")
    assert_same(schedule.cache_read("A", "shared", at="k.0").cache_read("B", "shared", at="k.0"))


@FEW
@given(schedules())
def test_json_and_python_text_round_trip(schedule: Schedule) -> None:
    again = Schedule.from_json(schedule.to_json())
    names = {"ekc": SimpleNamespace(Schedule=Schedule), "op": schedule.op}
    typed = eval(f"({schedule.to_python()})", names)
    assert again == typed == schedule
    assert again.digest == typed.digest == schedule.digest
    assert format_program(again.program) == format_program(typed.program) == format_program(schedule.program)


@FEW
@given(schedules())
def test_numpy_integers_give_the_same_schedule(schedule: Schedule) -> None:
    """Factors may come from an array of a user."""
    typed = Schedule(schedule.op).apply_steps(*(replace(s, **_with_numpy(s)) for s in schedule.steps))
    assert typed == schedule
    assert (typed.to_json(), typed.to_python()) == (schedule.to_json(), schedule.to_python())


def _with_numpy(step: Step) -> dict[str, Any]:
    def numpy(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(numpy, value))
        return np.int64(value) if isinstance(value, int) else value

    return {f.name: numpy(getattr(step, f.name)) for f in fields(step)}


@pytest.mark.slow
def test_random_schedules_have_every_step_and_rare_shapes() -> None:
    sample = [seeded_schedule(seed) for seed in range(600)]
    kinds = Counter(step.kind for schedule in sample for step in schedule.steps)
    # Lanes of a tensorized loop need the layout of the instruction; `tensor_examples` has those.
    assert set(kinds) == set(STEP_CLASSES) - {"tensorize"}
    assert min(kinds.values()) >= 5, kinds
    assert max(len(s.steps) for s in sample) == 20
    nests = [kernel for s in sample for kernel in derive_launches(s.program)]
    assert any(x.is_thread and x.is_reduction for k in nests for x in k.nest.loops), "no sum across lanes"
    assert any(s.source != s.tensor for k in nests for s in k.nest.stagings), "no copy of a copy"
    assert any(s.producer for k in nests for s in k.nest.stagings), "no fused producer"
    assert any(k.nest.epilogue for k in nests), "no epilogue"
    assert any(x.is_block and x.is_reduction for k in nests for x in k.nest.loops), (
        "no reduction split over blocks"
    )
