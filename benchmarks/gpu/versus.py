"""Time and energy beside cuBLASLt, cuDNN and Triton: same inputs, in turn, right results only.

Each is timed in short samples, as a search does, and then in slices of a hot run: at the power cap a short
time is shorter than one that can be sustained. Energy comes from the slices.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.common.script import Column, format_lines
from benchmarks.gpu import plan, pytorch
from benchmarks.gpu.contenders import (
    Contender,
    Figure,
    Group,
    Ours,
    SliceLog,
    compute_median,
    compute_ratio,
    measure_in_turn,
    read_group,
    rotate,
)
from benchmarks.gpu.folder import Row
from benchmarks.gpu.items import Item, list_small_items, list_versus_items
from benchmarks.gpu.kit import Budget, Kit, Timed
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.cuda.device import parse_target
from ekc.devices.device import LibraryDevice
from ekc.devices.statistics import Difference
from ekc.errors import DeviceError, EkcError, RecordError
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.verify import WRONG_RESULT, verify_library_kernel

MINUTES = 4.0
LIBRARIES = ("cuBLAS", "cuDNN", "Triton")
TURNS, ROUNDS, SLICE_S = 3, 3, 0.5
"""Short timings of each; rounds of slices, after one that warms up; seconds of a slice."""
FARTHEST = 2.0
"""Times the fastest short time: algorithms that take longer get no slices."""
TRITON_S = 90.0
"""Guessed, on the long side, until one was seen: what an item with Triton takes."""
MAX_ALGORITHMS = 16
"""Algorithms of a library for an item; cuDNN has eight."""
TRIED = 12
"""Schedules of an item that are timed, to choose ours."""
OURS = "ekc"
PART, SLICES = "versus", "versus, slices"
"""Names of rows: of an item, with its short timings; and of a slice."""


def run(kit: Kit, budget: Budget) -> None:
    """A row of short timings for each item, and a row for each slice. An item that has begun goes on."""
    items = list(list_small_items() if kit.dry else list_versus_items())
    compared = not (kit.dry or _explain_unlike(kit))
    fresh = [item for item in items if kit.folder.find_row(PART, item.row) is None]
    begun = [item for item in items if item not in fresh and _count_missing_rounds(kit, item.row)]
    # Those beside which there was no library come last: there may be one now.
    again = [item for item in items if item not in fresh and _has_no_rival(kit, item)] if compared else []
    if compared and pytorch.is_installed():
        pytorch.wake_gpu(kit)
    todo = list(dict.fromkeys([*begun, *fresh, *again]))
    for item in budget.take_affordable(todo, lambda item: TRITON_S if item.triton else 0.0):
        try:
            _compare(kit, item)
        except RecordError:
            # A bad plan is no figure of this item: it is tried again when the plan is good.
            raise
        except EkcError as problem:
            kit.folder.add_row(PART, item.row, str(problem))


def _has_no_rival(kit: Kit, item: Item) -> bool:
    """Whether only ours was measured."""
    row = kit.folder.find_row(PART, item.row)
    return row is not None and len(row.get("figures", ())) == 1


def _count_missing_rounds(kit: Kit, name: str) -> int:
    """Rounds that an item lacks, in which each contender that has not failed has a slice; 0 for an item
    without rivals, or that failed."""
    row = kit.folder.find_row(PART, name)
    if row is None or len(_list_near(row)) < 2:
        return 0
    group = _read_slices(kit, row)
    names = set(_list_near(row)) - group.problems.keys()
    complete = [taken for taken in group.rounds.values() if names and names <= taken.keys()]
    return max(0, ROUNDS - len(complete))


def _compare(kit: Kit, item: Item) -> None:
    expected = ReferenceEvaluator(item.op, make_random_input_arrays(item.op))
    row = kit.folder.find_row(PART, item.row)
    if row is not None and _count_missing_rounds(kit, item.row):
        kernel = kit.compile_kernel(Schedule.from_json(row["schedule"]))
        contenders, _ = find_rivals(kit, item, expected)
    else:
        tried = _time_schedules(kit, item)
        chosen, wrong = _choose_right(kit, tried, expected)
        if chosen is None:
            kit.folder.add_row(PART, item.row, "FAIL", wrong=wrong)
            return
        schedule, kernel, verdict = chosen
        contenders, absent = find_rivals(kit, item, expected)
        figures = measure_in_turn([Ours(OURS, kit.device, kernel), *contenders], TURNS)
        problem = figures[OURS]["problem"]
        status = problem if problem and not figures[OURS]["latency_s"] else "ok"
        facts = {"digest": schedule.digest, "schedule": schedule.to_json(), "verdict": verdict}
        measured = {"figures": figures, "absent": absent, "wrong": wrong, "tried": len(tried)}
        row = kit.folder.add_row(PART, item.row, status, flops=item.op.flops, **measured, **facts)
    _rotate(kit, row, [Ours(OURS, kit.device, kernel), *contenders])


def _choose_right(
    kit: Kit, tried: Sequence[Timed], expected: ReferenceEvaluator
) -> tuple[tuple[Schedule, CompiledKernel, str] | None, list[str]]:
    """The fastest schedule that is right, with its verdict, and those before it that are wrong."""
    wrong = []
    for one in tried:
        fault, verdict = kit.judge(one.schedule, one.kernel, expected)
        if not fault:
            return (one.schedule, one.kernel, verdict), wrong
        wrong.append(f"{one.schedule.digest}: {verdict}")
    return None, wrong


def _rotate(kit: Kit, row: Row, contenders: Sequence[Contender]) -> None:
    """Slices of ours and of the rivals that are not far slower, in the rounds that are missing; each is
    written before the next begins."""
    missing, log = _count_missing_rounds(kit, row["item"]), SliceLog(kit.folder, SLICES, row["item"])
    if missing:
        near = _list_near(row)
        chosen = [one for one in contenders if one.name in near]
        first = _read_slices(kit, row).next_round
        rotate(chosen, missing, SLICE_S, kit.seed, log.write, log.write_problem, first_round=first)


def _list_near(row: Row) -> list[str]:
    """Ours, and the rivals whose short time is not far above the fastest."""
    figures = row.get("figures", {})
    medians = {name: _compute_median(one.get("latency_s", ())) for name, one in figures.items()}
    known = {name: s for name, s in medians.items() if not math.isnan(s)}
    limit_s = FARTHEST * min(known.values(), default=math.inf)
    return [name for name, s in known.items() if s <= limit_s or name == OURS]


def _read_slices(kit: Kit, row: Row) -> Group:
    """The slices of an item; ours is the reference."""
    return read_group(kit.folder, SLICES, row, row["figures"])


def _compute_median(latencies: Sequence[Sequence[float]]) -> float:
    return compute_median(value for value, _, _ in latencies)


def _time_schedules(kit: Kit, item: Item) -> list[Timed]:
    """Schedules that run, fastest first. Raises the last problem where none does."""
    timed, problem = kit.time_schedules(plan.list_schedules(kit, item, 2 if kit.dry else TRIED))
    if not timed:
        raise problem or EkcError(f"{item.name}: no schedule to try")
    return timed


def find_rivals(kit: Kit, item: Item, expected: ReferenceEvaluator) -> tuple[list[Contender], dict[str, str]]:
    """Rivals that exist here, and the reasons why others are absent."""
    if kit.dry:
        # The naive schedule, under its own name, so that the comparison itself is gone through.
        schedule = make_naive_schedule(item.op)
        rival = Ours("naive schedule", kit.device, kit.compile_kernel(schedule))
        return [rival], dict.fromkeys(LIBRARIES, "a dry run has no GPU")
    why = _explain_unlike(kit)
    if why:
        return [], dict.fromkeys(LIBRARIES, why)
    found: list[Contender] = []
    absent: dict[str, str] = {}
    if not item.triton:
        found, absent = _list_library_rivals(kit, item, expected)
    # Through PyTorch cuDNN has plans that its older functions do not have.
    if not pytorch.is_installed():
        return found, absent | ({"Triton": "PyTorch is not installed"} if item.triton else {})
    if not found or item.kind == "conv2d":
        more, missing = pytorch.find_rivals(kit, item, expected)
        return [*found, *more], absent | missing
    return found, absent


def _list_library_rivals(
    kit: Kit, item: Item, expected: ReferenceEvaluator
) -> tuple[list[Contender], dict[str, str]]:
    """The algorithms of cuBLASLt and cuDNN that compute an item, in the library's order, called in the GPU's
    worker process as ekc's own kernels are, and why others are absent: the library, or an algorithm that is
    wrong or fails."""
    library = "cuDNN" if item.kind == "conv2d" else "cuBLAS"
    device = kit.device
    if not isinstance(device, LibraryDevice):
        return [], {library: f"{kit.label} runs no library"}
    try:
        kernels = device.list_library_kernels(item.op, MAX_ALGORITHMS)
    except DeviceError as problem:
        return [], {library: str(problem)}
    contenders: list[Contender] = []
    absent: dict[str, str] = {}
    for kernel in kernels:
        try:
            verdict = verify_library_kernel(device, kernel, expected)
        except DeviceError as problem:
            absent[kernel.name] = str(problem)
            continue
        if verdict.startswith(WRONG_RESULT):
            absent[kernel.name] = verdict
        else:
            contenders.append(Ours(kernel.name, kit.device, kernel))
    return contenders, absent


def _explain_unlike(kit: Kit) -> str:
    """Why a library would not be measured as ours is, or "": it runs at a free clock, with a warm L2."""
    device = kit.device
    if device.simulated:
        return f"{device.label} has no GPU"
    if kit.set_clocks:
        return f"ours runs at a {device.clock_regime}, and a library would at a free clock"
    return "ours finds a cold L2, and a library a warm one" if parse_target(kit.target).is_cold else ""


def make_table(kit: Kit) -> str:
    """A table for each item: a line for each rival, of a library's algorithms those first in something."""
    title = (
        f"versus: on {kit.label}; speed (short timings), sustained speed and energy (slices of a hot run):\n"
        "theirs over ours, above 1 ours is better"
    )
    tables, notes = [title], {}
    for row in kit.folder.list_rows(PART):
        if "figures" not in row:
            notes[row["item"]] = row["status"] + "".join(f"; {text}" for text in row.get("wrong", ()))
            continue
        tables.append(_format_item(row, _read_slices(kit, row)))
        for name, other in row["figures"].items():
            if other["problem"]:
                notes[f"{row['item']}, {name}"] = other["problem"]
        for library, why in row["absent"].items():
            notes.setdefault(library, f"not run: {why}")
    notes |= {one["item"]: one["status"] for one in kit.folder.list_rows(SLICES) if one["status"] != "ok"}
    note_lines = [f"  {name}: {text}" for name, text in notes.items()]
    return "\n".join(["\n\n".join(tables), *note_lines])


