"""Cost of sampling and control: processor time of a governor and its guard, as shares of one core.

    python -m benchmarks.governor.cost [--seconds 180] [--json FILE]

Runs `ekc govern -- sleep SECONDS` on a scripted NVML (tests/scripted/nvml). Period detection, search and
watching are the real ones. Figures include the cost of calls in the script, but not of calls in a driver.
The governor is billed from the start of its loop; the guard from its own start.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common.script import Arguments, Column, format_lines, make_main
from benchmarks.governor.kills import GUARD, list_children
from tests.scripted.nvml.boards import ScriptedBoards

BAR = 0.01
"""Share of one core that governor and guard may take together."""
CARDS = {"power is a mean of 1 s": False, "power is instantaneous": True}


def measure_cost(instant: bool, seconds: float) -> dict[str, Any]:
    """Shares of one core over one governed job; `instant`: the power sensor is instantaneous."""
    with tempfile.TemporaryDirectory() as folder:
        boards = ScriptedBoards(Path(folder))
        boards.update_board(0, instant=instant)
        words = ("-m", "ekc", "govern", "--quiet", "--json", "events", "--", "sleep", str(seconds))
        process = boards.start_python(*words, stderr=subprocess.DEVNULL)
        assert boards.wait_for(lambda b: list_children(process.pid, GUARD), 60) < 60, "no guard came"
        (guard,) = list_children(process.pid, GUARD)
        guard_s = 0.0
        while process.poll() is None:
            guard_s = max(guard_s, _read_core_s(guard))
            time.sleep(0.5)
        last = json.loads((boards.folder / "events").read_text().splitlines()[-1])
        points = sum("Measured" in line for line in (boards.folder / "events").read_text().splitlines())
    both = last["core_share"] + guard_s / seconds
    return {
        "governor": last["core_share"],
        "guard": guard_s / seconds,
        "both": both,
        "measured": points,
        "bar": {"share": BAR},
        "pass": both <= BAR,
    }


def _read_core_s(pid: int) -> float:
    """Processor seconds of a process so far; 0 for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(arguments: Arguments) -> dict[str, Any]:
    """Measure both kinds of cards and print the table."""
    print(platform.platform(terse=True))
    print(f"scripted NVML, a job of {arguments.seconds:g} s; bar: {BAR:.0%} of one core for both\n")
    with ThreadPoolExecutor() as pool:
        # At the same time: processor time is billed to each process, and nearly all of the time they sleep.
        figures = pool.map(lambda instant: measure_cost(instant, arguments.seconds), CARDS.values())
    rows = [{"card": name} | shares for name, shares in zip(CARDS, figures, strict=True)]
    print(format_lines(COLUMNS, rows))
    return {"lines": rows}


COLUMNS = (
    Column("card", "card"),
    Column("governor", "governor", ".2%"),
    Column("guard", "guard", ".2%"),
    Column("both", "both", ".2%"),
    Column("measured", "measured"),
    Column("", "pass"),
)
OPTIONS = {
    "--seconds": {"type": float, "default": 180.0},
}
main = make_main(__doc__, measure, {"share": BAR}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
