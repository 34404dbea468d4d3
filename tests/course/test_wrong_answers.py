"""Wrong answers to each exercise: each gets a hint, most of them a hint of their own."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

import pytest

import ekc
from ekc.course import check, load_exercises, measure, rung, tiled
from ekc.course.answers import MISSING, WRONG, find_exercise, list_exercises
from ekc.course.ladder import make_tensor_product
from ekc.course.lessons import list_lessons
from tests.course.cells import list_cells
from tests.course.student_answers import TREE, bound, count_warps, sum_kernel, turned

load_exercises()


def strided_rows() -> Any:
    """Rows 0, 12, 24, ... in one block: the outer loop of the split is bound to threads."""
    cut = ekc.Schedule(ekc.matmul(96, 128, 64)).split("i", (12,)).split("j", (32,))
    cut = cut.reorder("i.1", "j.0", "i.0", "j.1", "k").bind("i.1", "block.y").bind("j.0", "block.x")
    return cut.bind("i.0", "thread.y").bind("j.1", "thread.x")


def tiles_of(depth: int) -> Any:
    """The transposed tile of lesson 3, of another depth."""
    cut = ekc.Schedule(ekc.matmul(512, 512, 512)).split("i", (16,)).split("j", (16,)).split("k", (depth,))
    cut = cut.reorder("i.0", "j.0", "i.1", "j.1", "k.0", "k.1").bind("i.0", "block.y").bind("j.0", "block.x")
    cut = cut.bind("j.1", "thread.x").bind("i.1", "thread.y").cache_write("C")
    return cut.cache_read("A", "shared", at="k.0", order=(1, 0)).cache_read("B", "shared", at="k.0")


def fail(*arguments: Any) -> Any:
    raise ZeroDivisionError("division by zero")


def energy_of_ends(readings: Any, seconds: float) -> float:
    (t0, j0), (t1, j1) = readings[0], readings[-1]
    return float((j1 - j0) / (t1 - t0) * seconds)


def energy_with_a_tick_too_many(readings: Any, seconds: float) -> float:
    """Off by one: the time between the first and the last tick, and the energy from the first reading on."""
    jumps = [b for a, b in pairwise(readings) if b[1] != a[1]]
    return float((jumps[-1][1] - readings[0][1]) / (jumps[-1][0] - jumps[0][0]) * seconds)


COALESCED = measure(rung("coalesced"))
DEEP = tiled(depth=32, stages=1)
SUM = next(c for c in list_cells(list_lessons()[9]) if c.startswith("SUM"))
RACING = SUM.split('"""')[1]
INSIDE = RACING.replace(
    "if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];",
    "if (threadIdx.x < half) { part[threadIdx.x] += part[threadIdx.x + half]; __syncthreads(); }",
)
ONE_THREAD = 'extern "C" __global__ void sum(const float* x, float* y)\n{ y[0] = 0; }'