def _format_item(row: Row, slices: Group) -> str:
    ours = _format_joules(_compute_mean(slices, OURS, "energy_j"))
    title = f"{row['item']}: ekc {1e6 * _compute_median(row['figures'][OURS]['latency_s']):.4g} us, {ours} mJ"
    named = name_winners(row["figures"], slices)
    lines = [_make_line(row, name, words, slices) for name, words in named.items()]
    return format_lines(COLUMNS, lines, title) if lines else f"{title}; beside nothing"


def name_winners(figures: dict[str, Any], slices: Group) -> dict[str, str]:
    """Rivals that are worth a line, with what each is first in: of several algorithms of a library its own
    first choice, the fastest (short and sustained), and the one of least energy."""
    rivals = [name for name, one in figures.items() if name != OURS and one["latency_s"]]
    named: dict[str, list[str]] = {}
    values = {
        "fastest": {name: _compute_median(figures[name]["latency_s"]) for name in rivals},
        "fastest sustained": {name: _compute_mean(slices, name, "latency_s") for name in rivals},
        "least energy": {name: _compute_mean(slices, name, "energy_j") for name in rivals},
    }
    for library in dict.fromkeys(name.split(", algorithm ")[0] for name in rivals):
        own = [name for name in rivals if name.split(", algorithm ")[0] == library]
        words = named.setdefault(own[0], [])
        if len(own) == 1:
            continue
        words.append("its first choice")
        for text, value_by_name in values.items():
            best = min(own, key=lambda name, known=value_by_name: known[name])  # type: ignore[misc]
            if value_by_name[best] < math.inf:
                named.setdefault(best, []).append(text)
    return {name: f"{name} ({', '.join(words)})" if words else name for name, words in named.items()}


