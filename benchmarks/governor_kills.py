"""kill -9 of the job, the governor, its guard, and all of them: are the previous settings back in time?

    python benchmarks/governor_kills.py [--kills 20] [--seed 0] [--json FILE]

Real processes and real signals under a scripted NVML (a file that all processes share, see
tests/scripted/nvml): no GPU is touched. The governor is that of `ekc govern -- COMMAND` with a loop that
sets random SM, memory and power limits every few milliseconds, so that kills come in the middle of setting.
Rows: who is killed, at how many random moments, how often something was set just then, how long until the
settings of before were back (a guard: until it was replaced, or after killing the governor too, whichever
took longer), and whether the job was left alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from ekc.governor.live.job import list_process_family
from ekc.version import __version__
from tests.scripted.nvml.boards import ROOT, ScriptedBoards

BAR_S = 5.0
BEFORE = (None, None, 280_000)
JOB = "import time, sys; time.sleep(float(sys.argv[1])); print('job done')"
JOB_S = "4"
LATEST_S = 0.6
"""Kills come up to so long after the first setting."""


@dataclass
class Case:
    """One kill."""

    touched: bool
    """Whether a limit differed from before at that moment."""
    back_s: float
    """Until everything was as before; infinity where that took too long."""
    job_unharmed: bool
    restored: bool = False
    """Whether that needed `ekc govern --restore`."""


class Governed:
    """A governor, its guard and its job, as three processes over one scripted GPU."""

    def __init__(self, folder: Path) -> None:
        self.boards = ScriptedBoards(folder)
        runner = str(ROOT / "tests" / "governor" / "restless_govern.py")
        self.output = (folder / "out").open("w")
        self.process = self.boards.start_python(
            runner, sys.executable, "-c", JOB, JOB_S, stdout=self.output, stderr=subprocess.DEVNULL
        )
        assert self.boards.wait_for(_clock_was_set, 30) < 30, "the governor never set anything"
        self.job = self.child("job done")
        self.guard = self.child("ekc.devices.clocks.lease")

    def child(self, words: str) -> int:
        """Process id of the child whose command line holds these words."""
        children = list_process_family(self.process.pid) - {self.process.pid}
        (found,) = (pid for pid in children if words in _command(pid))
        return found

    def kill(self, *pids: int) -> bool:
        """At once; whether a limit was not as before."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return self.boards.read_limits() != BEFORE

    def back(self) -> float:
        """Seconds until everything was as before and no lease was left."""
        over = lambda b: b.limits() == BEFORE and not list(b.leases.glob("*.json"))  # noqa: E731
        return self.boards.wait_for(over, 2 * BAR_S)

    def job_goes_on(self) -> bool:
        """Waits for the job; whether it came to its own end and its output is whole."""
        self.boards.wait_for(lambda b: not Path(f"/proc/{self.job}").exists(), 30)
        self.process.wait()
        return (self.boards.folder / "out").read_text() == "job done\n"


def killed_job(g: Governed) -> Case:
    """The status is the job's: 128 + 9."""
    touched = g.kill(g.job)
    back = g.back()
    return Case(touched, back, g.process.wait() == 137)


def killed_governor(g: Governed) -> Case:
    """The guard puts back; the job goes on."""
    touched = g.kill(g.process.pid)
    return Case(touched, g.back(), g.job_goes_on())


def killed_guard(g: Governed) -> Case:
    """Another guard takes its place; then the governor is killed too."""
    g.kill(g.guard)

    def replaced(_: ScriptedBoards) -> bool:
        try:
            return g.child("ekc.devices.clocks.lease") != g.guard
        except ValueError:
            return False

    waited = g.boards.wait_for(replaced, 2 * BAR_S)
    touched = g.kill(g.process.pid)  # The new one may not be watching yet.
    return Case(touched, max(waited, g.back()), g.job_goes_on())


def killed_all(g: Governed) -> Case:
    """Nobody is left to put back; `--restore` does."""
    touched = g.kill(g.guard, g.process.pid, g.job)
    g.process.wait()
    began = time.monotonic()
    done = g.boards.start_python(
        "-m", "ekc", "govern", "--restore", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    done.communicate()
    g.back()
    seconds = time.monotonic() - began if done.returncode == 0 else float("inf")
    return Case(touched, seconds, True, restored=True)


CASES = {"job": killed_job, "governor": killed_governor, "guard": killed_guard, "all": killed_all}


def main() -> int:
    """Status 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    print(f"ekc {__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}")
    print(f"scripted NVML, {options.kills} kills each, seed {options.seed}; bar: back within {BAR_S:g} s\n")
    print(f"{'killed':10}{'kills':>6}{'while set':>11}{'back, median':>14}{'worst':>9}{'job unharmed':>14}")
    rows = [_row(name, options.kills, rng) for name in CASES]
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "pass": all(row["pass"] for row in rows)}))
    return 0 if all(row["pass"] for row in rows) else 1


def _clock_was_set(boards: ScriptedBoards) -> bool:
    return any("Locked" in call[2] for call in boards.read_calls())


def _row(name: str, kills: int, rng: random.Random) -> dict[str, object]:
    cases = []
    for _ in range(kills):
        with tempfile.TemporaryDirectory() as folder:
            governed = Governed(Path(folder))
            try:
                time.sleep(rng.uniform(0.0, LATEST_S))
                cases.append(CASES[name](governed))
            finally:
                governed.process.kill()
    back = [case.back_s for case in cases]
    # Where nobody is left alive, when they come back is for whoever restores; that they do is the bar.
    bar_s = float("inf") if name == "all" else BAR_S
    good = all(x.back_s <= bar_s and x.back_s < float("inf") and x.job_unharmed for x in cases)
    touched, unharmed = sum(c.touched for c in cases), sum(c.job_unharmed for c in cases)
    print(
        f"{name:10}{kills:6}{touched:11}{statistics.median(back):12.2f} s{max(back):7.2f} s"
        f"{'-' if name == 'all' else unharmed:>14}  {'pass' if good else 'FAIL'}"
        f"{'  (by ekc govern --restore)' if name == 'all' else ''}",
        flush=True,
    )
    return {
        "killed": name,
        "bar": {"back_s": None if name == "all" else BAR_S},
        "pass": good,
        "cases": [asdict(x) for x in cases],
    }


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
