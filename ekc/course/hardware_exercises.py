"""Exercises of lessons 5 to 8: occupancy, pipelines, tensor cores, energy."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.random import Generator

from ekc.course.answers import Feedback, exercise, is_near, judge_function, judge_number, right, wrong
from ekc.course.kernel_exercises import ARCH, FLOAT_BYTES, WARP, judge_faster
from ekc.course.ladder import (
    SIZE,
    compare_energy,
    count,
    find_capability,
    make_tensor_product,
    measure,
    measure_clocks,
    occupancy,
    open_device,
    rung,
    tiled,
)
from ekc.devices.simulated.launch_counts import compute_occupancy
from ekc.ir.dtypes import FLOAT16
from ekc.ir.hardware.mma import LANES_PER_GROUP, MMA_COLUMNS, MMA_INSTRUCTIONS, MMA_ROWS, SUMS_PER_LANE
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.kernel import compile


def _draw_blocks(random: Generator) -> list[tuple[int, int, int]]:
    """Some blocks: threads, registers of a thread, and bytes of shared memory. Each of these limits some.

    Registers are multiples of 8 and bytes multiples of 128, since the hardware rounds up to these. So are the
    warps of a block multiples of 4, where registers may limit it.
    """
    capability = find_capability()
    blocks = []
    for _ in range(6):
        threads, registers = 128 * int(random.integers(1, 9)), 8 * int(random.integers(2, 17))
        blocks.append((threads, registers, 128 * int(random.integers(64))))
        blocks.append((threads, 16, 0))
        # `fitting` blocks fit if the reserve of each is forgotten, and fewer with it.
        fitting = int(random.integers(3, 9))
        most = capability.shared_bytes_per_sm // fitting // 128
        blocks.append((128, 32, 128 * (most - int(random.integers(6)))))
    blocks += [(32, 24, 0), (64, 32, 0)]
    return [blocks[i] for i in random.permutation(len(blocks))]


@exercise(5, "a", "function")
def compute_warps(function: Callable[..., Any], random: Generator) -> Feedback:
    """Resident warps of an SM."""
    capability = find_capability()

    def explain(arguments: tuple[Any, ...], value: Any) -> str:
        threads, registers, shared_bytes = arguments
        found = compute_occupancy(capability, threads, registers, shared_bytes)
        if is_near(value, found.blocks):
            return "That is the number of blocks. How many warps has a block?"
        if is_near(value, found.warps * WARP):
            return "That is the number of threads. 32 of them are a warp."
        if isinstance(value, float) and not value.is_integer():
            return "Only whole blocks fit: round down."
        if found.limited_by == "shared memory" and is_near(
            value, capability.shared_bytes_per_sm // shared_bytes * found.warps_per_block
        ):
            return "Each block takes more shared memory than it declares: see the last row of the table."
        return (
            f"Here {found.limited_by} limit the blocks. Take the least of the four limits, in whole blocks."
        )

    cases = [(block, compute_occupancy(capability, *block).warps) for block in _draw_blocks(random)]
    remark = "Real GPUs also round registers up, to a multiple of 8 for each thread."
    return judge_function(function, cases, remark, explain)


@exercise(5, "b", "text")
def judge_limit(answer: str) -> Feedback:
    """The resource that limits a kernel with deep tiles and small blocks."""
    schedule = tiled(threads=(8, 8), depth=64)
    names, limit = ("warps", "blocks", "registers", "shared memory"), answer.strip().lower()
    if limit not in names:
        return wrong(f"Answer one of: {', '.join(names)}.")
    found = occupancy(schedule)
    if limit == found.limited_by:
        return right(f"{found.blocks} blocks fit, which are {found.warps} warps.")
    return wrong(
        f"{limit.capitalize()} would allow more blocks than fit. For each of the four, divide what an SM has "
        "by what a block takes; the least decides. With two stages there are two tiles of each kind."
    )


@exercise(5, "c", "number")
def count_idle_sms(answer: float) -> Feedback:
    """SMs without a block."""
    blocks = prod(compile(tiled(stages=1, size=256), arch=ARCH).launches[0].grid)
    sms = open_device().limits.sms
    return judge_number(
        answer,
        sms - blocks,
        f"Only {blocks} SMs have a block.",
        [
            (blocks, "That is the number of blocks. How many SMs have none?"),
            (0, "How many blocks are there? A block computes (16 x 4) x (16 x 4) elements."),
            (sms - 64, "That is for a product of 512 x 512."),
        ],
        "A block computes (16 x 4) x (16 x 4) elements of C. How many such blocks cover 256 x 256?",
    )


@exercise(5, "d", "schedule")
def beat_both_tiles(answer: Schedule) -> Feedback:
    """Less time than a tile of 1 x 1, and less energy than one of 4 x 4."""
    fast, cheap = (tiled(tile=tile, vector=1, stages=1, size=256) for tile in ((1, 1), (4, 4)))
    if answer.op != fast.op:
        return wrong("The operator is ekc.matmul(256, 256, 256): use size=256.")
    found, time, energy = measure(answer), measure(fast), measure(cheap)
    if found.us < time.us and found.mj < energy.mj:
        return right(f"Figures: {found}.")
    return wrong(
        f"Against 1 x 1 your time is {100 * found.us / time.us - 100:+z.0f}%, and against 4 x 4 your energy "
        f"is {100 * found.mj / energy.mj - 100:+z.0f}%. Look at the table of wishes: which is not met?"
    )


@exercise(6, "a", "function")
def sum_pipeline(function: Callable[..., Any], random: Generator) -> Feedback:
    """Time of a pipeline of two stages."""

    def explain(arguments: tuple[Any, ...], value: Any) -> str:
        tiles, load, multiply = arguments
        if is_near(value, tiles * (load + multiply)):
            return "That is without a pipeline. Here a load and a multiplication run at the same time."
        if is_near(value, tiles * max(load, multiply)):
            return "The first load and the last multiplication have nothing to run beside them."
        return "The first tile is only loaded, the last only multiplied. What happens in each step between?"

    times = np.round(random.uniform(1, 9, (12, 2)), 1).tolist()
    shapes = [
        (n, a, b) for n, (a, b) in zip((1, 2, *random.integers(3, 65, 10).tolist()), times, strict=True)
    ]
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
    """A pipeline that takes 3 percent less time than the rung."""
    if not any(loop.stages > 1 for nest in answer.program.nests for loop in nest.loops):
        return wrong("Your schedule has no pipeline: use stages=2, or add .pipeline(...).")
    return judge_faster(answer, rung("pipelined"), time_share=0.97)


_INSTRUCTION = next(one for one in MMA_INSTRUCTIONS if one.dtype is FLOAT16)
"""The product on tensor cores of lesson 7."""


def _find_place(lane: int, element: int) -> tuple[int, int]:
    """Row and column of a sum of a lane."""
    half, offset = _INSTRUCTION.find_sum_element(element)
    group, place = divmod(lane, LANES_PER_GROUP)
    return MMA_ROWS // 2 * half + group, 2 * place + offset


@exercise(7, "a", "function")
def place_sums(function: Callable[..., Any], random: Generator) -> Feedback:
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
    random.shuffle(cases)
    return judge_function(function, cases, "Each element of the 16 x 8 tile has one lane.", explain)


def _is_equal(value: Any, truth: tuple[int, int]) -> bool:
    return all(is_near(a, b, 1e-9) for a, b in zip(value, truth, strict=True))


@exercise(7, "b", "number")
def count_mma(answer: float) -> Feedback:
    """Tensor-core instructions of the product."""
    products = SIZE**3
    each = MMA_ROWS * MMA_COLUMNS * _INSTRUCTION.depth
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
def judge_lane(function: Callable[..., Any], random: Generator) -> Feedback:
    """Lane of an element."""

    def explain(arguments: tuple[Any, ...], value: Any) -> str:
        if not 0 <= arguments[0] < MMA_ROWS // 2:
            return "Rows r and r + 8 belong to the same lane."
        return "A group of four lanes has a row, and each lane of it two neighbouring columns."

    cases = [(_find_place(lane, e), lane) for e in range(SUMS_PER_LANE) for lane in range(WARP)]
    random.shuffle(cases)
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
def judge_best_clock(answer: float) -> Feedback:
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
    """15 percent less energy at about the same time."""
    wide, deep = tiled(tile=(2, 4)), tiled(depth=32, stages=1)
    if answer.op == deep.op and _count_work(answer) == _count_work(deep):
        return wrong("That is deep itself: it has the same blocks, loads and barriers. Find another.")
    return judge_faster(answer, wide, time_share=1.05, energy_share=0.85)


def _count_work(schedule: Schedule) -> tuple[Any, ...]:
    """Shape of a launch and accesses of its first block. Unrolled loops change none of them."""
    counters = count(schedule).counters
    start = compile(schedule, arch=ARCH).launches[0]
    return start.grid, start.block, counters.shared_requests, counters.global_requests, counters.barriers
