"""Simulated jobs for tests of the control loop, and `ekc govern` processes over scripted boards."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ekc.governor import phase as phases
from ekc.governor.event_records import Event
from ekc.governor.job_meter import JobMeter
from ekc.governor.loop import govern
from ekc.governor.phase import Phase
from ekc.governor.request import Policy
from ekc.governor.samples import SensorSamples
from ekc.governor.simulation.card import find_card
from ekc.governor.simulation.random_jobs import sample_iterations
from ekc.governor.simulation.simulated_run import JobStage, SimulatedJob, SimulatedRun, Timeline
from tests.scripted.nvml.boards import ScriptedBoards

HOST_STAGE = JobStage("host", 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
PAUSE_STAGE = replace(HOST_STAGE, name="pause", is_paused=True)
FORWARD_STAGE = JobStage("forward", 0.8, 4.0, 0.75, 100.0, 35.0, 80.0, 0.9)
UPDATE_STAGE = JobStage("update", 0.1, 4.0, 0.6, 100.0, 85.0, 20.0, 0.0)
GATHER_STAGE = JobStage("gather", 0.05, 4.0, 0.35, 100.0, 70.0, 10.0, 0.0)
STAGES = (PAUSE_STAGE, HOST_STAGE, FORWARD_STAGE, UPDATE_STAGE, GATHER_STAGE)
STAGE_SECONDS = np.array([0.05, 1.0, 0.45])


def make_iterations(
    seconds: float, seed: int = 0, stages=(1, 2, 3), stage_seconds=(0.05, 1.0, 0.45)
) -> Timeline:
    return sample_iterations(np.random.default_rng(seed), np.array(stages), np.array(stage_seconds), seconds)


def make_job(
    parts: list[Timeline],
    name: str = "made",
    device: str = "h200",
    stages: tuple[JobStage, ...] = STAGES,
) -> SimulatedJob:
    stretches = vars(Timeline.concatenate(parts))
    return SimulatedJob(**stretches, name=name, kind="made", card=find_card(device), stages=stages)


def run_governed(
    job: SimulatedJob, hooks: bool = False, **options: object
) -> tuple[SimulatedRun, list[Event]]:
    run = SimulatedRun(job, has_hooks=hooks)
    return run, govern_run(run, **options)


def govern_run(run: SimulatedRun, **options: object) -> list[Event]:
    """Events of the control loop over a run."""
    events: list[Event] = []
    govern(run, run, on_event=events.append, **options)
    return events


def ignore(event: Event) -> None: ...


def begin_phase(run: SimulatedRun) -> tuple[JobMeter, Phase]:
    """The first phase of a run, and its meter."""
    meter = JobMeter(run, run, ignore)
    return meter, phases.begin_phase(meter, Policy(), run.list_offered())


def run_at_default(job: SimulatedJob) -> SimulatedRun:
    run = SimulatedRun(job)
    while run.is_running():
        run.record(60.0)
    return run


def select_events(events: list[Event], kind: type) -> list:
    return [event for event in events if isinstance(event, kind)]


class DisturbedRun(SimulatedRun):
    """A run whose sensors show an idle GPU during `idle_range_s`."""

    idle_range_s = (40.0, 60.0)

    def record(self, seconds: float) -> SensorSamples:
        samples = super().record(seconds)
        first, last = self.idle_range_s
        is_idle = (samples.time_s > first) & (samples.time_s < last)
        return replace(samples, sm_util=np.where(is_idle, 0.0, samples.sm_util))


def start_govern(boards: ScriptedBoards, *words: str) -> subprocess.Popen[str]:
    """A running `ekc govern`, without the terminal of the test run."""
    json_lines = ("--json", str(boards.folder / "events"))
    return boards.start_python("-m", "ekc", "govern", *json_lines, *words, start_new_session=True)


def start_governing(boards: ScriptedBoards, *words: str) -> subprocess.Popen[str]:
    """A running `ekc govern` whose control loop runs."""
    process = start_govern(boards, *words)
    wait_until_governed(boards, process)
    return process


def run_govern(boards: ScriptedBoards, *words: str) -> tuple[int, str, str]:
    """Exit status and output of `ekc govern`."""
    process = start_govern(boards, *words)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def end_job(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit status and remaining output of `ekc govern` after SIGTERM."""
    process.terminate()
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def wait_until_ready(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """Wait until a job prints "ready"."""
    assert process.stdout.readline() == "ready\n"
    return process


def python_command(code: str) -> tuple[str, ...]:
    """Arguments for a job that runs Python code."""
    return "--", sys.executable, "-c", code


def extract_messages(text: str) -> list[str]:
    """Lines of the governor before its report."""
    head = text.partition("ekc govern: report")[0]
    return [line for line in head.splitlines() if line.startswith("ekc")]


def wait_until_governed(boards: ScriptedBoards, process: subprocess.Popen[str]) -> None:
    """Wait until the control loop runs."""
    events = boards.folder / "events"
    assert boards.wait_for(lambda _: events.exists() and "Started" in events.read_text(), 60) < 60
    assert process.poll() is None


OTHER_USER = 65534
"""Id of a user that runs nothing else here."""


@contextmanager
def run_as_other_user() -> Iterator[int]:
    """Id of a process of another user, which only root can start."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    with subprocess.Popen(["sleep", "300"], user=OTHER_USER) as process:
        yield process.pid
        process.kill()


def list_children(pid: int) -> list[int]:
    """Ids of the children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def find_child_pid(pid: int, name: str) -> int:
    """Id of the child that has `name` in its command line, waited for: it may just be started."""
    found: list[int] = []

    def find() -> bool:
        with suppress(FileNotFoundError):
            found.extend(c for c in list_children(pid) if name in Path(f"/proc/{c}/cmdline").read_text())
        return bool(found)

    wait_until(find)
    return found[0]


def read_process_state(pid: int) -> str:
    """One letter, as of ps."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    latest = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < latest
        time.sleep(0.02)


def read_until(terminal: int, words: str) -> None:
    observed = ""
    while words not in observed:
        try:
            observed += os.read(terminal, 1024).decode(errors="replace")
        except OSError as closed:
            raise AssertionError(f"never saw {words!r}, only {observed!r}") from closed
