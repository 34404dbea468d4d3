"""Exercises and the verdicts on answers to them.

An exercise is a function that judges an answer. It computes the truth from ekc, and says how a wrong answer
is wrong, without giving the right one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ekc.argument_checks import format_value
from ekc.errors import EkcError, InvalidInput
from ekc.ir.schedule.schedule import Schedule

RIGHT, WRONG, MISSING, RECORDED = "right", "wrong", "missing", "recorded"
"""Verdicts. An answer of three dots is missing; the grader records answers and judges them elsewhere."""
_WORDS = {RIGHT: "right.", WRONG: "not yet.", MISSING: "no answer yet.", RECORDED: "recorded for grading."}


@dataclass(frozen=True)
class Feedback:
    """The outcome of a check. True where the answer is right; its text is one line for the student."""

    state: str
    """`RIGHT`, `WRONG`, `MISSING` or `RECORDED`."""
    remark: str = ""
    """A hint where the answer is wrong, a fact where it is right."""
    key: str = ""
    """The exercise, such as "1a"."""
    seed: int | None = None
    """Seed of the random cases that a wrong function or kernel was tried on; None for other answers."""

    @property
    def right(self) -> bool:
        """Whether the answer is right."""
        return self.state == RIGHT

    def __bool__(self) -> bool:
        return self.state in (RIGHT, RECORDED)

    def __repr__(self) -> str:
        text = f"Exercise {self.key}: {_WORDS[self.state]} {self.remark}".rstrip()
        if self.seed is None:
            return text
        return f"{text} (The cases are random; check(..., seed={self.seed}) repeats them.)"


Judge = Callable[..., Feedback]
"""Takes a converted answer, and for kinds in `_DRAWN` a random generator of cases; returns the verdict."""


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lesson."""

    lesson: int
    letter: str
    kind: str
    """Type of answer: a key of `_KINDS`."""
    judge: Judge

    @property
    def key(self) -> str:
        """Lesson and letter, such as "1a"."""
        return f"{self.lesson}{self.letter}"


_EXERCISES: dict[str, Exercise] = {}


def exercise(lesson: int, letter: str, kind: str) -> Callable[[Judge], Judge]:
    """Register a function as the judge of an exercise. It gets an answer of that kind, already converted. If
    the kind is in `_DRAWN`, it also gets a random generator, from which it draws the cases."""

    def register(judge: Judge) -> Judge:
        entry = Exercise(lesson, letter, kind, judge)
        _EXERCISES[entry.key] = entry
        return judge

    return register


def right(remark: str = "") -> Feedback:
    """The answer is right; the remark is a fact that it leads to."""
    return Feedback(RIGHT, remark)


def wrong(hint: str) -> Feedback:
    """The answer is wrong; the hint helps without giving the answer."""
    return Feedback(WRONG, hint)


def list_exercises() -> tuple[Exercise, ...]:
    """All exercises, by lesson and letter."""
    return tuple(sorted(_EXERCISES.values(), key=lambda e: (e.lesson, e.letter)))


def find_exercise(lesson: Any, letter: Any) -> Exercise:
    """Find an exercise. Raises `InvalidInput` that lists the exercises that there are."""
    lessons = sorted({e.lesson for e in list_exercises()})
    if isinstance(lesson, bool) or lesson not in lessons:
        raise InvalidInput(
            f"check: no lesson {format_value(lesson)}; lessons are {lessons[0]} to {lessons[-1]}"
        )
    letters = [e.letter for e in list_exercises() if e.lesson == lesson]
    if letter not in letters:
        raise InvalidInput(
            f"check: lesson {lesson} has no exercise {format_value(letter)}; it has {', '.join(letters)}"
        )
    return _EXERCISES[f"{lesson}{letter}"]


def judge_answer(entry: Exercise, answer: Any, seed: int | None = None) -> Feedback:
    """Judge an answer of any type. Nothing that a student wrote raises here.

    `seed` repeats the random cases of an earlier check.
    """
    if answer is ... or answer is None:
        return Feedback(MISSING, f"Put {_KINDS[entry.kind][0]} in place of the three dots.", entry.key)
    is_drawn = entry.kind in _DRAWN
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
    try:
        converted = _KINDS[entry.kind][1](answer)
        found = entry.judge(converted, np.random.default_rng(seed)) if is_drawn else entry.judge(converted)
    except _WrongKind as problem:
        given = (
            format_value(answer)
            if isinstance(answer, str | Real)
            else f"an object of type {type(answer).__name__}"
        )
        hint = problem.args[0] or f"This exercise takes {_KINDS[entry.kind][0]}, and you gave {given}."
        return Feedback(WRONG, hint, entry.key)
    except _NoAnswer:
        return Feedback(MISSING, "Your function returns the three dots. Write its body.", entry.key)
    except EkcError as problem:
        found = wrong(f"ekc refuses it: {problem}")
    return Feedback(found.state, found.remark, entry.key, seed if is_drawn and not found.right else None)


