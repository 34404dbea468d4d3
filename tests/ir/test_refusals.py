"""One mistake each: the refusal names the rule, what was needed, the limit and the nearest legal choice."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import ekc.ir.operators as o
from ekc.errors import InvalidInput, ScheduleError
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.schedule import STEP_CLASSES
from ekc.ir.schedule.schedule import Schedule
from tests.ir.mistakes_in_atomic import ATOMIC_MISTAKES
from tests.ir.mistakes_in_divide import DIVIDE_MISTAKES
from tests.ir.mistakes_in_inlining import INLINING_MISTAKES
from tests.ir.mistakes_in_loops import LOOP_MISTAKES
from tests.ir.mistakes_in_pack import PACK_MISTAKES
from tests.ir.mistakes_in_rfactor import RFACTOR_MISTAKES
from tests.ir.mistakes_in_stagings import STAGING_MISTAKES
from tests.ir.mistakes_in_tensorize import TENSOR_MISTAKES, asked
from tests.ir.mistakes_in_warpgroups import WARPGROUP_MISTAKES
from tests.ir.starts import chain, product, staged

CASES = (
    LOOP_MISTAKES
    | DIVIDE_MISTAKES
    | PACK_MISTAKES
    | STAGING_MISTAKES
    | INLINING_MISTAKES
    | TENSOR_MISTAKES
    | WARPGROUP_MISTAKES
    | RFACTOR_MISTAKES
    | ATOMIC_MISTAKES
)


def refused(mistake: Callable[[], Schedule]) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        mistake()
    return caught.value


def derived(s: Schedule) -> Schedule:
    """The schedule, once its kernels are worked out: some refusals come only then."""
    derive_launches(s.program)
    return s


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_refused_in_words(name: str) -> None:
    mistake, rule, need, limit, nearest = CASES[name]
    error = refused(mistake)
    refusal = error.refusal
    assert re.fullmatch(rule, refusal.rule)
    assert re.search(need, refusal.need), refusal.need
    assert re.search(limit, refusal.limit), refusal.limit
    assert re.search(nearest, refusal.nearest), refusal.nearest


@pytest.mark.parametrize("name", CASES)
def test_every_refusal_is_one_whole_line(name: str) -> None:
    error = refused(CASES[name][0])
    parts = (error.refusal.rule, error.refusal.need, error.refusal.limit, error.refusal.nearest)
    assert all(part.strip() for part in parts)
    assert "\n" not in str(error)
    assert all(part in str(error) for part in parts)


def test_every_step_refuses_something() -> None:
    assert {case[1].split()[0] for case in CASES.values()} == set(STEP_CLASSES)


FOLLOWED: dict[str, Callable[[str], Schedule]] = {
    # The nearest choice is a name or number that can be put in the mistake's place.
    "split inner piece": lambda near: product().split("i", (12,)).split("i.1", (int(near),)),
    "split fused": lambda near: product().fuse("i", "j").split("i_j", (6,)).split("i_j.1", (int(near),)),
    "split by 0": lambda near: product().split("i", (int(near),)),
    "fuse unknown": lambda near: product().fuse("i", near),
    "bind level": lambda near: product().bind("i", near),
    "bind unknown loop": lambda near: product().bind(near, "block.x"),
    "unroll 0": lambda near: product().unroll("k", int(near)),
    "pipeline 3": lambda near: staged().pipeline("k.0", int(near)),
    "pipeline async 1": lambda near: staged().pipeline("k.0", int(near), "async"),
    "pipeline async 7": lambda near: staged().pipeline("k.0", int(near), "async"),
    "pipeline copy": lambda near: staged().pipeline("k.0", 3, copy=near),
    "atomic unknown": lambda near: product().atomic(near),
    "rfactor tail": lambda near: product().rfactor("k", int(near)),
    "cache_read tensor": lambda near: product().cache_read(near, "shared"),
    "cache_read scope": lambda near: product().cache_read("A", near),
    "cache_read at": lambda near: product().cache_read("A", "shared", at=near),
    "cache_read vector": lambda near: product().cache_read("A", "shared", vector=int(near)),
    "cache_read order": lambda near: product().cache_read("A", "shared", order=eval(near)),
    "cache_read around": lambda near: product().cache_read("A", "shared").cache_read(near, "register"),
    "cache_read outside": lambda near: (
        product().cache_read("A", "shared", at="k").cache_read("A.shared", "register", at=near)
    ),
    "cache_write tensor": lambda near: product().cache_write(near),
    "cache_write scope": lambda near: product().cache_write("C", near),
    "compute_at nearest": lambda near: staged().compute_at(near, "k.0"),
    "compute_at inwards": lambda near: staged().compute_at("A.shared", near),
    "compute_inline unknown": lambda near: chain().compute_inline(near),
    "compute_at outwards": lambda near: staged().compute_at("A.register", near),
    "tensorize instruction": lambda near: asked("k.2", near),
    "tensorize outer loop": lambda near: asked(near, "mma.m16n8k16"),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_the_nearest_choice_is_legal(name: str) -> None:
    near = refused(CASES[name][0]).refusal.nearest
    assert derive_launches(FOLLOWED[name](near.strip("'")).program)


def test_a_copy_along_half_a_quotient_is_refused() -> None:
    op = o.compute(
        "pairs", axes={"i": 12, "j": 4}, reduce={"k": 4}, inputs={"A": (6, 4), "B": (4, 4)},
        body=lambda A, B, i, j, k: A[i // 2, k] * B[k, j],
    )  # fmt: skip
    s = Schedule(op).split("i", (6,)).reorder("i.0", "j", "k", "i.1").cache_read("A", "shared", at="k")
    error = refused(lambda: derived(s))
    assert "fused index" in error.refusal.need
    assert "stage at another loop" in error.refusal.nearest


def test_fused_pieces_of_one_axis_out_of_order_are_refused_to_an_accumulator() -> None:
    s = Schedule(o.matvec(16, 4)).split("i", (2, 4)).reorder("i.0", "k", "i.2", "i.1").fuse("i.2", "i.1")
    s = s.split("i.2_i.1", (8,)).bind("i.0", "block.x").cache_write("y")
    assert derive_launches(s.program), "eight elements in another order are still eight"
    s = (
        Schedule(o.matvec(16, 4))
        .split("i", (2, 4))
        .split("i.2", (2,))
        .reorder("i.0", "i.2.0", "k", "i.2.1", "i.1")
    )
    s = s.fuse("i.2.1", "i.1").cache_write("y")
    error = refused(lambda: derived(s))
    assert "without gaps" in error.refusal.need


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: product().split("i", 4), r"split: factors=4 is not a tuple"),  # type: ignore[arg-type]
        (lambda: product().split("i", (2.5,)), r"factors=\(2.5,\).*whole number"),  # type: ignore[arg-type]
        (lambda: product().split("i", (True,)), "whole number"),
        (lambda: product().split(3, (2,)), "split: loop=3 is not text"),  # type: ignore[arg-type]
        (lambda: product().unroll("k", "2"), "unroll: factor='2' is not a whole number"),  # type: ignore[arg-type]
        (lambda: product().cache_read("A", "shared", at=1), "at=1 is not text"),  # type: ignore[arg-type]
        (lambda: product().cache_read("A", "shared", order="10"), "order='10' is not a tuple"),  # type: ignore[arg-type]
    ],
)
def test_a_value_of_the_wrong_type_is_one_line(wrong: Callable[[], Schedule], words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        wrong()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "needs format, operator and steps"),
        ('{"format": 9, "operator": {}, "steps": []}', "format 9"),
        ('{"format": 1, "operator": {}, "steps": []}', "operator: not the JSON of one"),
        ("STEP:7", "not a JSON object"),
        ('STEP:{"step": "splt"}', "nearest is 'split'"),
        ('STEP:{"step": "split", "loop": "i", "factor": [2]}', "nearest is 'factors'"),
        ('STEP:{"step": "split", "loop": "i"}', "factors"),
        ('STEP:{"step": "split", "loop": "i", "factors": 2}', "not a tuple"),
    ],
)
def test_json_that_is_no_schedule_is_one_line(text: str, words: str) -> None:
    if text.startswith("STEP:"):
        text = product().to_json().replace('"steps": []', f'"steps": [{text[5:]}]')
    with pytest.raises(InvalidInput, match=words):
        Schedule.from_json(text)
