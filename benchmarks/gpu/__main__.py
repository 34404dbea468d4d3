"""One visit to a GPU: checked, compared, recorded, tuned, within the minutes that there are.

    python -m benchmarks.gpu PART... [--minutes N] [--out DIR] [--device cuda:0] [--dry-run] [--set-clocks]

PART: check, versus, record, tune, equals, library, traces, counters, fidelity; all (what fits into the
minutes, most valuable first); or prepare (beforehand, on a machine without a GPU: --device h200 chooses the
schedules of versus there); or report (prints again all results in the folder). report and fidelity open a
folder without its device. A run into a folder that is there goes on where the last one stopped. See
docs/how-to/kit.md.
"""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from benchmarks.common.script import Arguments, make_parser
from benchmarks.gpu import (
    check,
    counters,
    equals,
    fidelity,
    library,
    pack,
    plan,
    record,
    traces,
    tune,
    versus,
)
from benchmarks.gpu.equals_report import format_power
from benchmarks.gpu.folder import AWAY, REPORT
from benchmarks.gpu.kit import Budget, Kit, NotRun, describe_machine
from ekc.errors import EkcError, RecordError

PARTS: dict[str, ModuleType] = {
    "check": check,
    "versus": versus,
    "record": record,
    "pack": pack,
    "tune": tune,
    "equals": equals,
    "library": library,
    "traces": traces,
    "counters": counters,
    "fidelity": fidelity,
    "prepare": plan,
}
"""Parts by value; those that need no GPU are last."""
VISIT = tuple(PARTS)[:-1]
"""The parts of `all`."""
FIRST_S = {
    "check": 5.0,
    "versus": 60.0,
    "record": 20.0,
    "pack": 5.0,
    "tune": 130.0,
    "equals": 30.0,
    "traces": 30.0,
    "library": 40.0,
    "counters": 20.0,
    "fidelity": 5.0,
}
"""Estimated seconds, rather too long, of the first item of a part with all preparations."""
REPORT_PART = "report"
AWAY_PARTS = {"fidelity", REPORT_PART}
"""Parts that need a folder and no device."""
DRY_MINUTES = 1.8
INTERRUPTED, BAD_INPUT = 130, 2


def main(words: Sequence[str] | None = None, now: Callable[[], float] = time.monotonic) -> int:
    """Run the parts; the tables, printed and in the folder. `now`: seconds of the clock of the minutes."""
    arguments = _parse_arguments(words)
    if arguments.power:
        print(format_power())
        return 0
    names = (
        list(VISIT)
        if "all" in arguments.parts
        else [n for n in dict.fromkeys(arguments.parts) if n != REPORT_PART]
    )
    try:
        if set(arguments.parts) <= AWAY_PARTS:
            kit = Kit.reopen(arguments.out)
            if names:
                kit.folder.begin_run(kit.folder.measured | describe_machine() | {AWAY: True})
        else:
            options = arguments.dry_run, arguments.seed, arguments.set_clocks
            kit = Kit.open(arguments.device, arguments.out, *options, now, arguments.pack)
    except EkcError as problem:
        print(f"benchmarks.gpu: {problem}", file=sys.stderr)
        return BAD_INPUT
    minutes = arguments.minutes or (DRY_MINUTES if kit.dry else sum(PARTS[name].MINUTES for name in names))
    status = 0
    try:
        _run(kit, names, minutes)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except RecordError as problem:
        print(f"benchmarks.gpu: {problem}", file=sys.stderr)
        status = BAD_INPUT
    finally:
        kit.close()
    if REPORT_PART in arguments.parts:
        names = [name for name in VISIT if any(row["part"] == name for row in kit.folder.rows)]
    report = "\n\n".join([_format_head(kit), *(_format_part(kit, name) for name in names)])
    print(report)
    try:
        (kit.folder.path / REPORT).write_text(report + "\n")
    except OSError as problem:
        print(f"benchmarks.gpu: {REPORT} cannot be written: {problem.strerror}", file=sys.stderr)
        status = status or BAD_INPUT
    rows = [row for name in names for row in (*kit.folder.list_rows(name), *kit.folder.list_notes(name))]
    return status or int(any(row["status"] == "FAIL" for row in rows))


