"""Exercises of lessons 6 to 10: pipelines, tensor cores, energy, search, metering and the sanitizer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ekc.argument_checks import format_value
from ekc.codegen import nvrtc
from ekc.course.answers import (
    Feedback,
    FunctionFailed,
    call,
    exercise,
    is_near,
    judge_function,
    judge_number,
    right,
    wrong,
)
from ekc.course.kernel_exercises import ARCH, FLOAT_BYTES, WARP, judge_faster
from ekc.course.ladder import (
    SIZE,
    compare_energy,
    count,
    make_tensor_product,
    measure,
    measure_clocks,
    rung,
    tiled,
)
from ekc.course.strategies import Contest, contest, count_draws
from ekc.emulator.launch import launch
from ekc.errors import CompileError
from ekc.ir.dtypes import FLOAT16
from ekc.ir.hardware.mma import LANES_PER_GROUP, MMA_COLUMNS, MMA_ROWS, SUMS_PER_LANE, find_mma_instruction
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.kernel import compile


@exercise(6, "a", "function")
def sum_pipeline(function: Callable[..., Any]) -> Feedback:
    """Time of a pipeline of two stages."""

    def explain(arguments: tuple[Any, ...], value: Any) -> str:
        tiles, load, multiply = arguments
        if is_near(value, tiles * (load + multiply)):
            return "That is without a pipeline. Here a load and a multiplication run at the same time."
        if is_near(value, tiles * max(load, multiply)):
            return "The first load and the last multiplication have nothing to run beside them."
        return "The first tile is only loaded, the last only multiplied. What happens in each step between?"

    shapes = ((1, 3.0, 5.0), (2, 3.0, 5.0), (32, 3.0, 5.0), (32, 5.0, 3.0), (8, 4.0, 4.0))
    cases = [((n, a, b), a + (n - 1) * max(a, b) + b) for n, a, b in shapes]
    return judge_function(function, cases, "For many tiles, the slower of both decides alone.", explain)


@exercise(6, "b", "number")
def count_barriers(answer: float) -> Feedback:
    """Barriers of a block of a pipelined kernel."""
    schedule = tiled(depth=32)
    truth, tiles = count(schedule).barriers, SIZE // 32
    return judge_number(
        answer,
        truth,
        f"One for each of {tiles} tiles, and one before the first.",
        [
            (2 * tiles, "That is with one stage: two for each tile."),
            (tiles, "There is one more, before the first tile is used."),
            (
                count(rung("pipelined")).barriers,
                "That is with depth 16. With depth 32 there are fewer tiles.",
            ),
        ],
        "How many tiles of depth 32 are there along k, and how many barriers does each need with two stages?",
    )


@exercise(6, "c", "number")
def count_pipeline_bytes(answer: float) -> Feedback:
    """Shared memory of a pipelined kernel."""
    kernel = compile(tiled(depth=32), arch=ARCH)
    truth = kernel.resources[0].shared_bytes + kernel.launches[0].shared_bytes
    plain = FLOAT_BYTES * 2 * 64 * 32
    return judge_number(
        answer,
        truth,
        "Nearly four times the tiles of one stage with depth 16.",
        [
            (truth / 2, "That is one stage. Two are in flight."),
            (2 * plain, "Mind the padding: each of the 32 rows of the tile of A is four floats longer."),
            (truth / FLOAT_BYTES, "That is the number of floats. The question is in bytes."),
        ],
        "A stage has 32 rows of 64 + 4 floats of A, and 32 rows of 64 floats of B.",
    )


@exercise(6, "d", "schedule")
def beat_pipeline(answer: Schedule) -> Feedback:
    """A pipeline that is a tenth faster than the rung."""
    if not any(loop.stages > 1 for nest in answer.program.nests for loop in nest.loops):
        return wrong("Your schedule has no pipeline: use stages=2, or add .pipeline(...).")
    return judge_faster(answer, rung("pipelined"), time_share=0.9)


def _find_place(lane: int, element: int) -> tuple[int, int]:
    """Row and column of a sum of a lane."""
    instruction = find_mma_instruction(FLOAT16)
    assert instruction is not None
    half, offset = instruction.find_sum_element(element)
    group, place = divmod(lane, LANES_PER_GROUP)
    return MMA_ROWS // 2 * half + group, 2 * place + offset


@exercise(7, "a", "function")
def place_sums(function: Callable[..., Any]) -> Feedback:
    """Row and column of each sum of each lane."""

    def explain(arguments: tuple[Any, ...], value: Any) -> str:
        row, column = _find_place(*arguments)
        if not isinstance(value, tuple | list) or len(value) != 2:
            return "Return a pair: row, column."
        if _is_equal(value, (column, row)):
            return "Row first, then column."
        if any(isinstance(v, float) and not v.is_integer() for v in value):
            return "The divisions are of whole numbers: // in Python."
        wrong_part = "row" if not is_near(value[0], row, 1e-9) else "column"
        return f"The {wrong_part} is wrong. Take the formula of the lesson, with // for the divisions."

    cases = [((lane, e), _find_place(lane, e)) for lane in range(WARP) for e in range(SUMS_PER_LANE)]
    return judge_function(function, cases, "Each element of the 16 x 8 tile has one lane.", explain)


def _is_equal(value: Any, truth: tuple[int, int]) -> bool:
    return all(is_near(a, b, 1e-9) for a, b in zip(value, truth, strict=True))


@exercise(7, "b", "number")
def count_mma(answer: float) -> Feedback:
    """Tensor-core instructions of the product."""
    instruction = find_mma_instruction(FLOAT16)
    assert instruction is not None
    products = SIZE**3
    each = MMA_ROWS * MMA_COLUMNS * instruction.depth
    return judge_number(
        answer,
        products // each,
        f"One by one, a warp would need {products / WARP:,.0f} multiply-add instructions.",
        [
            (products, "That is the number of multiply-adds. One instruction does 2048 of them."),
            (
                2 * products / each,
                "A multiply-add is two operations; count instructions of 2048 multiply-adds.",
            ),
            (products / each / WARP, "The 32 lanes do one instruction together."),
            (
                SIZE * SIZE / (MMA_ROWS * MMA_COLUMNS),
                "That is the number of tiles of C. Each needs several along k.",
            ),
        ],
        "Divide the multiply-adds of the product by those of one instruction.",
    )


@exercise(7, "c", "schedule")
def beat_tensor_product(answer: Schedule) -> Feedback:
    """Less time and less energy than the first tensor-core schedule."""
    if not any(nest.instruction for nest in answer.program.nests):
        return wrong("Your schedule uses no tensor core: it needs the step tensorize.")
    return judge_faster(answer, make_tensor_product(SIZE))


@exercise(7, "d", "function")
def find_lane(function: Callable[..., Any]) -> Feedback:
    """Lane of an element."""

    def explain(arguments: tuple[Any, ...], value: Any) -> str:
        if not 0 <= arguments[0] < MMA_ROWS // 2:
            return "Rows r and r + 8 belong to the same lane."
        return "A group of four lanes has a row, and each lane of it two neighbouring columns."

    cases = [(_find_place(lane, e), lane) for e in range(SUMS_PER_LANE) for lane in range(WARP)]
    return judge_function(function, cases, "Four lanes hold a row.", explain)


def _share_of_time(schedule: Schedule) -> float:
    """Energy in millijoules of the causes that are paid by the microsecond."""
    rows = compare_energy(schedule, schedule).rows
    return sum(mj for cause, mj, _ in rows if cause.endswith("x time"))


@exercise(8, "a", "number")
def share_of_time(answer: float) -> Feedback:
    """Percent of the energy of the naive kernel that goes to time."""
    naive, pipelined = rung("naive"), rung("pipelined")
    share = 100 * _share_of_time(naive) / measure(naive).mj
    other = 100 * _share_of_time(pipelined) / measure(pipelined).mj
    return judge_number(
        answer,
        share,
        f"Of the pipelined rung it is {other:.0f}%.",
        [
            (share / 100, "Give percent."),
            (100 - share, "That is the share of work. Time is the rest."),
            (_share_of_time(naive), "That is in millijoules. Divide by the energy of all causes."),
        ],
        "Add up the causes whose names end in 'x time', and divide by the energy of all.",
    )


@exercise(8, "b", "number")
def share_of_work(answer: float) -> Feedback:
    """Percent of a saving that is work."""
    before, after = rung("shared memory"), rung("register tile")
    saved = measure(before).mj - measure(after).mj
    work = saved - (_share_of_time(before) - _share_of_time(after))
    share = 100 * work / saved
    return judge_number(
        answer,
        share,
        "Most of it: instructions and loads that are not executed.",
        [
            (share / 100, "Give percent."),
            (100 - share, "That is the part of time. The question is the part of work."),
            (work, "That is in millijoules. Divide by all that is saved."),
        ],
        "Of the column of differences, add up the causes of work, and divide by the last row.",
    )


@exercise(8, "c", "number")
def find_best_clock(answer: float) -> Feedback:
    """Clock of least energy."""
    figures = measure_clocks(tiled(threads=(8, 8)))
    best = min(figures, key=lambda mhz: figures[mhz].mj)
    if answer == best:
        return right(
            f"{figures[best].mj:.2f} mJ; at {max(figures)} MHz it takes {figures[max(figures)].mj:.2f} mJ."
        )
    if answer not in figures:
        nearest = min(figures, key=lambda mhz: abs(mhz - answer))
        return wrong(
            f"The device has no such clock; the nearest is {nearest} MHz. Give one that measure_clocks lists."
        )
    if is_near(answer, min((m for m in figures if m % 150 == 60), key=lambda mhz: figures[mhz].mj), 1e-9):
        return wrong("That is the best of each tenth clock. Try all of them.")
    more = 100 * figures[int(answer)].mj / figures[best].mj - 100
    return wrong(f"At {answer:g} MHz a call takes {more:.1f}% more energy than at the best clock.")


@exercise(8, "d", "schedule")
def save_at_equal_speed(answer: Schedule) -> Feedback:
    """A quarter less energy at about the same time."""
    wide, deep = tiled(tile=(2, 4)), tiled(threads=(8, 16), tile=(8, 4), depth=8)
    if answer == deep:
        return wrong("That is deep itself. Find another.")
    return judge_faster(answer, wide, time_share=1.05, energy_share=0.75)


@exercise(9, "a", "number")
def count_cuts(answer: float) -> Feedback:
    """Ordered triples of factors of 512."""
    pairs = [(a, SIZE // a) for a in range(1, SIZE + 1) if SIZE % a == 0]
    cuts = {(a, b, rest // b) for a, rest in pairs for b in range(1, rest + 1) if rest % b == 0}
    unordered = {tuple(sorted(cut)) for cut in cuts}
    return judge_number(
        answer,
        len(cuts),
        f"For i and j together that makes {len(cuts) ** 2:,}, before k and all else.",
        [
            (len(unordered), "That is without the order: 1 x 4 x 128 and 4 x 1 x 128 are two."),
            (len(pairs), "That is the number of ways with two factors."),
            (
                len(pairs) ** 2,
                "The first two factors cannot be chosen freely: their product must divide 512.",
            ),
        ],
        "512 is 2 to the power of 9. In how many ways can 9 twos be put into three boxes?",
    )


@exercise(9, "b", "function")
def judge_draws(function: Callable[..., Any]) -> Feedback:
    """Draws that hit the best share with some confidence."""

    def explain(arguments: tuple[Any, ...], value: Any) -> str:
        if is_near(value, 1 / arguments[0], 0.05):
            return "That many draws hit it once in the mean, and often not at all."
        if isinstance(value, float) and not value.is_integer():
            return "Round up: there are whole draws only."
        return "All draws miss with probability (1 - share) ** draws. That must be at most 1 - confidence."

    cases = [(pair, count_draws(*pair)) for pair in ((0.01, 0.95), (0.05, 0.95), (0.001, 0.5), (0.5, 0.99))]
    return judge_function(function, cases, "It does not depend on the number of schedules.", explain)


@exercise(9, "c", "function")
def beat_random_search(function: Callable[..., Any]) -> Feedback:
    """A strategy that is 10 % better than random search."""
    random_best = draw_at_random().median_best("random")

    def strategy(tried: list[float]) -> Any:
        return call(function, tried)

    try:
        best = contest(yours=strategy).median_best("yours")
    except FunctionFailed as problem:
        return wrong(str(problem))
    found = f"{best:.1f} us against {random_best:.1f} us of random search in the median"
    if best <= 0.9 * random_best:
        return right(f"{found}.")
    if best == random_best:
        return wrong(f"{found}: it is random search. Return the index of a good trial now and then.")
    if best == contest(climb=climb_hill).median_best("climb"):
        return wrong(f"{found}: it is the climb of the lesson. On which hill should it begin?")
    return wrong(f"{found}. Look around first, then stay near the best few: when does yours do which?")


def climb_hill(tried: list[float]) -> int | None:
    """Hill climbing, as lesson 9 has it."""
    return tried.index(min(tried)) if tried else None


@cache
def draw_at_random() -> Contest:
    """The contest of random search alone."""
    return contest(random=lambda tried: None)


@exercise(10, "a", "function")
def judge_energy(function: Callable[..., Any]) -> Feedback:
    """Joules of a call, from readings of a counter."""
    for seed, (watts, tick_s, seconds) in enumerate(
        ((140.0, 0.1, 4e-5), (95.0, 0.1, 5e-4), (210.0, 0.02, 1e-5))
    ):
        readings = _read_counter(watts, tick_s, seed)
        try:
            value = call(function, readings, seconds)
        except FunctionFailed:
            return wrong(
                "Your function raises an error on readings of a counter. Try it on a list of your own."
            )
        truth = watts * seconds
        (t0, j0), (t1, j1) = readings[0], readings[-1]
        if is_near(value, truth, 0.005):
            continue
        if is_near(value, (j1 - j0) / (t1 - t0) * seconds, 1e-6):
            return wrong("You took the first and the last reading. Neither is on a tick: look for jumps.")
        if is_near(value, watts, 0.1):
            return wrong("That is the power in watts. Multiply by the seconds of a call.")
        if is_near(value, j1 - j0, 0.15):
            return wrong("That is the energy of all calls. One call takes seconds_of_call.")
        return wrong(
            f"The kernel takes {truth:.3g} J a call, and your function gives {format_value(value)}. Find the "
            "first and the last reading at which the counter has just jumped."
        )
    return right("The counter's ticks are exact here; real ones scatter, so windows are longer.")


def _read_counter(watts: float, tick_s: float, seed: int) -> list[tuple[float, float]]:
    """Readings every millisecond for about 1.5 s of a counter that ticks; it begins between two ticks."""
    offset = np.random.default_rng(seed).uniform(0.3, 0.7) * tick_s
    times = np.arange(0, 1.57, 1e-3)
    ticks = np.floor((times + offset) / tick_s + 1e-9)
    return list(zip(times.tolist(), (1000.0 + ticks * tick_s * watts).tolist(), strict=True))


@exercise(10, "b", "function")
def judge_verdict(function: Callable[..., Any]) -> Feedback:
    """The meaning of an interval of a ratio."""

    def explain(arguments: tuple[Any, ...], value: Any) -> str:
        if arguments[0] < 1 < arguments[1]:
            return "The interval contains 1, so both kernels may take the same."
        return "Is the whole interval above 1, below 1, or is 1 in it?"

    cases = [((0.9, 0.95), -1), ((0.97, 1.02), 0), ((1.01, 1.2), 1), ((0.5, 1.5), 0), ((0.999, 1.3), 0)]
    return judge_function(function, cases, "A small difference needs more meterings.", explain)


@exercise(10, "c", "text")
def predict_finding(answer: str) -> Feedback:
    """The finding of a loop with an iteration too many."""
    kinds = ("race", "misaligned", "out-of-bounds", "uninitialised")
    kind = re.sub(r"[\s_]+", "-", answer.strip().lower())
    kind = "uninitialised" if kind == "uninitialized" else kind
    if kind not in kinds:
        return wrong(f"Answer one of: {', '.join(kinds)}.")
    kernel = compile(rung("shared memory", size=64), arch=ARCH)
    start = kernel.launches[0]
    text = kernel.cuda_source.replace("k_1 < 16", "k_1 < 17", 1)
    arrays = [np.ones((64, 64), np.float32) for _ in range(3)]
    ptx = nvrtc.compile(text, ARCH).ptx
    report = launch(ptx, start.name, grid=start.grid, block=start.block, args=arrays, blocks=[0])
    found = {finding.kind for finding in report.findings}
    if kind in found:
        return right(f"{report.findings[0].message}.")
    return wrong("Iteration 16 reads B.shared[16, j.1]. How many rows has the tile?")


@exercise(10, "d", "text")
def repair_sum(answer: str) -> Feedback:
    """A sum in shared memory without a race."""
    try:
        ptx = nvrtc.compile(answer, ARCH).ptx
    except CompileError as problem:
        return wrong(f"It does not compile: {str(problem).partition(chr(10))[0]}")
    x, y = np.random.default_rng(0).standard_normal(256).astype(np.float32), np.zeros(1, np.float32)
    report = launch(ptx, "sum", grid=(1,), block=(256,), args=[x, y], max_instructions=50_000)
    if not math.isclose(float(y[0]), float(x.sum()), abs_tol=1e-3):
        return wrong(f"The sum is wrong by {abs(float(y[0] - x.sum())):.3g}.")
    if report.findings:
        return wrong(
            f"The sanitizer finds: {report.findings[0].message}. "
            "Which thread wrote what is read here, and when?"
        )
    if not report.counters.barriers:
        return wrong("Your kernel has no barrier. Sum in shared memory, with all threads.")
    skipped = re.search(r"if\s*\([^()]*half[^()]*\)\s*(\{[^{}]*__syncthreads|__syncthreads)", answer)
    if skipped:
        return wrong("Some threads skip a barrier inside an if. All threads of the block must reach it.")
    return right(f"The block passes {report.counters.barriers} barriers.")
