"""Schedules that somebody wrote into a file by hand: one clear line, whatever is in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import ekc.ir.operators as o
from ekc.errors import EkcError
from ekc.ir.schedule.schedule import Schedule

LOAD: list[Any] = ["load", "A", ["var", "i"], ["var", "k"]]


def told(steps: list[Any], body: Any = LOAD) -> Schedule:
    """A small product with these steps and this body, read back from text."""
    data = json.loads(Schedule(o.matmul(4, 4, 4)).to_json()) | {"steps": steps}
    data["operator"]["computes"][0]["body"] = body
    return Schedule.from_json(json.dumps(data))


def deep(levels: int) -> Any:
    body: Any = LOAD
    for _ in range(levels):
        body = ["+", body, 1]
    return body


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "list as a step": (lambda: told([{"step": ["split"]}]), r"step: \['split'\] is none of atomic, "),
    "object as a step": (lambda: told([{"step": {}}]), r"step: {} is none of"),
    "a step that counts on a wrong number": (
        lambda: told(
            [
                {"step": "split", "loop": "i", "factors": [0]},
                {"step": "fuse", "outer": "i.0", "inner": "i.1"},
                {"step": "split", "loop": "i.0_i.1", "factors": [2]},
            ]
        ),
        r"split i: 0 as a factor, at least 1",
    ),
    "large factor": (
        lambda: told([{"step": "split", "loop": "i", "factors": [2**64]}]),
        rf"split: factors={2**64} is beyond {2**40}; the nearest legal value is {2**40}",
    ),
    "large product": (
        lambda: told([{"step": "split", "loop": "i", "factors": [2**40, 2]}]),
        rf"split: {2**41} iterations, at most {2**40}",
    ),
    "large pad": (lambda: Schedule(o.matmul(4, 4, 4)).cache_read("A", "shared", pad=-(2**70)), "pad=-118"),
    "nan": (lambda: told([], ["*", float("nan"), LOAD]), "nan is no number of float32"),
    "beyond float32": (lambda: told([], ["*", 1e300, LOAD]), r"1e\+300 is no number of float32"),
    "true": (lambda: told([], ["*", True, LOAD]), "True is no number"),
    "deep": (lambda: told([], deep(250)), "body of matmul: goes deeper than 200"),
    "deeper": (lambda: Schedule.from_json("[" * 100000 + "]" * 100000), "schedule: not JSON"),
    "no step": (lambda: Schedule(o.matmul(4, 4, 4)).apply_steps(5), "schedule: 5 is no step"),  # type: ignore[arg-type]
    "no operator": (lambda: Schedule("matmul").program, "schedule: 'matmul' is no operator"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_line(name: str) -> None:
    mistake, message = MISTAKES[name]
    with pytest.raises(EkcError, match=message) as found:
        mistake()
    assert "\n" not in str(found.value)


def test_two_loops_that_no_number_counts_together_stay_apart() -> None:
    op = o.compute("far", axes={"i": 1}, reduce={"j": 2**40, "k": 4}, inputs={}, body=lambda j, k: j + k)
    with pytest.raises(EkcError, match=rf"fuse: {2**42} iterations, at most {2**40}"):
        Schedule(op).fuse("j", "k")