def _compute_mean(slices: Group, name: str, figure: Figure) -> float:
    """Mean of a figure over the slices; infinity where there is none."""
    values = [getattr(one, figure) for one in slices.list_slices(name)]
    known = [value for value in values if math.isfinite(value)]
    return statistics.fmean(known) if known else math.inf


def _make_line(row: Row, name: str, words: str, slices: Group) -> dict[str, Any]:
    ours, other = (row["figures"][one]["latency_s"] for one in (OURS, name))
    return {
        "rival": words,
        "latency_s": _compute_median(other),
        "speed": compute_ratio(ours, other),
        "sustained": slices.compare(name, "latency_s", 1),
        "energy_j": _compute_mean(slices, name, "energy_j"),
        "energy": slices.compare(name, "energy_j", 1),
    }


def _format_joules(energy_j: float) -> str:
    """Millijoules."""
    return "-" if math.isinf(energy_j) else f"{1e3 * energy_j:.4g}"


def _format_ratio(difference: Difference | None) -> str:
    """ "~" where the difference does not count."""
    return "-" if difference is None else f"{difference.ratio:.3f}{'' if difference.is_significant else '~'}"


COLUMNS = (
    Column("beside", "rival"),
    Column("theirs [us]", "latency_s", ".4g", 1e6),
    Column("speed", "speed", _format_ratio),
    Column("sustained", "sustained", _format_ratio),
    Column("theirs [mJ]", "energy_j", _format_joules),
    Column("energy", "energy", _format_ratio),
)
