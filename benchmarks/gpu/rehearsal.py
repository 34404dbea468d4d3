"""Rehearse a visit: its six calls on a simulated GPU at the prices of an H100, killed at random moments.

    python -m benchmarks.gpu.rehearsal --out DIR [--device h100] [--pack FILE] [--kills N] [--seed S]
        [--dry-run] [--parts PART...]

Each call is a process of its own. It is killed N times after a random number of measurements, and called
again for the minutes that are left. The table has the device seconds of each call by the prices of
`benchmarks/gpu/prices.py`. Exit status 1: a call took more than its minutes, a row was lost or made twice, or
a process outlived a killed call.
--dry-run: with the small operators of a dry run. Nothing is executed on a GPU, and figures are simulated.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.script import Arguments, Column, format_lines, make_main
from benchmarks.gpu.__main__ import PARTS
from benchmarks.gpu.folder import ROWS
from benchmarks.gpu.prices import VirtualClock
from ekc.processes.process_facts import list_process_family, read_status

VISIT = ("check", "pack", "equals", "versus", "tune", "library")
"""Parts of a visit, in order."""
VISIT_MINUTES = 30.0
CHILD = (sys.executable, "-m", "benchmarks.gpu.prices")
"""Command of a call, before the file of the clock and the words of the call."""
SUMMARIES = {"rule", "comparison"}
"""Facts of rows of `pack` that hold no measurement."""
MOST_PAYMENTS, DRY_MOST_PAYMENTS = 1000, 30
"""Measurements of a call before it is killed, at most."""
POLL_S = 0.002
OUTLIVE_S = 5.0
"""Seconds after a kill in which all processes of the call must have ended."""
LATEST_S = 0.05
"""Seconds between the measurement that a kill was drawn for and the kill, at most: it may hit a write."""


class Rehearsal:
    """The folder, the clock and the random kills of a visit."""

    def __init__(self, out: Path, kills: int, seed: int, options: Sequence[str]) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.kills, self.options = out, kills, options
        self._random = random.Random(seed)
        self._clock_file = out.parent / f"{out.name}.clock"
        self.clock = VirtualClock(self._clock_file)
        self.faults: list[str] = []

    def play(self, part: str, minutes: float) -> dict[str, Any]:
        """Play a call of the visit, with all its starts, until it ends by itself.

        "again": timings and meterings made more than once, which are those of an item that was in progress
        when it was killed. Those of two searches of `tune` count too: each measures for itself."""
        began, starts, killed, before = self.clock.now(), 0, 0, len(self.read_rows())
        logged = len(self.clock.read_log())
        status: int | None = None
        while status is None:
            left = minutes - (self.clock.now() - began) / 60
            kept = self._read_text()
            status = self._start(part, max(left, 0.01), killed < self.kills)
            starts, killed = starts + 1, killed + (status is None)
            if not self._read_text().startswith(kept[: kept.rfind("\n") + 1]):
                self.faults.append(f"{part}: rows were lost")
        measured = Counter(self.clock.read_log()[logged:])
        again = sum(count - 1 for one, count in measured.items() if one[1] != "slice")
        rows, device_s = len(self.read_rows()) - before, self.clock.now() - began
        if device_s > 60 * minutes:
            self.faults.append(f"{part}: {device_s:.0f} s of {60 * minutes:.0f} s")
        call = {"part": part, "minutes": minutes, "device_s": device_s, "starts": starts, "killed": killed}
        return call | {"status": status, "rows": rows, "measured": measured.total(), "again": again}

    def _start(self, part: str, minutes: float, is_killed: bool) -> int | None:
        """Run the call in a process; its exit status, None where it was killed."""
        words = [part, "--minutes", f"{minutes:.4f}", "--out", str(self.out), *self.options]
        most = DRY_MOST_PAYMENTS if "--dry-run" in self.options else MOST_PAYMENTS
        count = math.exp(self._random.uniform(0, math.log(most)))
        limit = self.clock.count_payments() + count if is_killed else math.inf
        log = self.out.parent / f"{self.out.name}.{part}.txt"
        with log.open("a") as file:
            command = [*CHILD, str(self._clock_file), *words]
            process = subprocess.Popen(command, stdout=file, stderr=file)
            while process.poll() is None:
                if self.clock.count_payments() >= limit:
                    time.sleep(self._random.uniform(0, LATEST_S))
                    return self._kill(part, process)
                time.sleep(POLL_S)
        if process.returncode:
            self.faults.append(f"{part}: exit status {process.returncode}; see {log}")
        return process.returncode

    def _kill(self, part: str, process: subprocess.Popen[bytes]) -> int | None:
        """Kill a call; its exit status, None where it had not ended. Its own processes must end as well."""
        children = list_process_family(process.pid) - {process.pid}
        process.kill()
        status = process.wait()
        ends = time.monotonic() + OUTLIVE_S
        while (left := [pid for pid in children if is_running(pid)]) and time.monotonic() < ends:
            time.sleep(POLL_S)
        for pid in left:
            self.faults.append(f"{part}: process {pid} outlived the killed call")
            os.kill(pid, signal.SIGKILL)
        return None if status < 0 else status

    def _read_text(self) -> str:
        file = self.out / ROWS
        return file.read_text() if file.exists() else ""

    def read_rows(self) -> list[dict[str, Any]]:
        """Rows of items."""
        text = self._read_text()
        rows = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [row for row in rows if row["part"] != "run" and row["item"]]

    def list_repeated_rows(self) -> list[str]:
        """Items with more than one row: neither not run before, nor summaries that each call makes."""
        rows = Counter(
            (row["part"], row["item"])
            for row in self.read_rows()
            if row["status"] != "not run" and not SUMMARIES & row.keys()
        )
        return [f"{part}: {item} has {count} rows" for (part, item), count in rows.items() if count > 1]


COLUMNS = (
    Column("call", "part"),
    Column("minutes", "minutes", "g"),
    Column("device [s]", "device_s", ".0f"),
    Column("starts", "starts"),
    Column("killed", "killed"),
    Column("rows", "rows"),
    Column("measured", "measured"),
    Column("again", "again"),
)


def is_running(pid: int) -> bool:
    """Whether a process runs. One that ended stays listed until its parent asks for its status."""
    return read_status(pid).get("State", "X")[0] not in "ZX"


OPTIONS = {
    "--out": {
        "type": Path,
        "required": True,
        "help": "folder of the results; files beside it",
    },
    "--device": {
        "default": "h100",
        "help": "a simulated device",
    },
    "--pack": {
        "type": Path,
        "help": "file of `python -m benchmarks.gpu.packs`",
    },
    "--kills": {
        "type": int,
        "default": 2,
        "help": "of each call; default: 2",
    },
    "--dry-run": {
        "action": "store_true",
        "help": "small operators",
    },
    "--parts": {
        "nargs": "+",
        "choices": VISIT,
        "help": "default: all six",
    },
}


def measure(given: Arguments) -> dict[str, Any]:
    """Play the visit, and print the table."""
    options = ["--dry-run"] if given.dry_run else ["--device", given.device]
    visit = Rehearsal(given.out, given.kills, given.seed, options)
    played = []
    for part in given.parts or [part for part in VISIT if part in PARTS]:
        extra = ["--pack", str(given.pack)] if part == "pack" and given.pack else []
        visit.options = [*options, *extra]
        played.append(visit.play(part, PARTS[part].MINUTES))
        print(f"{part}: {played[-1]['device_s']:.0f} s", file=sys.stderr, flush=True)
    faults = [*visit.faults, *visit.list_repeated_rows()]
    print(format_lines(COLUMNS, played, "rehearsal: device seconds by the prices of an H100"))
    used = sum(call["device_s"] for call in played) / 60
    print(f"{used:.1f} of {VISIT_MINUTES:g} minutes; {len(faults)} faults")
    for fault in faults:
        print(f"  {fault}")
    return {"lines": played, "faults": faults, "pass": not faults and used <= VISIT_MINUTES}


main = make_main(__doc__, measure, {"minutes": VISIT_MINUTES, "faults": 0}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
