"""The printed tree, word for word; `pytest tests/ir/test_printer.py --update-golden` accepts a change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ekc.ir.printer import format_program
from tests.drawn.schedules import seeded_schedule
from tests.ir.examples import EXAMPLES

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", EXAMPLES)
def test_printed_tree_matches_golden_file(name: str, golden: Callable[[Path, str], None]) -> None:
    schedule = EXAMPLES[name]()
    assert str(schedule) == format_program(schedule.program)
    golden(GOLDEN / f"{name}.txt", format_program(schedule.program))


def test_golden_files_have_a_test() -> None:
    assert {p.stem for p in GOLDEN.glob("*.txt")} == set(EXAMPLES)


def test_remarks_are_in_one_column() -> None:
    lines = format_program(EXAMPLES["matmul"]().program).splitlines()
    columns = {
        line.index(word)
        for line in lines
        for word in ("pipeline 2", "256 threads x", "unroll")
        if word in line
    }
    assert len(columns) == 1


@pytest.mark.parametrize("seed", range(20))
def test_printed_text_is_deterministic(seed: int) -> None:
    text = format_program(seeded_schedule(seed).program)
    assert text == format_program(seeded_schedule(seed).program)
    assert all(line == line.rstrip() for line in text.splitlines())
