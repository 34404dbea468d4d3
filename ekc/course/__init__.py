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
from ekc.ir.validate import check_int

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


def check(lesson: int, exercise: str, answer: Any, seed: int | None = None) -> Feedback:
    """Check the answer to an exercise: a number, a schedule, a function or a text.

    The verdict is true where the answer is right; its text has a hint where it is wrong. Three dots (`...`)
    are no answer yet. Functions and kernels are tried on random cases, others at each check. Where one is
    wrong, the text names their seed: `check(..., seed=...)` repeats them. Raises `InvalidInput` for an
    exercise that there is not, or a seed that is no whole number from 0 to 2**63 - 1.
    """
    load_exercises()
    entry = find_exercise(lesson, exercise)
    if seed is not None:
        check_int("seed", seed, 2**63 - 1, minimum=0)
    return judge_answer(entry, answer, seed)


def load_exercises() -> None:
    """Import the modules that register exercises."""
    from ekc.course import hardware_exercises, kernel_exercises, search_exercises  # noqa: F401
