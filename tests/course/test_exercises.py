"""Every exercise takes the answer of the solutions, and other right answers, on random cases."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import ekc
from ekc.course import check, load_exercises, measure_clocks, tiled
from ekc.course.answers import RIGHT, Feedback, list_exercises
from ekc.course.ladder import make_tensor_product
from ekc.course.lessons import SOLUTIONS, list_lessons
from ekc.errors import InvalidInput
from tests.course.cells import collect_checks, list_cells
from tests.course.student_answers import TREE, bound, count_warps, sum_kernel, turned

load_exercises()


@pytest.fixture(scope="module")
def solved() -> dict[str, Feedback]:
    """Feedback on every answer of the solutions."""
    return {f.key: f for lesson in list_lessons(SOLUTIONS) for f in collect_checks(list_cells(lesson))}


@pytest.mark.parametrize("key", [e.key for e in list_exercises()])
def test_answer_of_the_solutions_is_right(key: str, solved: dict[str, Feedback]) -> None:
    assert solved[key].state == RIGHT, solved[key]


def test_every_lesson_has_three_exercises_and_solutions_for_all() -> None:
    keys = [e.key for e in list_exercises()]
    lessons, solutions = list_lessons(), list_lessons(SOLUTIONS)
    assert [x.number for x in lessons] == list(range(1, 12))
    assert [key for x in lessons for key in x.exercises] == keys
    assert [key for x in solutions for key in x.exercises] == keys
    assert all(len(x.exercises) >= 3 and x.minutes <= 15 for x in lessons)
    assert [x.name for x in lessons] == [x.name for x in solutions]


def turned_grid() -> Any:
    """An answer to 1d whose rows of blocks are along x."""
    cut = ekc.Schedule(ekc.matmul(96, 128, 64)).split("i", (8,)).split("j", (32,))
    cut = cut.reorder("j.0", "i.0", "i.1", "j.1", "k").bind("i.1", "thread.y").bind("j.1", "thread.x")
    return cut.bind("i.0", "block.x").bind("j.0", "block.y")


def bank_by_steps(row: int, column: int, width: int) -> int:
    word = 0
    for _ in range(row):
        word = (word + width) % 32
    return (word + column) % 32


def time_by_steps(tiles: int, load: float, multiply: float) -> float:
    now = load
    for _ in range(tiles - 1):
        now += max(load, multiply)
    return now + multiply


def energy_by_arrays(readings: Any, seconds: float) -> float:
    times, joules = np.array(readings).T
    at = np.flatnonzero(np.diff(joules)) + 1
    return float((joules[at[-1]] - joules[at[0]]) / (times[at[-1]] - times[at[0]]) * seconds)


def warps_by_trial(threads: int, registers: int, shared: int) -> int:
    blocks = 0
    while blocks < 32 and (blocks + 1) * threads <= 2048:
        more = blocks + 1
        if more * threads * registers > 65536 or more * (shared + 1024) > 167936:
            break
        blocks = more
    return blocks * threads // 32


def draws_by_trial(share: float, confidence: float) -> int:
    count, missed = 0, 1.0
    while missed > 1 - confidence:
        count, missed = count + 1, missed * (1 - share)
    return count


def best_of_twelve(tried: list[float]) -> int | None:
    return int(np.argsort(tried)[len(tried) % 3]) if len(tried) >= 12 else None


def mix_of_best(tried: list[float]) -> Any:
    if len(tried) < 10:
        return None
    order = np.argsort(tried).tolist()
    return order[0] if len(tried) % 2 else (order[0], order[1 + len(tried) % 3])


IN_WARPS = """__shared__ float s[8]; float v = x[t];
for (int d = 16; d; d /= 2) v += __shfl_down_sync(~0u, v, d);
if (t % 32 == 0) s[t / 32] = v; __syncthreads();
if (t < 32) {
  v = t < 8 ? s[t] : 0;
  for (int d = 4; d; d /= 2) v += __shfl_down_sync(~0u, v, d);
  if (t == 0) y[0] = v;
}"""
READ_FIRST = "float v = t < d ? part[t + d] : 0; __syncthreads(); part[t] += v; __syncthreads();"
TAIL = """
if (t < 32) {
  float v = part[t];
  for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
  part[t] = v;
}
if (t == 0)"""
IN_PLACE = """__shared__ float part[256]; part[t] = x[t]; __syncthreads();
for (int d = 1; d < 256; d *= 2) { if (t % (2 * d) == 0) part[t] += part[t + d]; __syncthreads(); }
if (t == 0) *y = *part;"""
STEP = "if (t < d) part[t] += part[t + d]; __syncthreads();"
RIGHT_ANSWERS: dict[str, tuple[Any, ...]] = {
    "1a": (256.0, np.int64(256), np.array(256)),
    "1b": (" k ", "K", np.str_("k")),
    "1d": (turned_grid(),),
    "2a": ("a",),
    "2b": (
        lambda stride: len({lane * stride * 4 // 32 for lane in range(32)}),
        lambda stride: 32 if stride > 8 else 4 * stride,
        np.vectorize(lambda stride: min(32, 4 * stride)),
    ),
    "2c": (bound(4, 64).cache_write("C"), bound(2, 128), bound(16, 32)),
    "3b": (bank_by_steps, lambda r, c, w: divmod(r * w + c, 32)[1]),
    "3c": (lambda w: math.gcd(w, 32), lambda w: 32 // len({r * w % 32 for r in range(32)})),
    "3d": (turned(2), turned(18)),
    "4a": (Fraction(5, 8), np.float32(0.625)),
    "4b": (lambda r, c: 1 / (1 / r + 1 / c), lambda r, c: float(Fraction(r * c, r + c))),
    "4d": (tiled(depth=32, stages=1), tiled(depth=64, stages=1)),
    "5a": (count_warps, warps_by_trial),
    "5d": (
        tiled(threads=(8, 16), tile=(2, 4), depth=32, stages=1, size=256),
        tiled(threads=(16, 8), tile=(2, 4), stages=1, size=256),
    ),
    "6a": (time_by_steps, lambda n, a, b: n * max(a, b) + min(a, b)),
    "6d": (tiled(depth=32), tiled(depth=64)),
    "7a": (
        lambda lane, e: [lane // 4 + (8 if e > 1 else 0), lane % 4 * 2 + e % 2],
        lambda lane, e: np.array([lane // 4 + 8 * (e // 2), 2 * (lane % 4) + e % 2]),
    ),
    "7c": (make_tensor_product(depth=4), make_tensor_product(depth=4, stages=3)),
    "7d": (lambda r, c: next(n for n in range(32) if n // 4 == r % 8 and n % 4 == c // 2),),
    "8d": (tiled(depth=32), tiled()),
    "9b": (draws_by_trial, lambda s, c: math.ceil(np.log(1 - c) / np.log(1 - s))),
    "9c": (best_of_twelve, mix_of_best),
    "10a": (energy_by_arrays,),
    "10b": (lambda low, high: (low > 1) - (high < 1), lambda *ends: sum(np.sign(x - 1) for x in ends) / 2),
    "10c": ("Out of bounds",),
    "10d": (
        sum_kernel(IN_WARPS),
        sum_kernel(TREE.replace("STEP", READ_FIRST)),
        sum_kernel(TREE.replace("d > 0", "d > 16").replace("STEP", STEP).replace("if (t == 0)", TAIL)),
        sum_kernel("__shared__ float all; if (t == 0) all = 0; __syncthreads(); atomicAdd(&all, x[t]);\n"
                   "__syncthreads(); if (t == 0) y[0] = all;"),
        sum_kernel(IN_PLACE),
    ),
    "11a": ("6", " Copy asynchronously", "rule 6"),
    "11c": (
        lambda values, value: [
            v for v in values if {v[0] / value[0], v[1] / value[1]} in ({2, 1}, {0.5, 1}, {2, 0.5})
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("key", RIGHT_ANSWERS)
def test_right_answers_of_other_forms_are_right(key: str) -> None:
    for number, answer in enumerate(RIGHT_ANSWERS[key]):
        found = check(int(key[:-1]), key[-1], answer)
        assert found.right, (number, found)


FUNCTIONS = [e.key for e in list_exercises() if e.kind == "function"]


@pytest.mark.parametrize("key", sorted({*FUNCTIONS} - {"7a", "7d", "9c"}))
def test_table_of_earlier_cases_is_no_solution(key: str) -> None:
    """7a and 7d go through all lanes, and 9c is a contest."""
    lesson, letter = int(key[:-1]), key[-1]
    seen: dict[str, Any] = {}

    def record(*arguments: Any) -> Any:
        seen[repr(arguments)] = value = RIGHT_ANSWERS[key][0](*arguments)
        return value

    def look_up(*arguments: Any) -> Any:
        return seen.get(repr(arguments), 0)

    assert check(lesson, letter, record, seed=7).right
    assert check(lesson, letter, look_up, seed=7).right, "a seed repeats its cases"
    assert not check(lesson, letter, look_up)


def test_wrong_answer_names_the_seed_that_repeats_its_cases() -> None:
    def wrong_for_one_stride(stride: int) -> int:
        return min(32, 4 * stride) + (stride == 3) + (stride > 100)

    found = check(2, "b", wrong_for_one_stride)
    assert f"seed={found.seed}" in str(found)
    assert check(2, "b", wrong_for_one_stride, seed=found.seed) == found
    assert len({check(2, "b", lambda stride: 33, seed=n).remark for n in range(20)}) > 1
    assert check(2, "b", lambda stride: min(32, 4 * stride)).seed is None
    assert check(1, "a", 3).seed is None
    for seed in (-1, 1.5, "x", True):
        with pytest.raises(InvalidInput, match=r"^seed: .*(is not a whole number|at least 0); use "):
            check(2, "b", len, seed=seed)  # type: ignore[arg-type]


def test_check_names_the_exercises_that_there_are() -> None:
    with pytest.raises(InvalidInput, match="no lesson 12; lessons are 1 to 11"):
        check(12, "a", 1)
    with pytest.raises(InvalidInput, match="lesson 1 has no exercise 'z'; it has a, b, c, d"):
        check(1, "z", 1)


def test_best_clock_is_no_end_of_the_range() -> None:
    figures = measure_clocks(tiled(threads=(8, 8)))
    best = min(figures, key=lambda mhz: figures[mhz].mj)
    assert min(figures) < best < max(figures)
