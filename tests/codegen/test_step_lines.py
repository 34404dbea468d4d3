"""The step of a schedule beside each line of the CUDA text: what the line names was made by that step."""

from __future__ import annotations

import re

import pytest

from ekc.codegen.generate import generate
from ekc.codegen.step_lines import derive_step_lines
from ekc.ir.schedule.annotations import Bind
from ekc.ir.schedule.caching import CacheRead
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from tests.codegen import samples
from tests.codegen.helpers import corners, features

SCHEDULES = [*features()[:20], *corners()]


def read_lines(schedule: Schedule) -> list[tuple[str, int]]:
    """Each line of the text without indentation, and its step."""
    source = generate(schedule).source
    steps = derive_step_lines(schedule, source)
    lines = source.splitlines()
    assert len(steps) == len(lines)
    return [(line.strip(), step) for line, step in zip(lines, steps, strict=True)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.digest[:6])
def test_lines_come_from_steps_that_make_such_lines(schedule: Schedule) -> None:
    for line, step in read_lines(schedule):
        assert 0 <= step <= len(schedule.steps)
        made_by = schedule.steps[step - 1] if step else None
        if re.match(r"const int \w+ = .*(blockIdx|threadIdx)\.", line) and step:
            assert isinstance(made_by, Bind), line
        if isinstance(made_by, Bind):
            assert "blockIdx" in line or "threadIdx" in line or "for (" in line or "unroll" in line, line
        if line.startswith("__shared__") and "[" in line and step:
            assert made_by is not None
            assert made_by.kind in ("cache_read", "compute_at"), line
            assert made_by.kind == "compute_at" or made_by.scope == "shared"  # type: ignore[attr-defined]


def test_every_copy_and_index_of_a_tiled_product_has_its_step() -> None:
    schedule = samples.matmul(64, 64, 64)
    lines = read_lines(schedule)
    for number, step in enumerate(schedule.steps, 1):
        texts = [line for line, s in lines if s == number]
        if isinstance(step, CacheRead):
            name = step.source.split(".")[0]
            assert any(f"{name}_{step.scope}" in text for text in texts), step
        if isinstance(step, Bind) and step.level != "vthread":
            assert any("Idx." in text for text in texts), step
    multiply = next(step for line, step in lines if " += " in line and "*" in line)
    assert multiply == 0, "the arithmetic is the operator's"


def test_naive_schedule_has_steps_for_its_indices_alone() -> None:
    schedule = make_naive_schedule(samples.matmul(8, 8, 8).op)
    kinds = {schedule.steps[step - 1].kind for line, step in read_lines(schedule) if step and "Idx." in line}
    assert kinds == {"bind"}
