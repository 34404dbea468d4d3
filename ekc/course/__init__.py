"""The course: lessons, exercises, and the check of their answers.

>>> from ekc.course import Ladder, check, measure, rung
>>> check(1, "a", 1024)
"""

from __future__ import annotations

from typing import Any

from ekc.course.answers import Feedback, find_exercise, judge_answer
from ekc.course.ladder import (
    BlockCounts,
    EnergyCauses,
    Figures,
    Ladder,
    compare_energy,
    count,
    measure,
    measure_clocks,
    occupancy,
    rung,
    tiled,
)
from ekc.course.strategies import Contest, contest

__all__ = [
    "BlockCounts",
    "Contest",
    "EnergyCauses",
    "Feedback",
    "Figures",
    "Ladder",
    "check",
    "compare_energy",
    "contest",
    "count",
    "measure",
    "measure_clocks",
    "occupancy",
    "rung",
    "tiled",
]


def check(lesson: int, exercise: str, answer: Any) -> Feedback:
    """Check the answer to an exercise: a number, a schedule, a function or a text.

    The verdict is true where the answer is right; its text has a hint where it is wrong. Three dots (`...`)
    are no answer yet. Raises `InvalidInput` for an exercise that there is not.
    """
    load_exercises()
    return judge_answer(find_exercise(lesson, exercise), answer)


def load_exercises() -> None:
    """Import the modules that register exercises."""
    from ekc.course import hardware_exercises, kernel_exercises  # noqa: F401
