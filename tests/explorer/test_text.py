"""The free text field: Python that is parsed and never executed."""

from __future__ import annotations

import pytest

import ekc
from ekc.errors import EkcError, InvalidInput
from ekc.explorer.path import apply_text

START = ekc.Schedule(ekc.matmul(64, 64, 64))


def test_steps_are_those_of_the_methods() -> None:
    expected = START.split("i", (2, 16)).bind("i.0", "block.x").cache_write("C", vector=4)
    written = 'split("i", (2, 16)).bind("i.0", level="block.x")\n  .cache_write("C", vector=4)'
    commented = f".{written}  # 518.5 us".replace("\n", "  # 530 us\n")
    for text in (written, f".{written}", f"s.{written}", f"ekc.Schedule(op).{written}", commented):
        assert apply_text(START, text).digest == expected.digest


def test_python_of_a_schedule_is_read_back() -> None:
    made = START.split("k", (8,)).reorder("k.0", "i").cache_read("A", "shared", at="k.0", order=(1, 0), pad=4)
    assert apply_text(START, made.to_python()) == made


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "nothing is written; write a step"),
        ("split(", "not Python"),
        ("s" + ".undo()" * 500, "step: no 'undo'; steps are"),
        ('split("i", ' + "-" * 1900 + "1)", "not Python"),
        ('split("i", ' + "-" * 3900 + "1)", "not Python"),
        ("split", "is no call of a step"),
        ("__import__('os').system('true')", "no '__import__'; steps are"),
        ('split("i", (open("x"),))', "is no literal; use whole numbers"),
        ('split("i", [n for n in (2,)])', "is no literal"),
        ('split("i", (2.5,))', "'2.5' is no literal"),
        ('split("i", (True,))', "'True' is no literal"),
        ('split(*("i", (2,)))', "is no literal"),
        ('split(**{"loop": "i"})', "** is not taken"),
        ('splt("i", (2,))', "no 'splt'; steps are"),
        ("to_json()", "no 'to_json'"),
        ('split("i")', "missing a required argument: 'factors'; it takes loop, factors"),
        ('split("i", (2,), parts=3)', "unexpected keyword argument 'parts'"),
        ('split("z", (2,))', "no loop 'z'; loops are i, j, k"),
        ('split("i", (0,))', "at least 1"),
        ('bind("i", "warp")', "no level 'warp'"),
        ('"x".split("i")', "is no call of a step"),
        ('split("i", (2,)); 1', "not Python"),
        ("(" * 300 + ")" * 300, "not Python"),
        ("x" * 5000, "at most 4000"),
        ('split("i\x00", (2,))', "not Python"),
    ],
)
def test_refusal_gives_the_reason(text: str, words: str) -> None:
    with pytest.raises(EkcError) as problem:
        apply_text(START, text)
    assert words in str(problem.value)
    assert "\n" not in str(problem.value)


def test_nothing_is_executed() -> None:
    with pytest.raises(InvalidInput):
        apply_text(START, 'split(print("executed"), (2,))')