def _run(kit: Kit, names: Sequence[str], minutes: float) -> None:
    """Run each part for its minutes, as long as there are any; in a dry run, for its share of them.

    A part begins its first item in any case, so one for which too little is left is not begun."""
    end = kit.now() + 60 * minutes
    minutes_by_part = {name: PARTS[name].MINUTES for name in names}
    if kit.dry or len(names) == 1:
        minutes_by_part = dict.fromkeys(names, minutes / len(names))
    for name in names:
        seconds = min(60 * minutes_by_part[name], end - kit.now())
        if seconds <= (0 if kit.dry or len(names) == 1 else FIRST_S.get(name, 0.0)):
            kit.folder.add_note(name, "not run", f"the {minutes:g} minutes are used")
            continue
        print(f"{name}: {seconds:.0f} s on {kit.label}", file=sys.stderr)
        try:
            budget = Budget(seconds, kit.now)
            PARTS[name].run(kit, budget)
            if budget.cut:
                kit.folder.add_note(
                    name, "cut short", "there was no time for the rest; a further run goes on"
                )
        except NotRun as problem:
            kit.folder.add_note(name, "not run", str(problem))
        except RecordError as problem:
            # Other parts do not need this part's file; where nothing can be written, the note says so.
            kit.folder.add_note(name, "FAIL", str(problem))
        except Exception as problem:
            # A mistake in one part must not cost the minutes of those after it.
            traceback.print_exc()
            kit.folder.add_note(name, "FAIL", f"{type(problem).__name__}: {problem}")


def _format_part(kit: Kit, name: str) -> str:
    """The table of a part, and its notes."""
    notes = [f"  {row['status']}: {row['reason']}" for row in kit.folder.list_notes(name)]
    try:
        table = PARTS[name].make_table(kit)
    except RecordError as problem:
        table = f"{name}: {problem}"
    except Exception as problem:
        # The rows are on file; one table that cannot be made must not cost the report of the others.
        traceback.print_exc()
        table = f"{name}: no table: {type(problem).__name__}: {problem}"
    return "\n".join([table, *notes])


def _format_head(kit: Kit) -> str:
    first, last = kit.folder.measured, kit.folder.list_runs()[-1]
    facts = ("driver", "nvrtc", "arch", "clock_regime", "data_policy", "ekc", "python", "numpy", "machine")
    lines = [f"{first['device']}, {first['created']}", ", ".join(f"{fact} {first[fact]}" for fact in facts)]
    if last.get(AWAY):
        lines.append(f"Opened without the device, {last['created']}: ekc {last['ekc']}, {last['machine']}.")
    if first["dry_run"]:
        lines.append("DRY RUN: every figure is simulated. Nothing ran on a GPU.")
    elif first["simulated"]:
        lines.append("Every figure is simulated. Nothing ran on a GPU.")
    return "\n".join(lines)


OPTIONS = {
    "parts": {
        "nargs": "+",
        "metavar": "PART",
        "choices": (*PARTS, REPORT_PART, "all"),
    },
    "--minutes": {
        "type": float,
        "help": "for all parts together; default: what they ask for",
    },
    "--out": {
        "type": Path,
        "default": Path("gpu-out"),
        "help": "folder; default: gpu-out",
    },
    "--device": {
        "default": "cuda:0",
        "help": "default: cuda:0",
    },
    "--pack": {
        "type": Path,
        "help": "file of `python -m benchmarks.gpu.packs`, for the part pack",
    },
    "--seed": {
        "type": int,
        "default": 0,
    },
    "--dry-run": {
        "action": "store_true",
        "help": "everything on a simulated device, in minutes",
    },
    "--rotate": {
        "action": "store_true",
        "help": "no effect: equals always rotates",
    },
    "--power": {
        "action": "store_true",
        "help": "print which savings equals can find; no GPU",
    },
    "--set-clocks": {
        "action": "store_true",
        "help": "allow setting the clock, put back after",
    },
}


def _parse_arguments(words: Sequence[str] | None) -> Arguments:
    parser = make_parser(__doc__, OPTIONS, "python -m benchmarks.gpu")
    arguments = parser.parse_args(words)
    if arguments.minutes is not None and not arguments.minutes > 0:
        parser.error(f"--minutes {arguments.minutes:g}: above 0")
    return arguments


if __name__ == "__main__":
    # Who lends a machine for some minutes ends what runs longer: the report is written all the same.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise SystemExit(main())