class _WrongKind(Exception):
    """An answer of another type; the text may say what to do."""


class _NoAnswer(Exception):
    """A function returned three dots."""


class AnswerError(Exception):
    """A function of a student has no value; the text says why, in words for the student."""


class FunctionFailed(Exception):
    """A function of the student raised; the text names the error."""


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a student. Raises `FunctionFailed` where it raises."""
    try:
        value = function(*arguments)
    except Exception as problem:
        shown = ", ".join(format_value(a) for a in arguments)
        raise FunctionFailed(
            f"Called with ({shown}), your function raised {describe_error(problem)}."
        ) from None
    if value is ...:
        raise _NoAnswer
    return value.tolist() if isinstance(value, np.ndarray) else value


def describe_error(problem: BaseException) -> str:
    """The type of an exception and the first line of its text."""
    if isinstance(problem, AnswerError):
        return str(problem)
    text = str(problem).partition("\n")[0]
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__


def judge_number(
    answer: float, truth: float, remark: str, mistakes: Iterable[tuple[float, str]], hint: str
) -> Feedback:
    """Judge a number: exactly where the truth is an integer, else to 2 %. `mistakes` pairs wrong values with
    the hint for each; the first that fits counts."""
    if answer == truth if isinstance(truth, int) else is_near(answer, truth):
        return right(remark)
    for value, advice in mistakes:
        if is_near(answer, value):
            return wrong(advice)
    return wrong(hint)


def is_near(value: Any, truth: float, share: float = 0.02) -> bool:
    """Whether a value is a number that differs from the truth by at most a share of it."""
    if isinstance(value, str):
        return False
    try:
        return math.isclose(float(value), truth, rel_tol=share, abs_tol=1e-12)
    except (TypeError, ValueError, OverflowError):
        return False


def judge_function(
    function: Callable[..., Any],
    cases: Iterable[tuple[tuple[Any, ...], Any]],
    remark: str,
    explain: Callable[[tuple[Any, ...], Any], str],
) -> Feedback:
    """Judge a function by its values in cases of (arguments, truth). `explain` makes a hint of the first
    arguments that it gets wrong and of its value there."""
    try:
        for arguments, truth in cases:
            value = call(function, *arguments)
            if not _equals(value, truth):
                shown = ", ".join(format_value(a) for a in arguments)
                return wrong(
                    f"With ({shown}) your function gives {format_value(value)}. "
                    f"{_explain_form(value, truth) or explain(arguments, value)}"
                )
    except FunctionFailed as problem:
        return wrong(str(problem))
    return right(remark)


def _explain_form(value: Any, truth: Any) -> str:
    """Hint for a value of a wrong form: text, rounded, or divided as whole numbers; else nothing."""
    if isinstance(truth, tuple):
        return ""
    if isinstance(value, str):
        return "Return a number, not text."
    if float(truth).is_integer():
        return ""
    if isinstance(value, int) and not isinstance(value, bool) and value == math.floor(truth):
        return "The true value is no whole number here: divide with /, not with //."
    is_rounded = any(is_near(value, round(float(truth), digits)) for digits in range(1, 7))
    return "That is nearly right: do not round." if is_rounded or is_near(value, truth, 0.005) else ""


def _equals(value: Any, truth: Any) -> bool:
    if isinstance(truth, tuple):
        is_row = isinstance(value, tuple | list) and len(value) == len(truth)
        return is_row and all(map(_equals, value, truth))
    return is_near(value, truth, 1e-6)


def _read_number(answer: Any) -> float:
    if isinstance(answer, str):
        raise _WrongKind("Give a number, not text: no quotes around it.")
    if isinstance(answer, bool) or callable(answer):
        raise _WrongKind("")
    try:
        value = float(answer)
    except (TypeError, ValueError, OverflowError):
        raise _WrongKind("") from None
    if not math.isfinite(value):
        raise _WrongKind("This exercise takes a finite number.")
    return value


def _read_schedule(answer: Any) -> Schedule:
    if not isinstance(answer, Schedule):
        raise _WrongKind("")
    return answer


def _read_function(answer: Any) -> Callable[..., Any]:
    if not callable(answer):
        raise _WrongKind("This exercise takes a function. Give its name without parentheses after it.")
    return answer  # type: ignore[no-any-return]


def _read_text(answer: Any) -> str:
    if not isinstance(answer, str):
        raise _WrongKind("")
    return answer


_KINDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "number": ("a number", _read_number),
    "schedule": ("a schedule", _read_schedule),
    "function": ("a function", _read_function),
    "text": ("a text in quotes", _read_text),
    "kernel": ("the text of a CUDA kernel in quotes", _read_text),
}
"""Kind of answer -> its name, and the function that converts an answer to it."""
_DRAWN = ("function", "kernel")
"""Kinds of answers that are judged on random cases, others at each check."""
