"""Exercises of lessons 9 to 11: search, metering and the sanitizer, and a space of one's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.random import Generator

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
from ekc.course.kernel_exercises import ARCH, FLOAT_BYTES, judge_faster
from ekc.course.ladder import DEVICE, SIZE, rung
from ekc.course.strategies import Contest, Strategy, compute_random_best, contest, count_draws
from ekc.emulator.counters import Counters
from ekc.emulator.launch import launch
from ekc.errors import CompileError
from ekc.ir.operators import matmul
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.kernel import compile
from ekc.search.space.design_space import DesignSpace
from ekc.search.space.design_space import space as open_space


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
def judge_draws(function: Callable[..., Any], random: Generator) -> Feedback:
    """Draws that hit the best share with some confidence."""

    def explain(arguments: tuple[Any, ...], value: Any) -> str:
        if is_near(value, 1 / arguments[0], 0.05):
            return "That many draws hit it once in the mean, and often not at all."
        if isinstance(value, float) and not value.is_integer():
            return "Round up: there are whole draws only."
        return "All draws miss with probability (1 - share) ** draws. That must be at most 1 - confidence."

    pairs = [(0.01, 0.95), *zip(random.uniform(0.002, 0.6, 12), random.uniform(0.5, 0.999, 12), strict=True)]
    cases = [
        ((s, c), count_draws(s, c)) for s, c in ((round(float(s), 4), round(float(c), 4)) for s, c in pairs)
    ]
    return judge_function(function, cases, "It does not depend on the number of schedules.", explain)


RUNS = 303
"""Runs of the contest of exercise 9c."""


@exercise(9, "c", "function")
def beat_random_search(function: Callable[..., Any], random: Generator) -> Feedback:
    """A strategy that is 4 % better than random search, in runs that each check draws."""

    def strategy(tried: list[float]) -> Any:
        return call(function, tried)

    first_run = int(random.integers(1 << 30))

    def run(contender: Strategy) -> Contest:
        return contest(runs=RUNS, first_run=first_run, one=contender)

    try:
        found_by_strategy = run(strategy)
    except FunctionFailed as problem:
        return wrong(str(problem))

    def tries_as(contender: Strategy) -> bool:
        return np.array_equal(found_by_strategy.us["one"], run(contender).us["one"])

    best = found_by_strategy.median_best("one")
    random_best = compute_random_best()
    found = f"{best:.1f} us against {random_best:.1f} us of random search in the median"
    if best <= 0.99 * random_best and tries_as(climb_hill):
        return wrong(f"{found}: it is the climb of the lesson. From which schedule should a climb begin?")
    if best <= 0.96 * random_best:
        return right(f"{found}.")
    if tries_as(lambda tried: None):
        return wrong(f"{found}: it is random search. Return the index of a good trial now and then.")
    return wrong(f"{found}. Look around first, then stay near the best few: when does yours do which?")


def climb_hill(tried: list[float]) -> int | None:
    """Hill climbing, as lesson 9 has it."""
    return tried.index(min(tried)) if tried else None


@exercise(10, "a", "function")
def judge_energy(function: Callable[..., Any], random: Generator) -> Feedback:
    """Joules of a call, from readings of a counter."""
    for tick_s in (0.1, 0.02, *random.uniform(0.05, 0.1, 4)):
        watts, seconds = float(random.uniform(60, 400)), float(10 ** random.uniform(-5, -3))
        readings = _read_counter(watts, tick_s, random)
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


def _read_counter(watts: float, tick_s: float, random: Generator) -> list[tuple[float, float]]:
    """Readings (seconds, joules) of a counter, one each millisecond for about 1.5 s.

    The counter changes every `tick_s` seconds. The readings begin and end between two changes, so that the
    mean power between the first and the last reading is wrong.
    """
    offset = random.uniform(0.3, 0.7) * tick_s
    duration_s = (round(1.5 / tick_s) + random.uniform(0.3, 0.7)) * tick_s
    times = np.arange(0, duration_s, 1e-3)
    ticks = np.floor((times + offset) / tick_s + 1e-9)
    return list(zip(times.tolist(), (1000.0 + ticks * tick_s * watts).tolist(), strict=True))


@exercise(10, "b", "function")
def judge_verdict(function: Callable[..., Any], random: Generator) -> Feedback:
    """The meaning of an interval of a ratio."""

    def explain(arguments: tuple[Any, ...], value: Any) -> str:
        if arguments[0] < 1 < arguments[1]:
            return "The interval contains 1, so both kernels may take the same."
        return "Is the whole interval above 1, below 1, or is 1 in it?"

    # Ends are near to 1 or far from it.
    near, far = 10 ** random.uniform(-4, -1, (2, 10)), 10 ** random.uniform(-1, -0.1, 10)
    cases = []
    for a, b, c in np.round([near[0], near[1], far], 6).T.tolist():
        cases += [((1 - c, 1 - a), -1), ((1 + a, 1 + c), 1), ((1 - a, 1 + b), 0)]
        cases += [((1 - a, 1 + c), 0), ((1 - c, 1 + a), 0)]
    random.shuffle(cases)
    return judge_function(function, cases, "A small difference needs more meterings.", explain)


@exercise(10, "c", "text")
def predict_finding(answer: str) -> Feedback:
    """The finding of the sanitizer where a loop has an iteration too many."""
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


@exercise(10, "d", "kernel")
def repair_sum(answer: str, random: Generator) -> Feedback:
    """A sum in shared memory without a race, run on drawn numbers."""
    try:
        ptx = nvrtc.compile(answer, ARCH).ptx
    except CompileError as problem:
        return wrong(f"It does not compile: {str(problem).partition(chr(10))[0]}")
    threads, most = 256, 1000
    # Multiples of 1/8, whose sums are exact in any order. None is a whole number, which integers could sum.
    numbers = (8 * random.integers(1, most, (3, threads)) + 3) * random.choice([-1, 1], (3, threads)) / 8
    for x in numbers.astype(np.float32):
        y = np.full(1, 2.0 * most * threads, np.float32)
        report = launch(ptx, "sum", grid=(1,), block=(threads,), args=[x.copy(), y], max_instructions=50_000)
        if y[0] != x.sum():
            return wrong(f"The sum is wrong by {abs(float(y[0] - x.sum())):.3g}.")
    barriers = [f for f in report.findings if f.kind == "barrier"]
    if barriers:
        return wrong(
            f"{barriers[0].message[0].upper()}{barriers[0].message[1:]}. "
            "All threads of the block must reach each barrier, so none may be inside an if."
        )
    if report.findings:
        first = report.findings[0]
        hint = " A barrier must be between the write and the read." if first.kind == "race" else ""
        return wrong(f"The sanitizer finds: {first.message}.{hint}")
    return _judge_counters_of_sum(report.counters, threads)


def _judge_counters_of_sum(counters: Counters, threads: int) -> Feedback:
    """Judge a kernel with a right result: it must load each float once, and many threads must sum."""
    sites = list(counters.instructions.values())
    loads = counters.bytes_by_space.get("load.global", 0) // FLOAT_BYTES
    sums = sum(x.warps for x in sites if x.kind.startswith(("float.", "fma.")))
    if loads > threads:
        return wrong(
            f"Your kernel loads {loads} floats from global memory, and x has {threads}. Load each once, and "
            "sum in shared memory."
        )
    if not counters.shared_requests:
        return wrong("Your kernel does not use shared memory. Keep the array part, and sum in it.")
    if sums > threads // 2:
        return wrong(
            f"Your kernel needs {sums} additions of a warp, nearly one for each float: few threads add while "
            "the others wait. Keep the loop in which half of the threads add."
        )
    return right(f"The block passes {counters.barriers} barriers.")


STAGED = "A:shared+register B:shared+register"
"""Structure of exercise 11a, which has a variant with asynchronous copies."""


@cache
def open_rule_space() -> DesignSpace:
    """The space of the product of the course."""
    return open_space(matmul(SIZE, SIZE, SIZE), DEVICE)


@exercise(11, "a", "text")
def name_rule(answer: str) -> Feedback:
    """The rule of one structure that another lacks."""
    rules = {s.name: set(s.rules) for s in open_rule_space().structures}
    (rule,) = rules[f"{STAGED} flying"] - rules[STAGED]
    word = answer.strip().lower().removeprefix("rule ").strip()
    if word in (rule.name, str(rule.number)):
        return right(rule.effect)
    if any(word in (x.name, str(x.number)) for x in rules[STAGED]):
        return wrong("Both structures come from that rule. Compare their numbers in the column of the rules.")
    return wrong("Answer with the name of a rule, as it is below the table of the space.")


@exercise(11, "b", "number")
def count_combinations(answer: float) -> Feedback:
    """Combinations of the space of the lesson with one more hole in two steps."""
    before = 16 * 16 * 3 * 2
    return judge_number(
        answer,
        before * 3,
        "A hole has one value in all steps.",
        [
            (before, "That is the space without padding."),
            (before * 9, "Both steps have the same hole, which has one value at a time."),
        ],
        "Multiply the lengths of the lists: two of tiles, the depths, the stages, the pads.",
    )


@exercise(11, "c", "function")
def judge_neighbours(function: Callable[..., Any], random: Generator) -> Feedback:
    """Neighbours of a pair of powers of two in a list."""
    pairs = [(2**a, 2**b) for a in range(6) for b in range(5)]
    moves = [(0.5, 1), (2, 1), (1, 0.5), (1, 2), (0.5, 2), (2, 0.5)]
    for _ in range(12):
        values = [pairs[n] for n in sorted(random.permutation(len(pairs))[:20].tolist())]
        a, b = value = values[int(random.integers(len(values)))]
        truth = {pair for pair in values if any(pair == (a * x, b * y) for x, y in moves)}
        try:
            found = {tuple(pair) for pair in call(function, [*map(list, values)], list(value))}
        except (FunctionFailed, TypeError) as problem:
            return wrong(f"Return a list of pairs. {problem}")
        if found != truth:
            extra, missing = sorted(found - truth), sorted(truth - found)
            what = f"{[*extra[0]]} is no neighbour" if extra else f"{[*missing[0]]} is one too"
            return wrong(f"With values={[*map(list, values)]} and value={list(value)}: {what}.")
    return right("Where a doubled number is in no value, ekc takes the next larger one.")


@exercise(11, "d", "text")
def read_landscape(answer: str) -> Feedback:
    """The structure with the least estimated energy of a sample."""
    space = open_rule_space()
    drawn = space.sample(1000)
    joules = [figures[1] for figures in space.estimate(drawn)]
    name = space.find_structure(drawn[int(np.argmin(joules))])
    if answer.strip() == name:
        return right(f"Its lowest point takes {min(joules) * 1e3:.1f} mJ by estimate.")
    if answer.strip() in space.counts:
        return wrong("Another structure has a lower point. The energy is on the vertical axis.")
    return wrong("Answer with the name of a structure, as the legend has it, without the number behind it.")


@exercise(11, "e", "schedule")
def beat_pipelined(answer: Schedule) -> Feedback:
    """A schedule of a space of one's own that is faster than the rung."""
    return judge_faster(answer, rung("pipelined"), 0.95, 1.1)
