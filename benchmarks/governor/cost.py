"""Cost of sampling and control: processor time of a governor and its guard, as shares of one core.

    python -m benchmarks.governor.cost [--seconds 180] [--json FILE]

Runs `ekc govern -- sleep SECONDS` on a scripted NVML (tests/scripted/nvml). Period detection, search and
watching are the real ones. Figures include the cost of calls in the script, but not of calls in a driver.
The governor is billed from the start of its loop, imports of the loop included; the guard from its own
start.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ekc.governor.live.governed_job import list_process_family
from ekc.version import __version__
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
        assert boards.wait_for(lambda b: _find_guards(process.pid), 60) < 60, "no guard came"
        (guard,) = _find_guards(process.pid)
        guard_s = 0.0
        while process.poll() is None:
            guard_s = max(guard_s, _read_core_s(guard))
            time.sleep(0.5)
        last = json.loads((boards.folder / "events").read_text().splitlines()[-1])
        points = sum("Measured" in line for line in (boards.folder / "events").read_text().splitlines())
    governor, guard_share = last["core_share"], guard_s / seconds
    return {
        "governor": governor,
        "guard": guard_share,
        "measured": points,
        "bar": {"share": BAR},
        "pass": governor + guard_share <= BAR,
    }


def main() -> int:
    """Measure both kinds of cards, print the table, write JSON; exit status 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"ekc {__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}")
    print(f"scripted NVML, a job of {options.seconds:g} s; bar: {BAR:.0%} of one core for both\n")
    print(f"{'card':26}{'governor':>10}{'guard':>9}{'both':>9}{'measured':>10}")
    with ThreadPoolExecutor() as pool:
        # At the same time: processor time is billed to each process, and nearly all of the time they sleep.
        figures = pool.map(lambda instant: measure_cost(instant, options.seconds), CARDS.values())
    rows = [{"card": name} | own for name, own in zip(CARDS, figures, strict=True)]
    for row in rows:
        name = row["card"]
        both = row["governor"] + row["guard"]
        verdict = "pass" if row["pass"] else "FAIL"
        print(
            f"{name:26}{row['governor']:10.2%}{row['guard']:9.2%}{both:9.2%}{row['measured']:10}  {verdict}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "pass": all(row["pass"] for row in rows)}))
    return 0 if all(row["pass"] for row in rows) else 1


def _find_guards(governor: int) -> list[int]:
    return [
        pid
        for pid in list_process_family(governor) - {governor}
        if "ekc.devices.clocks.guard" in _read_command(pid)
    ]


def _read_command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except OSError:
        return ""


def _read_core_s(pid: int) -> float:
    """Processor seconds of a process so far; 0 for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
