"""Kill -9 of the job, the governor, its guard, and all of them: are the previous settings back in time? And
with the daemon: kill -9 of governor and job, SIGSTOP of both, and kill -9 of the daemon.

    python -m benchmarks.governor.kills [--kills 20] [--under CONDITION] [--seed 0] [--json FILE]

Real processes and real signals under a scripted NVML (a file that all processes share, see
tests/scripted/nvml): no GPU is touched. The governor is that of `ekc govern -- COMMAND` with a loop that
sets random SM, memory and power limits every few milliseconds, so that kills come in the middle of setting.
Columns: the process killed, the number of kills at random times, how often a limit was set at that time,
seconds until the previous settings were back (a guard: until it was replaced, or after killing the governor
too, whichever took longer), and whether the job was unharmed.

CONDITION is a fault under which the limits must go back too. All but `nothing` need root.

- `full`: just before the kill the disk of the leases is filled, to the last byte and the last file.
- `read-only`: just before the kill that disk is mounted read-only. So lease files stay, and
  `ekc govern --restore` has status 1.
- `damaged`: just before the kill each lease file is emptied, deleted or replaced, as drawn from `DAMAGES` of
  the tests. The row `all` is left out: only the lease file could say what was set.
- `socket`: from the start, a process of another user holds the socket of each GPU.
"""

from __future__ import annotations

import contextlib
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
from typing import Any

from benchmarks.common.script import Arguments, make_main
from ekc.errors import InvalidInput
from ekc.processes.process_facts import list_process_family
from tests.devices.clocks.conditions import (
    DAMAGES,
    SocketHolder,
    can_mount,
    fill_disk,
    make_read_only,
    mount_small_disk,
)
from tests.devices.clocks.daemon.helpers import RunningDaemon
from tests.scripted.nvml.boards import ROOT, ScriptedBoards

BAR_S = 5.0
"""Seconds within which the previous settings must be back."""
JOB = """
import pathlib, time
end_s = time.monotonic() + 120
while time.monotonic() < end_s and not pathlib.Path("end").exists():
    time.sleep(0.02)
print('job done')
"""
"""Runs until there is a file `end` in its folder."""
GUARD = "ekc.devices.clocks.guard"
"""Words of the command line of a guard."""
CONDITIONS = ("nothing", "full", "read-only", "damaged", "socket")
LATEST_S = 0.6
"""Kills come up to so many seconds after the first setting."""


@dataclass
class Case:
    """The outcome of one kill."""

    touched: bool
    """Whether a limit differed from the previous settings when the process was killed."""
    back_s: float
    """Seconds until the previous settings were back; infinity where that took too long."""
    job_unharmed: bool
    restored: bool = False
    """Whether that needed `ekc govern --restore`."""


