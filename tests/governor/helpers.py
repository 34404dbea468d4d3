"""Simulated jobs for tests of the control loop, and `ekc govern` processes over scripted boards."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np

from ekc.governor import phase as phases
from ekc.governor.event_records import Event
from ekc.governor.job_meter import JobMeter
from ekc.governor.loop import govern
from ekc.governor.phase import Phase
from ekc.governor.policy import Policy
from ekc.governor.samples import SensorSamples
from ekc.governor.simulation.card import find_card
from ekc.governor.simulation.simulated_job import JobStage, SimulatedJob
from ekc.governor.simulation.simulated_run import SimulatedRun
from ekc.governor.simulation.timeline import Timeline, sample_iterations
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


def make_job(parts: list[Timeline], name: str = "made", device: str = "h200") -> SimulatedJob:
    return Timeline.concatenate(parts).make_job(name, "made", find_card(device), STAGES, 0.0)


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
    return meter, phases.begin_phase(meter, Policy(), run.gears())


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


def read_until(terminal: int, words: str) -> None:
    observed = ""
    while words not in observed:
        try:
            observed += os.read(terminal, 1024).decode(errors="replace")
        except OSError as closed:
            raise AssertionError(f"never saw {words!r}, only {observed!r}") from closed
