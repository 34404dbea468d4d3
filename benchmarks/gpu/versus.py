"""Time and energy beside cuBLASLt, cuDNN and Triton: same inputs, in turn, right results only.

Each is timed in short samples, as a search does, and then in slices of a hot run: at the power cap a short
time is shorter than one that can be sustained. Energy comes from the slices.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.rotation import Slice, compare_slices, rotate

from benchmarks.gpu import libraries, plan, pytorch
from benchmarks.gpu.budget import Budget
from benchmarks.gpu.contenders import Contender, Ours, compute_ratio, format_median, measure_in_turn
from benchmarks.gpu.folder import Row
from benchmarks.gpu.items import Item, list_small_items, list_versus_items
from benchmarks.gpu.kit import Kit
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.cuda.cuda_target import parse_target
from ekc.devices.statistics import Difference
from ekc.errors import EkcError, RecordError
from ekc.ir.interpreter.compare import make_random_input_arrays
from ekc.ir.interpreter.tolerance import ReferenceEvaluator
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from ekc.tables import format_table

MINUTES = 4.0
LIBRARIES = ("cuBLAS", "cuDNN", "Triton")
TURNS, ROUNDS, SLICE_S = 3, 4, 0.5
"""Short timings of each; rounds of slices, the first of which is dropped; seconds of a slice."""
FARTHEST = 2.0
"""Times the fastest short time: algorithms that take longer get no slices."""
TRITON_S = 90.0
"""Guessed, on the long side, until one was seen: what an item with Triton takes."""
TRIED = 12
"""Schedules of an item that are timed, to choose ours."""
OURS = "ekc"


def run(kit: Kit, budget: Budget) -> None:
    """A row for each item."""
    items = list(list_small_items() if kit.dry else list_versus_items())
    known = {item.row: kit.folder.find_row("versus", item.row) for item in items}
    fresh = [item for item in items if known[item.row] is None]
    compared = not (kit.dry or _explain_unlike(kit))
    # Those beside which there was no library come last: there may be one now.
    again = [item for item in items if _has_no_rival(known[item.row])] if compared else []
    if compared and pytorch.is_installed():
        pytorch.wake_gpu(kit)
    for item in budget.take_affordable([*fresh, *again], lambda item: TRITON_S if item.triton else 0.0):
        try:
            _compare(kit, item)
        except RecordError:
            # A bad plan is no figure of this item: it is tried again when the plan is good.
            raise
        except EkcError as problem:
            kit.folder.add_row("versus", item.row, str(problem))


def _has_no_rival(row: Row | None) -> bool:
    """Whether only ours was measured."""
    return row is not None and len(row.get("figures", ())) == 1


def _compare(kit: Kit, item: Item) -> None:
    tried = _time_schedules(kit, item)
    expected = ReferenceEvaluator(item.op, make_random_input_arrays(item.op))
    chosen, wrong = None, []
    for schedule, kernel, _ in tried:
        fault, verdict = kit.judge(schedule, kernel, expected)
        if not fault:
            chosen = (schedule, kernel, verdict)
            break
        wrong.append(f"{schedule.digest}: {verdict}")
    if chosen is None:
        kit.folder.add_row("versus", item.row, "FAIL", wrong=wrong)
        return
    schedule, kernel, verdict = chosen
    contenders, absent = find_rivals(kit, item, expected)
    figures = measure([Ours(OURS, kit.device, kernel), *contenders], kit.seed)
    facts = {"digest": schedule.digest, "schedule": schedule.to_json(), "verdict": verdict}
    problem = figures[OURS]["problem"]
    status = problem if problem and not figures[OURS]["latency_s"] else "ok"
    kit.folder.add_row(
        "versus",
        item.row,
        status,
        figures=figures,
        absent=absent,
        wrong=wrong,
        tried=len(tried),
        flops=item.op.flops,
        **facts,
    )


def measure(contenders: Sequence[Contender], seed: int) -> dict[str, Any]:
    """Figures by contender, ours first: "latency_s" of short timings, and "slices" of a hot run in rotation.

    What is far slower than the fastest gets no slices. A problem of the rotation is noted at ours; short
    times are kept all the same.
    """
    figures = measure_in_turn(contenders, TURNS, 0, 0.0)
    medians = {name: _compute_median(one["latency_s"]) for name, one in figures.items()}
    limit_s = FARTHEST * min(medians.values())
    near = [one for one in contenders if medians[one.name] <= limit_s or one.name == OURS]
    for one in figures.values():
        one["slices"] = []
    try:
        slices = rotate([one for one in near if medians[one.name] < math.inf], ROUNDS, SLICE_S, seed)
    except EkcError as problem:
        figures[OURS]["problem"] = figures[OURS]["problem"] or str(problem)
        return figures
    for name, found in slices.items():
        figures[name]["slices"] = [_to_json(one) for one in found]
    return figures


def _compute_median(latencies: Sequence[Sequence[float]]) -> float:
    return statistics.median(value for value, _, _ in latencies) if latencies else math.inf


def _to_json(one: Slice) -> dict[str, Any]:
    """A slice as JSON: energy that could not be read is null."""
    values = {**vars(one), "throttle": list(one.throttle)}
    return {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in values.items()}


def _from_json(values: dict[str, Any]) -> Slice:
    known = {name: math.nan if x is None else x for name, x in values.items()}
    return Slice(**{**known, "throttle": tuple(values["throttle"])})


def _time_schedules(kit: Kit, item: Item) -> list[tuple[Schedule, CompiledKernel, float]]:
    """Schedules that run, fastest first. Raises the last problem where none does."""
    timed: list[tuple[Schedule, CompiledKernel, float]] = []
    problem: EkcError | None = None
    for schedule, kernel in kit.compile_ahead(plan.list_schedules(kit, item, 2 if kit.dry else TRIED)):
        try:
            made = kernel()
            timed.append((schedule, made, kit.device.time(made).latency_s))
        except EkcError as why:
            problem = why
    if not timed:
        raise problem or EkcError(f"{item.name}: no schedule to try")
    return sorted(timed, key=lambda one: (one[2], one[0].digest))


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
        found, absent = libraries.find_rivals(kit, item, expected)
    # Through PyTorch cuDNN has plans that its older functions do not have.
    if not pytorch.is_installed():
        return found, absent | ({"Triton": "PyTorch is not installed"} if item.triton else {})
    if not found or item.kind == "conv2d":
        more, missing = pytorch.find_rivals(kit, item, expected)
        return [*found, *more], absent | missing
    return found, absent


def _explain_unlike(kit: Kit) -> str:
    """Why a library would not be measured as ours is, or "": it runs at a free clock, with a warm L2."""
    device = kit.device
    if device.simulated:
        return f"{device.label} has no GPU"
    if kit.set_clocks:
        return f"ours runs at a {device.clock_regime}, and a library would at a free clock"
    return "ours finds a cold L2, and a library a warm one" if parse_target(kit.target).is_cold else ""


def make_table(kit: Kit) -> str:
    """A line for each item and rival; of a library's algorithms those that are first in something."""
    rows, notes = [], {}
    for row in kit.folder.list_rows("versus"):
        if "figures" not in row:
            notes[row["item"]] = row["status"] + "".join(f"; {text}" for text in row.get("wrong", ()))
            continue
        ours = row["figures"][OURS]
        named = name_winners(row["figures"])
        rows += [
            _format_line(row["item"], words, ours, row["figures"][name]) for name, words in named.items()
        ]
        for name, other in row["figures"].items():
            if other["problem"]:
                notes[f"{row['item']}, {name}"] = other["problem"]
        if not named:
            rows.append(_format_line(row["item"], "-", ours, {"latency_s": [], "slices": []}))
        for library, why in row["absent"].items():
            notes.setdefault(library, f"not run: {why}")
    heads = (
        "item",
        "beside",
        "ekc [us]",
        "theirs [us]",
        "speed",
        "sustained",
        "ekc [mJ]",
        "theirs [mJ]",
        "energy",
    )
    title = (
        f"versus: on {kit.label}; speed (short), sustained speed and energy: theirs over ours, "
        "above 1 ours is better"
    )
    note_lines = [f"  {name}: {text}" for name, text in notes.items()]
    return "\n".join([format_table(heads, rows, title, label_count=2), *note_lines])


