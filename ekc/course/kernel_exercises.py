"""Exercises of lessons 1 to 4: schedules, coalescing, shared memory, registers and vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ekc.course.answers import Feedback, exercise, is_near, judge_function, judge_number, right, wrong
from ekc.course.ladder import SIZE, count, measure, measure_warp_shape, rung, tiled
from ekc.errors import ScheduleError
from ekc.ir.drawing.ownership import compute_block_tile
from ekc.ir.hardware.target import find_capabilities
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.operators import matmul
from ekc.ir.schedule import CacheRead
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.kernel import compile

ARCH = "sm_80"
WARP, BANKS, FLOAT_BYTES, SECTOR_BYTES = 32, 32, 4, 32


def name_operator(schedule: Schedule) -> str:
    """The operator of a schedule in one line."""
    return str(schedule.op).partition("\n")[0]


@exercise(1, "a", "number")
def count_blocks(answer: float) -> Feedback:
    """Blocks of a kernel with tiles of 16 x 64."""
    cut = Schedule(matmul(SIZE, SIZE, SIZE)).split("i", (16,)).split("j", (64,))
    cut = cut.reorder("i.0", "j.0", "i.1", "j.1", "k").bind("i.0", "block.y").bind("j.0", "block.x")
    launch = compile(cut.bind("i.1", "thread.y").bind("j.1", "thread.x"), arch=ARCH).launches[0]
    x, y, _ = launch.grid
    threads = launch.block[0] * launch.block[1]
    rung_blocks = (SIZE // 16) ** 2
    return judge_number(
        answer,
        x * y,
        f"{y} x {x} blocks, each of {threads} threads.",
        [
            (x, "That is one direction. Two loops are bound to blocks."),
            (y, "That is one direction. Two loops are bound to blocks."),
            (rung_blocks, "That is the number with tiles of 16 x 16. Here a tile has 64 columns."),
            (threads, "That is the number of threads in a block."),
            (x * y * threads, "That is the number of all threads. How many of them share a block?"),
        ],
        "Which loops are bound to blocks, and how many iterations does each have?",
    )


@exercise(1, "b", "text")
def judge_unbindable_loop(answer: str) -> Feedback:
    """The loop that no block can have."""
    op = matmul(SIZE, SIZE, SIZE)
    names = [axis.name for axis in op.computes[0].axes]
    loop = answer.strip().lower()
    if loop not in names:
        return wrong(f"Give the name of a loop of the operator: {', '.join(names)}.")
    try:
        Schedule(op).bind(loop, "block.x")
    except ScheduleError:
        return right(
            "Each of its iterations adds to the same element of C. Blocks at the same time would lose sums. "
            "ekc calls such a loop a reduction."
        )
    return wrong(f"Loop {loop} can: each of its iterations writes other elements of C. Which loop adds up?")


@exercise(1, "c", "number")
def count_products(answer: float) -> Feedback:
    """Multiply-adds of one thread of the naive kernel."""
    op = matmul(SIZE, SIZE, SIZE)
    threads = SIZE * SIZE
    each = op.flops // 2 // threads
    return judge_number(
        answer,
        each,
        "One for each iteration of k. All threads together do the work of the three loops.",
        [
            (2 * each, "A multiply-add is one instruction, though it counts as two operations."),
            (op.flops / 2, "That is what all threads do together."),
            (1, "A thread computes one element of C. How many products are added up in it?"),
        ],
        "Which loop is bound to neither blocks nor threads? A thread runs all of its iterations.",
    )


@exercise(1, "d", "schedule")
def shape_blocks(answer: Schedule) -> Feedback:
    """Blocks of 8 rows x 32 columns of threads for a product of 96 x 128 x 64."""
    rows, columns, op = 8, 32, matmul(96, 128, 64)
    if answer.op != op:
        return wrong(f"The operator is ekc.matmul(96, 128, 64), and yours is {name_operator(answer)}.")
    launch = compile(answer, arch=ARCH).launches[0]
    if launch.block == (rows, columns, 1):
        return wrong(
            "Your blocks have 32 rows of 8 threads. thread.x counts along a row of C: which loop is it?"
        )
    if launch.block != (columns, rows, 1):
        x, y, z = launch.block
        return wrong(
            f"The size of your blocks along x, y and z is {x}, {y} and {z}. "
            "The number of a split is the extent of its inner loop; bind the inner loops to threads."
        )
    if sorted(launch.grid) != sorted((op.outputs[0].shape[0] // rows, op.outputs[0].shape[1] // columns, 1)):
        return wrong(
            f"The threads are right. Your grid is {launch.grid}. Bind both outer loops to blocks, and the "
            "rows of a tile to thread.y."
        )
    place = compute_block_tile(derive_launches(answer.program)[0]).index
    if len(place) != rows * columns or tuple(np.ptp(place, axis=0)) != (rows - 1, columns - 1):
        return wrong(
            "The elements of your first block are no tile of 8 x 32 neighbours. Bind the inner loops of both "
            "splits to threads, and the outer ones to blocks."
        )
    return right(f"A grid of {launch.grid[:2]} blocks, each of {launch.block[:2]} threads along x and y.")


@exercise(2, "a", "text")
def judge_strided_tensor(answer: str) -> Feedback:
    """The tensor that the naive kernel reads in many sectors."""
    tensor = answer.strip().upper()
    if tensor not in ("A", "B"):
        return wrong('Answer "A" or "B".')
    # Element read by each lane of the first warp: thread.x is the row of C, and k = 0.
    lanes = np.arange(WARP)
    offsets = {"A": (lanes % 16) * SIZE, "B": lanes // 16}
    strided = max(offsets, key=lambda name: _count_sectors(offsets[name]))
    if tensor == strided:
        return right("Its 16 elements are one row from each other, so each has a sector of its own.")
    return wrong(
        "thread.x is i here. In which of A[i, k] and B[k, j] do two neighbouring i lie far from each other?"
    )


def _count_sectors(elements: NDArray[np.int64]) -> int:
    """Sectors that hold these elements of an array of floats."""
    return len(np.unique(elements * FLOAT_BYTES // SECTOR_BYTES))


@exercise(2, "b", "function")
def count_strided_sectors(function: Callable[..., Any], random: Generator) -> Feedback:
    """Sectors of a strided read, as a function of the stride."""
    lanes = np.arange(WARP)

    def explain(arguments: tuple[Any, ...], value: Any) -> str:
        if is_near(value, WARP * arguments[0] * FLOAT_BYTES / SECTOR_BYTES):
            return "More sectors than lanes cannot be needed."
        if is_near(value, WARP * arguments[0] / SECTOR_BYTES):
            return "A sector has 32 bytes, and a float has 4 of them."
        return "How many bytes are there from the first to the last float, and how many lanes share a sector?"

    strides = (*random.permutation(np.arange(1, 12)), *random.integers(12, 5000, 12))
    cases = [((int(stride),), _count_sectors(lanes * stride)) for stride in strides]
    return judge_function(function, cases, "From a stride of 8 on, each lane has its own sector.", explain)


@exercise(2, "c", "schedule")
def shape_warp(answer: Schedule) -> Feedback:
    """One row of 32 columns in each warp."""
    op = matmul(SIZE, SIZE, SIZE)
    if answer.op != op:
        return wrong(f"The operator is ekc.matmul({SIZE}, {SIZE}, {SIZE}).")
    launch = compile(answer, arch=ARCH).launches[0]
    threads, elements = prod(launch.block) * prod(launch.grid), prod(op.outputs[0].shape)
    if threads != elements:
        return wrong(
            f"Your kernel has {threads} threads, and C has {elements} elements. Give each thread one."
        )
    found = count(answer)
    if found.counters.shared_requests:
        return wrong("Your kernel uses shared memory. Leave cache_read out.")
    sectors = sorted(found.sectors_of_loads())
    rows, columns = measure_warp_shape(answer)
    if sectors == [1, 4] and rows == 1:
        return right(f"Figures: {measure(answer)}.")
    shown = " and ".join(f"{s:g}" for s in sectors)
    return wrong(
        f"Your two loads read {shown} sectors a request; A must be read with 1, and B with 4. Your warp has "
        f"{rows} rows x {columns} columns of C. What must its shape be, and is thread.x the column?"
    )


@exercise(2, "d", "number")
def compute_power(answer: float) -> Feedback:
    """Mean power of the coalesced kernel."""
    found = measure(rung("coalesced"))
    return judge_number(
        answer,
        found.watts,
        f"The naive kernel draws {measure(rung('naive')).watts:.0f} W.",
        [
            (found.mj / found.us, "Millijoules by microseconds are kilowatts."),
            (found.us / found.mj, "Power is energy by time, not time by energy."),
            (found.mj * found.us, "Power is energy divided by time."),
            *((found.watts * 10.0**n, "The digits are right. Check the units.") for n in (-6, -3, 3, 6)),
        ],
        "Power is energy by time. One watt is one joule a second.",
    )


@exercise(3, "a", "number")
def count_shared_bytes(answer: float) -> Feedback:
    """Shared memory of a block of the rung "shared memory"."""
    kernel = compile(rung("shared memory"), arch=ARCH)
    truth = kernel.resources[0].shared_bytes + kernel.launches[0].shared_bytes
    return judge_number(
        answer,
        truth,
        f"An A100 has room for {find_capabilities(ARCH).shared_bytes} bytes in one block.",
        [
            (truth / 2, "That is one tile, and two are staged."),
            (truth / FLOAT_BYTES, "That is the number of elements. How many bytes has a float?"),
            (truth / 2 / FLOAT_BYTES, "That is the number of elements of one tile."),
        ],
        "Two tiles of 16 x 16 floats are in shared memory at a time. How many bytes has a float?",
    )


@exercise(3, "b", "function")
def judge_bank(function: Callable[..., Any], random: Generator) -> Feedback:
    """Bank of an element of a tile."""

    def explain(arguments: tuple[Any, ...], value: Any) -> str:
        row, column, width = arguments
        if is_near(value, row * width + column):
            return "That is the number of the word. There are only 32 banks."
        if is_near(value, column % BANKS):
            return "The row matters too: it begins at word row * width."
        return "First the number of the word: how many words are before this row? Then its bank."

    widths = [32, 33, *map(int, random.integers(2, 100, 14))]
    shapes = [(int(random.integers(1, 64)), int(random.integers(w)), w) for w in widths]
    cases = [((r, c, w), (r * w + c) % BANKS) for r, c, w in shapes]
    return judge_function(function, cases, "Rows of 33 words begin one bank further each time.", explain)


@exercise(3, "c", "function")
def count_passes(function: Callable[..., Any], random: Generator) -> Feedback:
    """Passes of a warp that reads a column, as a function of the width of a row."""

    def explain(arguments: tuple[Any, ...], value: Any) -> str:
        banks = len({row * arguments[0] % BANKS for row in range(WARP)})
        if is_near(value, banks):
            return "That is the number of different banks. How many lanes share the fullest one?"
        return "Find the bank of each lane's word. The bank with the most lanes decides."

    cases = []
    # One width for each possible number of passes (1 to 32), then any widths.
    odd = 2 * random.integers(0, 12, 6) + 1
    for width in map(int, (*odd * 2 ** np.arange(6), *random.integers(1, 300, 8))):
        lanes_by_bank = Counter(row * width % BANKS for row in range(WARP))
        cases.append(((width,), max(lanes_by_bank.values())))
    return judge_function(function, cases, "An odd width puts a column into 32 banks.", explain)


@exercise(3, "d", "schedule")
def avoid_conflicts(answer: Schedule) -> Feedback:
    """A transposed tile without bank conflicts."""
    shared = rung("shared memory")
    if answer.op != shared.op:
        return wrong(f"The operator is ekc.matmul({SIZE}, {SIZE}, {SIZE}).")
    tiles = [s for s in answer.program.nests[0].stagings if s.scope == "shared" and s.source == "A"]
    if not tiles or tiles[0].order != (1, 0):
        return wrong("The tile of A in shared memory must stay transposed: order=(1, 0).")
    found = count(answer)
    conflicts = found.conflicts
    if conflicts == 0 and found.barriers != count(shared).barriers:
        return wrong("Your tiles have another depth than those of turned. Keep them, and change the padding.")
    if conflicts == 0:
        return right(f"Figures: {measure(answer)}.")
    return wrong(
        f"{conflicts} bank conflicts are left in a block. A warp stores 16 elements in each of two columns: "
        "into which banks do they go with your pad? Another small number does it."
    )


@exercise(4, "a", "number")
def count_loads(answer: float) -> Feedback:
    """Loads for each multiply-add of a tile of 2 x 8."""
    rows, columns = 2, 8
    truth = (rows + columns) / (rows * columns)
    return judge_number(
        answer,
        truth,
        f"A tile of 4 x 4 needs {8 / 16}: squares are best.",
        [
            (1 / truth, "That is multiply-adds for each load. Turn it around."),
            (rows + columns, "That is the number of loads. Divide by the multiply-adds that they serve."),
            (2, "That is without a tile: two loads for one multiply-add."),
            (1, "Each element of A is used for 8 columns, not for one."),
        ],
        "For one k: how many elements of A, how many of B, and how many multiply-adds?",
    )


@exercise(4, "b", "function")
def compute_reuse(function: Callable[..., Any], random: Generator) -> Feedback:
    """Multiply-adds for each loaded float, as a function of the tile."""

    def explain(arguments: tuple[Any, ...], value: Any) -> str:
        rows, columns = arguments
        if is_near(value, (rows + columns) / (rows * columns)):
            return "That is loads for each multiply-add. Turn it around."
        if is_near(value, rows * columns):
            return "These are the multiply-adds. Divide by the floats that are loaded for them."
        return "For one k, a thread loads a column of A and a row of B."

    shapes = ((1, 1), (4, 4), *random.integers(1, 33, (10, 2)).tolist())
    cases = [((r, c), r * c / (r + c)) for r, c in shapes]
    return judge_function(function, cases, "4 x 4 is best of the shapes with 16 elements.", explain)


@exercise(4, "c", "number")
def judge_vector_limit(answer: float) -> Feedback:
    """Elements that one load may take from a column of a tile that is not transposed."""
    tiles = tiled(vector=1, stages=1)
    steps = [
        replace(step, vector=4) if isinstance(step, CacheRead) and step.source == "A.shared" else step
        for step in tiles.steps
    ]
    try:
        compile(Schedule(tiles.op).apply_steps(*steps), arch=ARCH)
    except ScheduleError as refusal:
        return judge_number(
            answer,
            int(refusal.refusal.nearest),
            f"ekc says: {refusal}",
            [(4, "That is what was asked for. What does the refusal offer at its end?")],
            'Compile it with ekc.compile(..., arch="sm_80"), and read the end of the refusal.',
        )
    raise AssertionError("a vector across rows is legal")


@exercise(4, "d", "schedule")
def beat_vector_loads(answer: Schedule) -> Feedback:
    """Less time and less energy than the rung, without a pipeline."""
    goal = rung("vector loads")
    if any(loop.stages > 1 for nest in answer.program.nests for loop in nest.loops):
        return wrong("Your schedule has a pipeline. Leave it out: that is lesson 6.")
    return judge_faster(answer, goal)


def judge_faster(
    answer: Schedule, goal: Schedule, time_share: float = 1.0, energy_share: float = 1.0
) -> Feedback:
    """Judge a schedule by time and energy, which must be below these shares of those of the goal."""
    if answer.op != goal.op:
        return wrong(f"The operator must stay {name_operator(goal)}.")
    found, limit = measure(answer), measure(goal)
    if found.us < time_share * limit.us and found.mj < energy_share * limit.mj:
        return right(f"Figures: {found}.")
    parts = [
        f"{name} is {100 * value / bound:.1f}%"
        for name, value, bound in (("time", found.us, limit.us), ("energy", found.mj, limit.mj))
    ]
    asked = f"below {100 * time_share:.0f}% and below {100 * energy_share:.0f}%"
    return wrong(
        f"Compared with the given kernel, {' and '.join(parts)}; asked is {asked}. "
        "Change one number at a time."
    )
