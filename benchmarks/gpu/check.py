"""Every operator and element type, executed on the device and compared with float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.gpu.items import CHECKED, DTYPES
from benchmarks.gpu.kit import Budget, Kit
from benchmarks.gpu.sampling import sample_schedules
from ekc.errors import EkcError, InvalidInput
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.processes.pool import WorkerProcesses, count_cores
from ekc.tables import format_table

MINUTES = 1.0
DRAWN = 3
"""Schedules of each operator beside the naive one."""
POPULATION = 48
"""Genomes drawn for them: breeding would cost more than it shows here."""
PROCESSES = min(count_cores(), 16)
"""Number of processes that sample schedules ahead."""
DRY = 9
"""A dry run checks one in this many operators and types."""


def run(kit: Kit, budget: Budget) -> None:
    """A row for each operator and type that exists."""
    every = list(_list_operators())[:: DRY if kit.dry else 1]
    todo = [one for one in every if kit.folder.find_row("check", one[0]) is None]
    settings = kit.device.limits, kit.device.peaks, kit.seed, POPULATION
    # Sampling takes a core seconds per operator: far longer than the GPU needs for the samples. The processes
    # end with this one, also when it is killed.
    pool = WorkerProcesses(PROCESSES)
    try:
        drawn = {
            item: pool.submit(sample_schedules, op, *settings, 2 if kit.dry else 1 + DRAWN)
            for item, op in todo
        }
        for item, _ in budget.take_affordable(todo):
            _check(kit, item, drawn[item].result)
    finally:
        pool.stop()


def _list_operators() -> Iterator[tuple[str, Operator]]:
    """Types in turn, so that a part cut short has seen each of them."""
    for name, make in CHECKED.items():
        for dtype in DTYPES:
            try:
                yield f"{name}, {dtype}", make(dtype)
            except InvalidInput:
                # Not every operator takes every type: int8 has no softmax.
                continue


def _check(kit: Kit, item: str, schedules: Callable[[], list[Schedule]]) -> None:
    verdicts: list[dict[str, str]] = []
    for schedule, kernel in kit.compile_ahead(schedules()):
        try:
            fault, verdict = kit.judge(schedule, kernel())
        except EkcError as problem:
            fault, verdict = f"{type(problem).__name__} of {schedule.digest}", str(problem)
        verdicts.append({"digest": schedule.digest, "fault": fault, "verdict": verdict})
    bad = [one for one in verdicts if one["fault"]]
    kit.folder.add_row(
        "check", item, "FAIL" if bad else "ok", kernels=verdicts, right=len(verdicts) - len(bad)
    )


def make_table(kit: Kit) -> str:
    """The table of operators, and the failures below it."""
    rows = kit.folder.list_rows("check")
    by_name: dict[str, list[str]] = {}
    for row in rows:
        name, dtype = row["item"].rsplit(", ", 1)
        kernels = len(row["kernels"])
        text = dtype if row["status"] == "ok" else f"{dtype} {kernels - row['right']} of {kernels} WRONG"
        by_name.setdefault(name, []).append(text)
    lines = [(name, ", ".join(text)) for name, text in by_name.items()]
    wrong = [
        f"  {row['item']}: {one['fault']}: {one['verdict']}"
        for row in rows
        for one in row["kernels"]
        if one["fault"]
    ]
    kernels = sum(len(row["kernels"]) for row in rows)
    right = sum(row["right"] for row in rows)
    title = f"check: {right} of {kernels} kernels right, of {len(rows)} operators and types"
    return "\n".join(
        [format_table(("operator", "types that are right"), lines, title, label_count=2), *wrong]
    )
