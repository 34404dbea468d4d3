"""Mistakes in schedules, by API and from files: each is refused in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ekc.ir.operators as o
from ekc.errors import EkcError, InvalidInput, ScheduleError
from ekc.ir import schedule
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.schedule import STEP_CLASSES
from ekc.ir.schedule.schedule import Schedule
from tests.ir import mma_starts, starts, tensor_examples, wgmma_starts
from tests.ir.starts import chain, product, staged

MISTAKES = Path(__file__).with_name("mistakes.txt")
NAMES = (
    vars(schedule)
    | vars(tensor_examples)
    | vars(starts)
    | {"replace": replace, "mma": mma_starts, "wgmma": wgmma_starts}
)
"""Names that the schedules of the table may use."""


def read_mistakes(path: Path = MISTAKES) -> dict[str, tuple[str, str]]:
    """(schedule text, message) by name: a line "name | schedule", then the message, indented."""
    lines = [x for x in path.read_text().splitlines() if not x.startswith("#")]
    rows = (
        (*first.split(" | ", 1), message.strip())
        for first, message in zip(lines[::2], lines[1::2], strict=True)
    )
    return {name: (text, message) for name, text, message in rows}


CASES = read_mistakes()


def refused(mistake: Callable[[], Schedule]) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        mistake()
    return caught.value


def derived(s: Schedule) -> Schedule:
    """The schedule after its launches are derived: some refusals come only there."""
    derive_launches(s.program)
    return s


def refuse_case(name: str) -> ScheduleError:
    """The error of a mistake of the table."""
    return refused(lambda: eval(CASES[name][0], dict(NAMES)))


@pytest.mark.parametrize("name", CASES)
def test_mistake_is_refused_in_one_line(name: str) -> None:
    error = refuse_case(name)
    assert str(error) == CASES[name][1]
    refusal = error.refusal
    assert all(part.strip() for part in (refusal.rule, refusal.need, refusal.limit, refusal.nearest))


def test_every_step_has_a_mistake() -> None:
    assert {re.split("[ :]", message)[0] for _, message in CASES.values()} == set(STEP_CLASSES)


FOLLOWED: dict[str, Callable[[str], Schedule]] = {
    # The nearest choice is a name or number that can be put in the mistake's place.
    "split inner piece": lambda near: product().split("i", (12,)).split("i.1", (int(near),)),
    "split fused": lambda near: product().fuse("i", "j").split("i_j", (6,)).split("i_j.1", (int(near),)),
    "split by 0": lambda near: product().split("i", (int(near),)),
    "fuse unknown": lambda near: product().fuse("i", near),
    "bind level": lambda near: product().bind("i", near),
    "bind unknown loop": lambda near: product().bind(near, "block.x"),
    "unroll by -1": lambda near: product().unroll("k", int(near)),
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
    "tensorize instruction": lambda near: mma_starts.asked("k.2", near),
    "tensorize outer loop": lambda near: mma_starts.asked(near, "mma.m16n8k16"),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_nearest_choice_is_legal(name: str) -> None:
    near = refuse_case(name).refusal.nearest
    assert derive_launches(FOLLOWED[name](near.strip("'")).program)


def test_copy_along_half_a_quotient_is_refused() -> None:
    op = o.compute(
        "pairs", axes={"i": 12, "j": 4}, reduce={"k": 4}, inputs={"A": (6, 4), "B": (4, 4)},
        body=lambda A, B, i, j, k: A[i // 2, k] * B[k, j],
    )  # fmt: skip
    s = Schedule(op).split("i", (6,)).reorder("i.0", "j", "k", "i.1").cache_read("A", "shared", at="k")
    error = refused(lambda: derived(s))
    assert "fused index" in error.refusal.need
    assert "stage at another loop" in error.refusal.nearest


def test_accumulator_of_pieces_out_of_order_is_refused() -> None:
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
def test_json_of_no_schedule_is_one_line(text: str, words: str) -> None:
    if text.startswith("STEP:"):
        text = product().to_json().replace('"steps": []', f'"steps": [{text[5:]}]')
    with pytest.raises(InvalidInput, match=words):
        Schedule.from_json(text)


def test_fuse_refuses_too_many_iterations() -> None:
    op = o.compute("far", axes={"i": 1}, reduce={"j": 2**40, "k": 4}, inputs={}, body=lambda j, k: j + k)
    with pytest.raises(EkcError, match=rf"fuse: {2**42} iterations, at most {2**40}"):
        Schedule(op).fuse("j", "k")
