"""A stratified sample of schedules for each operator, timed and metered, good and bad, into a recording."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.common.script import Column, format_lines
from benchmarks.gpu.folder import RECORDING
from benchmarks.gpu.items import Item, list_recorded_items, list_small_items
from benchmarks.gpu.kit import Budget, Kit
from benchmarks.gpu.sampling import Named, Sampler
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.recording import RecordedRow, RecordingWriter, read_recording
from ekc.errors import CompileError, EkcError, ScheduleError
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.verify import UNSAFE_KERNEL, WRONG_RESULT
from ekc.search.data.defaults import MEASURING
from ekc.search.data.result import COMPILE_FAILURE_PREFIX

MINUTES = 9.0
TIMED = 75
"""Schedules of each operator: 300 of four."""
METERED = (0, 2)
"""Positions in every five timed schedules that are metered: 120 of 300."""
POPULATION = 2048
DRY_TIMED = 6


def run(kit: Kit, budget: Budget) -> None:
    """Operators take turns, so that a part cut short has some of each."""
    file = kit.folder.path / RECORDING
    items = tuple(list_small_items()) if kit.dry else list_recorded_items()
    lists = [_sample(kit, item) for item in items]
    with RecordingWriter(file, kit.device) as writer:
        known = read_recording(file).by_digest
        turns = [
            (n, *named)
            for n, row in enumerate(zip(*lists, strict=True))
            for named in row
            if not _is_complete(known.get(named[0].digest), n)
        ]
        made = kit.run_ahead(lambda turn: kit.compile_kernel(turn[1]), turns)
        for turn, kernel in budget.take_affordable(made):
            if not kit.folder.is_full(RECORDING):
                _record(kit, writer, turn, kernel)
    rows = read_recording(file).rows
    kit.folder.add_row(
        "record",
        "recording",
        "ok",
        timed=sum(bool(r.timings) for r in rows),
        metered=sum(bool(r.meterings) for r in rows),
        failed=sum(bool(r.failure) for r in rows),
        operators=len(items),
        asked=sum(map(len, lists)),
    )


def _is_complete(row: RecordedRow | None, number: int) -> bool:
    """Whether a schedule needs no further measurement: a run may be killed in the middle of one."""
    if row is None or row.failure:
        return row is not None
    judged = row.checked.startswith((WRONG_RESULT, UNSAFE_KERNEL)) or bool(row.meterings)
    return bool(row.timings) and (judged or number % 5 not in METERED)


Turn = tuple[int, Schedule, str]
"""Position in the sample, schedule and structure."""
Made = Callable[[], CompiledKernel]


def _sample(kit: Kit, item: Item) -> list[Named]:
    size, count = (256, DRY_TIMED) if kit.dry else (POPULATION, TIMED)
    return Sampler(item.op, kit.device.limits, kit.device.prior, kit.seed, size).sample_stratified(count)


def _record(kit: Kit, writer: RecordingWriter, turn: Turn, make: Made) -> None:
    """One schedule: timed, and if it is its turn executed and metered; a failure is in its row."""
    number, schedule, structure = turn
    figures = analyse_program(schedule.program, kit.device.limits)
    try:
        kernel = make()
    except (CompileError, ScheduleError) as problem:
        writer.add_schedule(schedule, structure, figures, None)
        writer.add_failure(schedule, f"{COMPILE_FAILURE_PREFIX}{problem}")
        return
    writer.add_schedule(schedule, structure, figures, kernel)
    try:
        writer.add_timing(schedule, kit.device.time(kernel))
        if number % 5 not in METERED:
            return
        fault, verdict = kit.judge(schedule, kernel)
        writer.add_check(schedule, verdict)
        if not fault:
            writer.add_metering(schedule, kit.device.meter(kernel, seconds=MEASURING.label_window_s))
    except EkcError as problem:
        writer.add_failure(schedule, f"device: {problem}")


COLUMNS = (
    Column("operator", "operator"),
    Column("timed", "timed"),
    Column("metered", "metered"),
    Column("failed", "failed"),
    Column("latency [us]", "latency_s", ".4g", 1e6),
)


def make_table(kit: Kit) -> str:
    """The table of the recording, by operator."""
    file = kit.folder.path / RECORDING
    if not file.exists():
        return "record: nothing was recorded"
    recording = read_recording(file)
    lines = []
    for number, op in enumerate(recording.operators):
        mine = [r for r in recording.rows if r.operator == number]
        times = sorted(r.find_timing().latency_s for r in mine if r.timings)
        line = {
            "operator": str(op).splitlines()[0],
            "timed": len(times),
            "metered": sum(bool(r.meterings) for r in mine),
            "failed": sum(bool(r.failure) for r in mine),
            "latency_s": (times[0], times[-1]) if times else None,
        }
        lines.append(line)
    size = file.stat().st_size / 1e6
    return format_lines(COLUMNS, lines, f"record: {recording.origin.description}; {size:.2f} MB")