WRONG_ANSWERS: dict[str, list[tuple[Any, str]]] = {
    "1a": [
        (32, "one direction"),
        (1024, "Here a tile has 64"),
        (512 * 512, "all threads"),
        (7, "Which loops"),
    ],
    "1b": [("i", "Which loop adds up"), ("x", "name of a loop")],
    "1c": [(1024, "two operations"), (512**3, "together"), (1, "How many products"), (3, "Which loop")],
    "1d": [
        (bound(8, 32), "The operator is"),
        (bound(8, 32, "i.1", "j.1", (96, 128, 64)), "32 rows of 8"),
        (bound(16, 16, shape=(96, 128, 64)), "x, y and z is 16"),
        (bound(32, 8, "i.1", "j.1", (96, 128, 64)), "rows of a tile to thread.y"),
        (strided_rows(), "no tile of 8 x 32 neighbours"),
    ],
    "2a": [("B", "thread.x is i"), ("C", "Answer")],
    "2b": [
        (lambda stride: 4 * stride, "More sectors than lanes"),
        (lambda stride: stride, "32 bytes"),
        (lambda stride: 13, "how many lanes share"),
        (lambda stride: 4 * stride if stride <= 8 else 31, "from the first to the last"),
        (fail, "ZeroDivisionError"),
        (lambda stride: ..., "Write its body"),
    ],
    "2c": [
        (rung("naive"), "1 and 16 sectors"),
        (bound(8, 32, shape=(96, 128, 64)), "The operator is"),
        (rung("shared memory"), "uses shared memory"),
        (bound(32, 8), "4 rows x 8 columns"),
        (bound(16, 16), "2 rows x 16 columns"),
        (tiled(stages=1), "Give each thread one"),
    ],
    "2d": [
        (COALESCED.mj / COALESCED.us, "Check the units|kilowatts"),
        (COALESCED.us / COALESCED.mj, "not time by energy"),
        (1000 * COALESCED.watts, "units"),
        (3, "joule a second"),
    ],
    "3a": [(1024, "one tile"), (512, "elements"), (5, "two|Two")],
    "3b": [
        (lambda r, c, w: r * w + c, "only 32 banks"),
        (lambda r, c, w: c % 32, "row matters"),
        (lambda r, c, w: 77, "number of the word"),
        (lambda r, c, w: (r + c) % 32, "how many words are before"),
    ],
    "3c": [
        (lambda w: 1, "different banks|decides"),
        (lambda w: 5, "most lanes decides|different banks"),
        (lambda w: 1 if w % 2 else 32, "most lanes decides"),
    ],
    "3d": [
        (turned(), "1792 bank conflicts"),
        (turned(1), "256 bank"),
        (turned(0, ()), "must stay transposed"),
        (tiles_of(1), "another depth"),
    ],
    "4a": [(1.6, "Turn it around"), (10, "number of loads"), (2, "without a tile"), (0.1, "For one k")],
    "4b": [
        (lambda r, c: (r + c) / (r * c), "Turn it around"),
        (lambda r, c: r * c, "Divide"),
        (lambda r, c: 7, "column of A"),
    ],
    "4c": [(4, "asked for"), (2, "read the end")],
    "4d": [
        (tiled(), "pipeline"),
        (rung("register tile"), "time is"),
        (bound(8, 32, shape=(64,) * 3), "must stay"),
    ],
    "5a": [
        (lambda t, r, s: 8 if t == 256 else 1, "Take the least|blocks"),
        (lambda t, r, s: 6, "How many warps has a block|limit the blocks"),
        (lambda t, r, s: 48 * 32, "number of threads|limit the blocks"),
        (lambda t, r, s: 51.2, "round down"),
        (lambda t, r, s: count_warps(t, r, s, reserve=0), "more shared memory than it declares"),
        (lambda t, r, s: count_warps(t, r, s, most_blocks=64), "blocks limit|number of"),
        (lambda t, r, s: t // 32 * (64 * 32 // t), "Here (registers|shared memory|blocks) limit"),
    ],
    "5b": [("warps", "would allow more"), ("cache", "Answer one of")],
    "5c": [(16, "How many SMs have none"), (0, "How many blocks"), (44, "512 x 512"), (3, "such blocks")],
    "5d": [
        (tiled(stages=1), "size=256"),
        (tiled(tile=(4, 4), vector=1, stages=1, size=256), "Against 1 x 1"),
    ],
    "6a": [
        (lambda n, a, b: n * (a + b), "without a pipeline|between"),
        (lambda n, a, b: n * max(a, b), "nothing to run"),
        (lambda n, a, b: 0, "in each step"),
    ],
    "6b": [(32, "one stage"), (16, "one more"), (33, "depth 16"), (5, "How many tiles")],
    "6c": [(16896, "one stage"), (32768, "padding"), (8448, "in bytes"), (5, "A stage has")],
    "6d": [(tiled(stages=1), "no pipeline"), (tiled(), "time is")],
    "7a": [
        (lambda lane, e: (2 * (lane % 4) + e % 2, lane // 4 + 8 * (e // 2)), "Row first"),
        (lambda lane, e: 5, "pair"),
        (lambda lane, e: (lane / 4 + 8 * (e // 2), 2 * (lane % 4) + e % 2), "whole numbers"),
        (lambda lane, e: (lane // 4, 2 * (lane % 4) + e % 2), "row is wrong"),
        (lambda lane, e: (lane // 4 + 8 * (e // 2), 0), "column is wrong"),
    ],
    "7b": [
        (512**3, "multiply-adds"),
        (2 * 65536, "two operations"),
        (2048, "together|tiles of C"),
        (7, "Divide"),
    ],
    "7c": [(tiled(), "no tensor core"), (make_tensor_product(warps=1), "time is")],
    "7d": [(lambda r, c: 4 * r + c // 2, "r \\+ 8|group of four"), (lambda r, c: 0, "group of four|r \\+ 8")],
    "8a": [(0.649, "percent"), (35.1, "share of work"), (39.24, "millijoules"), (1, "Add up")],
    "8b": [(0.689, "percent"), (31.1, "part of time"), (10.97, "millijoules"), (1, "column of differences")],
    "8c": [
        (1410, "more energy"),
        (1011, "nearest is 1005"),
        (960, "more energy|tenth"),
        (1.02, "no such clock"),
    ],
    "8d": [
        (DEEP.unroll("k.1"), "deep itself"),
        (rung("naive"), "time is"),
        (tiled(tile=(2, 4)), "100.0%.*100.0%"),
        (tiled(threads=(8, 16)), "energy is 8"),
    ],
    "9a": [(12, "without the order"), (10, "two factors"), (100, "chosen freely"), (3, "three boxes")],
    "9b": [
        (lambda s, c: 1 / s, "in the mean"),
        (lambda s, c: math.log(1 - c) / math.log(1 - s), "Round up"),
        (lambda s, c: 1, "miss with"),
        (lambda s, c: int(math.log(1 - c) / math.log(1 - s)), "miss with"),
    ],
    "9c": [
        (lambda tried: None, "it is random search"),
        (lambda tried: tried.index(min(tried)) if tried else None, "climb of the lesson"),
        (lambda tried: 5, "index 5 with 0 trials"),
        (lambda tried: 0 if tried else None, "Look around first"),
        (lambda tried: "x", "return None"),
        (fail, "ZeroDivisionError"),
    ],
    "10a": [
        (energy_of_ends, "Neither is on a tick"),
        (lambda readings, seconds: energy_of_ends(readings, 1.0), "power in watts"),
        (lambda readings, seconds: readings[-1][1] - readings[0][1], "all calls"),
        (lambda readings, seconds: 0, "has just jumped"),
        (energy_with_a_tick_too_many, "has just jumped"),
        (fail, "raises an error"),
    ],
    "10b": [
        (lambda low, high: 1 if low + high > 2 else -1, "contains 1"),
        (lambda low, high: 0, "whole interval"),
        (lambda low, high: (low > 1.01) - (high < 0.99), "above 1, below 1"),
    ],
    "10c": [("race", "How many rows"), ("bug", "Answer one of")],
    "11a": [("stage", "Both structures come from"), ("cp.async", "name of a rule"), (6, "text in quotes")],
    "11b": [(1536, "without padding"), (13824, "same hole"), (7, "Multiply the")],
    "11c": [
        (lambda values, value: [], "is one too"),
        (lambda values, value: values, "is no neighbour"),
        (lambda values, value: 3, "Return a list of pairs"),
        (lambda values, value: [value], "is no neighbour"),
        (fail, "raised ZeroDivisionError"),
    ],
    "11d": [("lanes registers", "Another structure"), ("pink", "name of a structure")],
    "11e": [(rung("pipelined"), "time is 100.0%"), (bound(8, 32), "time is")],
    "10d": [
        (RACING, "sanitizer finds"),
        (INSIDE, "must reach each barrier"),
        (ONE_THREAD, "wrong by"),
        ("int main", "does not compile"),
        (
            sum_kernel("if (t == 0) { float v = 0; for (int i = 0; i < 256; ++i) v += x[i]; y[0] = v; }"),
            "does not use shared memory",
        ),
        (
            sum_kernel("float v = 0; for (int i = 0; i < 256; ++i) v += x[i]; if (t == 0) y[0] = v;"),
            "Load each",
        ),
        (
            sum_kernel(
                "__shared__ float part[256]; part[t] = x[t]; __syncthreads();\n"
                "if (t == 0) { float v = 0; for (int i = 0; i < 256; ++i) v += part[i]; y[0] = v; }"
            ),
            "few threads add",
        ),
        (
            sum_kernel(
                "__shared__ float part[256]; part[t] = x[t]; __syncthreads();\n"
                "if (t == 0) { double v = 0; for (int i = 0; i < 256; ++i) v += part[i]; y[0] = v; }"
            ),
            "few threads add",
        ),
        (
            sum_kernel(
                "__shared__ int part[256]; part[t] = x[t]; __syncthreads();\n"
                "if (t == 0) { int v = 0; for (int i = 0; i < 256; ++i) v += part[i]; y[0] = v; }"
            ),
            "The sum is wrong by",
        ),
        (
            sum_kernel("if (t == 0) y[0] = 0; __syncthreads(); atomicAdd(y, x[t]);"),
            "does not use shared memory",
        ),
        (
            sum_kernel(
                TREE.replace("STEP", "if (t < d) part[t] += part[t + d]; if (t < 2 * d) __syncthreads();")
            ),
            "leaves the kernel without",
        ),
        (
            sum_kernel(
                TREE.replace("d > 0", "d > 1").replace(
                    "STEP", "if (t < d) part[t] += part[t + d]; __syncthreads();"
                )
            ),
            "The sum is wrong by",
        ),
        (
            sum_kernel(TREE.replace("STEP", "if (t >= d) break; part[t] += part[t + d]; __syncthreads();")),
            "barrier",
        ),
        (
            sum_kernel(TREE.replace("STEP", "if (t < d) part[t] += part[t + d]; __syncwarp();")),
            "finds: .*in other warps|read",
        ),
    ],
}


@pytest.mark.parametrize("key", [e.key for e in list_exercises()])
def test_wrong_answers_get_their_own_hint(key: str) -> None:
    """With the cases of one seed, as which hint comes first depends on the cases."""
    lesson, letter = int(key[:-1]), key[-1]
    hints = []
    for answer, words in WRONG_ANSWERS[key]:
        found = check(lesson, letter, answer, seed=0)
        assert found.state == (MISSING if "body" in words else WRONG), found
        assert re.search(words, str(found)), f"{words!r} is not in {found}"
        assert not found
        hints.append(found.remark)
    # Where cases are random, two wrong answers may fail the same case.
    has_random_cases = find_exercise(lesson, letter).kind in ("function", "kernel")
    assert has_random_cases or len(set(hints)) == len(hints)


@pytest.mark.parametrize("key", [e.key for e in list_exercises()])
def test_three_dots_are_no_answer(key: str) -> None:
    found = check(int(key[:-1]), key[-1], ...)
    assert found.state == MISSING
    assert "three dots" in str(found)


def test_value_of_the_wrong_form_gets_a_hint_of_its_own() -> None:
    for function, words in (
        (lambda r, c: r * c // (r + c), "not with //"),
        (lambda r, c: str(r * c / (r + c)), "not text"),
        (lambda r, c: round(r * c / (r + c), 2), "do not round"),
    ):
        assert words in str(check(4, "b", function))


def test_answers_of_another_kind_are_refused_in_one_line() -> None:
    answers = ("256", True, float("nan"), [1], rung("naive"), len, {}, 10**400)
    for e in list_exercises():
        for answer in answers:
            text = str(check(e.lesson, e.letter, answer))
            assert "\n" not in text
            assert "right." not in text, (e.key, answer, text)


ODD_VALUES = (
    *(float("inf"), float("nan"), "x", None, [], [[1]], (1,), (1, 2, 3), ("a", "b"), 10**400, -1, {}),
    *((float("inf"), 1.5), (None, None), b"x", True, 3.5, 1j, rung("naive"), object()),
)


@pytest.mark.parametrize("key", [e.key for e in list_exercises() if e.kind == "function"])
def test_odd_values_of_functions_are_wrong_answers(key: str) -> None:
    for value in ODD_VALUES:
        found = check(int(key[:-1]), key[-1], lambda *arguments, value=value: value)
        assert found.state == WRONG
        assert "\n" not in str(found)
    assert check(int(key[:-1]), key[-1], lambda: 1).state == WRONG


@pytest.mark.parametrize("key", [e.key for e in list_exercises() if e.kind == "schedule"])
def test_schedules_of_other_operators_are_wrong_answers(key: str) -> None:
    product = ekc.matmul(512, 512, 512)
    operators = (ekc.softmax((64, 64)), ekc.matvec(64, 64), product.epilogue(lambda c: ekc.relu(c)))
    for schedule in (*map(ekc.Schedule, operators), ekc.Schedule(product).rfactor("k", 4)):
        found = check(int(key[:-1]), key[-1], schedule)
        assert found.state == WRONG
        assert "\n" not in str(found)