class GovernedProcesses:
    """A governor, its guard and its job, as three processes over one scripted GPU."""

    def __init__(self, folder: Path, condition: str = "nothing") -> None:
        self.boards = ScriptedBoards(folder)
        self.condition = condition
        self._cleanup = contextlib.ExitStack()
        try:
            if condition in ("full", "read-only"):
                self._cleanup.enter_context(mount_small_disk(self.boards.leases))
            elif condition == "socket":
                self._cleanup.callback(SocketHolder(self.boards.get_uuid()).close)
            self.start_all()
        except BaseException:
            self._cleanup.close()
            raise

    def start_all(self) -> None:
        """Start all processes."""
        self.start({})
        self.guard = self.find_child(GUARD)

    def begin_condition(self, rng: random.Random) -> None:
        """Set up the condition, unless it holds from the start."""
        if self.condition == "full":
            fill_disk(self.boards.leases)
        elif self.condition == "read-only":
            make_read_only(self.boards.leases)
        elif self.condition == "damaged":
            for file in self.boards.leases.glob("*.json"):
                with contextlib.suppress(FileNotFoundError):  # The governor replaces it just now.
                    DAMAGES[rng.choice(list(DAMAGES))](file)

    def start(self, environment: dict[str, str]) -> None:
        """Start the governor and its job, and wait until a limit was set."""
        self.boards.extra |= environment
        runner = str(ROOT / "tests" / "governor" / "restless_govern.py")
        self.output = (self.boards.folder / "out").open("w")
        self.process = self.boards.start_python(
            runner, sys.executable, "-c", JOB, stdout=self.output, stderr=subprocess.DEVNULL
        )
        assert self.boards.wait_for(has_set_clock, 30) < 30, "the governor never set anything"
        self.job = self.find_child("job done")

    def find_child(self, words: str) -> int:
        """Process id of the child whose command line holds these words."""
        (found,) = list_children(self.process.pid, words)
        return found

    def kill(self, *pids: int) -> bool:
        """Kill processes at once; whether a limit differed from the previous settings."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return not self.boards.are_limits_back()

    def wait_for_restore(self) -> float:
        """Seconds until the previous settings were back and no lease was left, where it can be deleted."""
        is_back = ScriptedBoards.is_restored
        if self.condition == "read-only":
            is_back = ScriptedBoards.are_limits_back
        return self.boards.wait_for(is_back, 2 * BAR_S)

    def wait_for_job(self) -> bool:
        """Let the job end, and wait for that; whether it ended normally with its complete output."""
        (self.boards.folder / "end").touch()
        self.boards.wait_for(lambda b: not Path(f"/proc/{self.job}").exists(), 30)
        self.process.wait()
        return (self.boards.folder / "out").read_text() == "job done\n"

    def close(self) -> None:
        """Kill what still runs."""
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.job, signal.SIGKILL)
        self._cleanup.close()


class DaemonProcesses(GovernedProcesses):
    """A governor and its job, and the daemon that sets limits for it."""

    def start_all(self) -> None:
        """Start the daemon, the governor and its job."""
        self.daemon = RunningDaemon(self.boards, f"[[allow]]\nusers = [{os.geteuid()}]\n")
        self.start({"ACTUATOR": "daemon", "EKC_GOVERNOR_SOCKET": str(self.daemon.socket_path)})

    def close(self) -> None:
        """Kill what still runs."""
        self.daemon.close()
        super().close()


def kill_client(g: GovernedProcesses) -> Case:
    """Kill governor and job; the daemon must restore the settings."""
    touched = g.kill(g.process.pid, g.job)
    return Case(touched, g.wait_for_restore(), True)


def stop_client(g: GovernedProcesses) -> Case:
    """Stop governor and job, as batch systems do; the daemon must restore the settings, and the job run on
    when it continues."""
    for pid in (g.process.pid, g.job):
        os.kill(pid, signal.SIGSTOP)
    touched = not g.boards.are_limits_back()
    back = g.wait_for_restore()
    for pid in (g.process.pid, g.job):
        os.kill(pid, signal.SIGCONT)
    return Case(touched, back, g.wait_for_job())


def kill_daemon(g: GovernedProcesses) -> Case:
    """Kill the daemon; its guard must restore the settings, and the job run on."""
    assert isinstance(g, DaemonProcesses)
    touched = not g.boards.are_limits_back()
    g.daemon.kill()
    return Case(touched, g.wait_for_restore(), g.wait_for_job())


def kill_job(g: GovernedProcesses) -> Case:
    """Kill the job; the governor's exit status must be 128 + 9."""
    touched = g.kill(g.job)
    back = g.wait_for_restore()
    return Case(touched, back, g.process.wait() == 137)


def kill_governor(g: GovernedProcesses) -> Case:
    """Kill the governor; its guard must restore the settings, and the job run on."""
    touched = g.kill(g.process.pid)
    return Case(touched, g.wait_for_restore(), g.wait_for_job())


def kill_guard(g: GovernedProcesses) -> Case:
    """Kill the guard; the governor must start another one, which is tested by killing the governor too."""
    g.kill(g.guard)

    def is_replaced(_: ScriptedBoards) -> bool:
        try:
            return g.find_child(GUARD) != g.guard
        except ValueError:
            return False

    waited = g.boards.wait_for(is_replaced, 2 * BAR_S)
    touched = g.kill(g.process.pid)  # The new guard may not be watching yet.
    return Case(touched, max(waited, g.wait_for_restore()), g.wait_for_job())


