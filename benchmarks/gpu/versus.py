"""Latency and energy beside cuBLAS, cuDNN and Triton: same inputs, in turn, right results only."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu import cublas, plan, pytorch
from benchmarks.gpu.budget import Budget
from benchmarks.gpu.contenders import Contender, Ours, compute_ratio, format_median, measure_in_turn
from benchmarks.gpu.folder import Row
from benchmarks.gpu.items import Item, list_small_items, list_versus_items
from benchmarks.gpu.kit import Kit
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.cuda.cuda_target import parse_target
from ekc.errors import EkcError, RecordError
from ekc.ir.interpreter.compare import make_random_input_arrays
from ekc.ir.interpreter.tolerance import ReferenceEvaluator
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from ekc.tables import format_table

Figures = list[list[float]]
"""[turn, 3]: value, low and high end of its interval."""
MINUTES = 6.0
LIBRARIES = ("cuBLAS", "cuDNN", "Triton")
TURNS, WINDOWS, WINDOW_S = 5, 3, 1.0
TRITON_S = 90.0
"""Guessed, on the long side, until one was seen: what an item with Triton takes."""
TRIED = 12
"""Schedules of an item that are timed, to choose ours."""


def run(kit: Kit, budget: Budget) -> None:
    """A row for each item and library."""
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
    figures = measure_in_turn([Ours("ekc", kit.device, kernel), *contenders], TURNS, WINDOWS, WINDOW_S)
    facts = {"digest": schedule.digest, "schedule": schedule.to_json(), "verdict": verdict}
    problem = figures["ekc"]["problem"]
    status = problem if problem and not figures["ekc"]["latency_s"] else "ok"
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
    """Rivals that exist here, and the reasons why other libraries are absent."""
    if kit.dry:
        # The naive schedule, under its own name, so that the comparison itself is gone through.
        schedule = make_naive_schedule(item.op)
        rival = Ours("naive schedule", kit.device, kit.compile_kernel(schedule))
        return [rival], dict.fromkeys(LIBRARIES, "a dry run has no GPU")
    why = _explain_unlike(kit)
    if why:
        return [], dict.fromkeys(LIBRARIES, why)
    return (pytorch if pytorch.is_installed() else cublas).find_rivals(kit, item, expected)


def _explain_unlike(kit: Kit) -> str:
    """Why a library would not be measured as ours is, or "": it runs at a free clock, with a warm L2."""
    device = kit.device
    if device.simulated:
        return f"{device.label} has no GPU"
    if kit.set_clocks:
        return f"ours runs at a {device.clock_regime}, and a library would at a free clock"
    return "ours finds a cold L2, and a library a warm one" if parse_target(kit.target).is_cold else ""


def make_table(kit: Kit) -> str:
    """One line for each item and rival."""
    rows, notes = [], {}
    for row in kit.folder.list_rows("versus"):
        if "figures" not in row:
            notes[row["item"]] = row["status"] + "".join(f"; {text}" for text in row.get("wrong", ()))
            continue
        ours = row["figures"]["ekc"]
        for name, other in row["figures"].items():
            if name != "ekc":
                rows.append(_format_line(row, name, ours, other))
            if other["problem"]:
                notes[f"{row['item']}, {name}"] = other["problem"]
        if len(row["figures"]) == 1:
            rows.append(_format_line(row, "-", ours, ours | {"latency_s": [], "energy_j": []}))
        for library, why in row["absent"].items():
            notes.setdefault(library, f"not run: {why}")
    heads = ("item", "beside", "ekc [us]", "theirs [us]", "speed", "ekc [mJ]", "theirs [mJ]", "energy")
    title = f"versus: on {kit.label}; speed and energy: theirs over ours, above 1 ours is better"
    note_lines = [f"  {name}: {text}" for name, text in notes.items()]
    return "\n".join([format_table(heads, rows, title, label_count=2), *note_lines])


def _format_line(
    row: dict[str, Any], name: str, ours: dict[str, Any], other: dict[str, Any]
) -> tuple[str, ...]:
    return (
        row["item"],
        name,
        format_median(ours["latency_s"], 1e6),
        format_median(other["latency_s"], 1e6),
        _format_ratio(ours["latency_s"], other["latency_s"]),
        format_median(ours["energy_j"], 1e3),
        format_median(other["energy_j"], 1e3),
        _format_ratio(ours["energy_j"], other["energy_j"]),
    )


def _format_ratio(ours: Figures, theirs: Figures) -> str:
    """ "~" where the difference does not count."""
    difference = compute_ratio(ours, theirs)
    return "-" if difference is None else f"{difference.ratio:.3f}{'' if difference.is_significant else '~'}"