def name_winners(figures: dict[str, Any]) -> dict[str, str]:
    """Rivals that are worth a line, with what each is first in: of several algorithms of a library its own
    first choice, the fastest (short and sustained), and the one of least energy."""
    rivals = [name for name, one in figures.items() if name != OURS and one["latency_s"]]
    libraries_of = {name: name.split(", algorithm ")[0] for name in rivals}
    named: dict[str, list[str]] = {}
    for library in dict.fromkeys(libraries_of.values()):
        own = [name for name in rivals if libraries_of[name] == library]
        if len(own) == 1:
            named.setdefault(own[0], [])
            continue
        named.setdefault(own[0], []).append("its first choice")
        for words, key in (
            ("fastest", lambda name: _compute_median(figures[name]["latency_s"])),
            ("fastest sustained", lambda name: _compute_mean(figures[name], "latency_s")),
            ("least energy", lambda name: _compute_mean(figures[name], "energy_j")),
        ):
            best = min(own, key=key)
            if key(best) < math.inf:
                named.setdefault(best, []).append(words)
    return {name: f"{name} ({', '.join(words)})" if words else name for name, words in named.items()}


def _compute_mean(one: dict[str, Any], figure: str) -> float:
    """Mean of a figure over the slices; infinity where there is none."""
    values = [x[figure] for x in one["slices"]]
    return statistics.fmean(values) if values and None not in values else math.inf


def _format_line(item: str, words: str, ours: dict[str, Any], other: dict[str, Any]) -> tuple[str, ...]:
    energies = [_compute_mean(one, "energy_j") for one in (ours, other)]
    return (
        item,
        words,
        format_median(ours["latency_s"], 1e6),
        format_median(other["latency_s"], 1e6),
        _format_ratio(compute_ratio(ours["latency_s"], other["latency_s"])),
        _format_ratio(compare_figures(ours, other, "latency_s")),
        *("-" if math.isinf(x) else f"{1e3 * x:.4g}" for x in energies),
        _format_ratio(compare_figures(ours, other, "energy_j")),
    )


def compare_figures(ours: dict[str, Any], other: dict[str, Any], figure: Any) -> Difference | None:
    """Theirs over ours, slice by slice of the same round; None where slices or energies are missing."""
    slices = [one["slices"] for one in (other, ours)]
    if not slices[0] or len(slices[0]) != len(slices[1]):
        return None
    if any(x[figure] is None for one in slices for x in one):
        return None
    theirs, own = ([_from_json(x) for x in one] for one in slices)
    return compare_slices(theirs, own, figure)


def _format_ratio(difference: Difference | None) -> str:
    """ "~" where the difference does not count."""
    return "-" if difference is None else f"{difference.ratio:.3f}{'' if difference.is_significant else '~'}"