def kill_all(g: GovernedProcesses) -> Case:
    """Kill all three processes; `ekc govern --restore` must restore the settings."""
    touched = g.kill(g.guard, g.process.pid, g.job)
    g.process.wait()
    began = time.monotonic()
    restore = g.boards.start_python("-m", "ekc", "govern", "--restore")
    restore.communicate()
    is_back = g.wait_for_restore() < float("inf")
    is_right = restore.returncode == (g.condition == "read-only")
    seconds = time.monotonic() - began if is_back and is_right else float("inf")
    return Case(touched, seconds, True, restored=True)


CASES = {"job": kill_job, "governor": kill_governor, "guard": kill_guard, "all": kill_all}
DAEMON_CASES = {"client": kill_client, "stopped": stop_client, "daemon": kill_daemon}


def has_set_clock(boards: ScriptedBoards) -> bool:
    """Whether a clock of any GPU was limited so far."""
    return any("Locked" in call[2] for call in boards.read_calls())


def _run_cases(name: str, condition: str, kills: int, rng: random.Random) -> dict[str, object]:
    cases = []
    for _ in range(kills):
        with tempfile.TemporaryDirectory() as folder:
            processes = DaemonProcesses if name in DAEMON_CASES else GovernedProcesses
            governed = processes(Path(folder), condition)
            try:
                time.sleep(rng.uniform(0.0, LATEST_S))
                governed.begin_condition(rng)
                cases.append((CASES | DAEMON_CASES)[name](governed))
            finally:
                governed.close()
    back = [case.back_s for case in cases]
    # Where every process was killed, the user restores: the bar is that it works, not how soon.
    bar_s = float("inf") if name == "all" else BAR_S
    is_within_bar = all(x.back_s <= bar_s and x.back_s < float("inf") and x.job_unharmed for x in cases)
    touched, unharmed = sum(c.touched for c in cases), sum(c.job_unharmed for c in cases)
    print(
        f"{name:10}{kills:6}{touched:11}{statistics.median(back):12.2f} s{max(back):7.2f} s"
        f"{'-' if name == 'all' else unharmed:>14}  {'pass' if is_within_bar else 'FAIL'}"
        f"{'  (by ekc govern --restore)' if name == 'all' else ''}",
        flush=True,
    )
    return {
        "killed": name,
        "under": condition,
        "bar": {"back_s": None if name == "all" else BAR_S},
        "pass": is_within_bar,
        "cases": [asdict(x) for x in cases],
    }


def list_children(pid: int, words: str) -> list[int]:
    """Descendants of a process whose command line holds these words."""
    return [n for n in list_process_family(pid) - {pid} if words in _read_command(n)]


def _read_command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def measure(arguments: Arguments) -> dict[str, Any]:
    """Run all kills and print the table."""
    rng, under = random.Random(arguments.seed), arguments.under
    if under != "nothing" and (os.geteuid() != 0 or not can_mount()):
        raise InvalidInput(f"--under {under}: it needs root, and the right to mount a disk")
    print(platform.platform(terse=True))
    print(
        f"scripted NVML, {arguments.kills} kills each, under {under}, seed {arguments.seed}; "
        f"bar: back within {BAR_S:g} s\n"
    )
    print(f"{'killed':10}{'kills':>6}{'while set':>11}{'back, median':>14}{'worst':>9}{'job unharmed':>14}")
    names = [x for x in CASES | DAEMON_CASES if not (under == "damaged" and x == "all")]
    return {"lines": [_run_cases(name, under, arguments.kills, rng) for name in names]}


OPTIONS = {
    "--kills": {"type": int, "default": 20},
    "--under": {"choices": CONDITIONS, "default": "nothing", "help": "fault beside the kills, see above"},
}
main = make_main(__doc__, measure, {"back_s": BAR_S}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
