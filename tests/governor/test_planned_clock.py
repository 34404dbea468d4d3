"""`ekc govern --plan` on the scripted NVML: a plan is applied, taken back, and refused where it does not
fit."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from ekc.search.clocks.plan import ClockPlan
from tests.governor.helpers import end_job, python_command, run_govern, start_govern, wait_until_ready
from tests.scripted.nvml.boards import ScriptedBoards
from tests.search.clocks.plans import make_small_plan

TIMEOUT_S = 10.0
PATIENT_JOB = (
    "import signal, sys, time; signal.signal(15, lambda n, f: sys.exit(7));"
    "print('ready', flush=True); time.sleep(120)"
)
JOB = "print('trained')"
PLAN = replace(make_small_plan(), device="Scripted GPU", clock_mhz=1200)


def write_plan(boards: ScriptedBoards, plan: ClockPlan = PLAN) -> str:
    return str(plan.write(boards.folder / "plan.json"))


def is_planned_clock_set(boards: ScriptedBoards) -> bool:
    return boards.read_limits()[0] == [300, 1200]


def test_plan_is_applied_and_taken_back(one: ScriptedBoards) -> None:
    process = wait_until_ready(start_govern(one, "--plan", write_plan(one), *python_command(PATIENT_JOB)))
    assert one.wait_for(is_planned_clock_set, TIMEOUT_S) < TIMEOUT_S
    status, _, err = end_job(process)
    assert status == 7
    assert one.is_restored()
    assert "set SM up to 1200 MHz: the clock of the plan" in err
    assert "limits          SM up to 1200 MHz" in err
    (report,) = json.loads((one.folder / "events").read_text().splitlines()[-1])["reports"]
    assert report["slowdown"] == PLAN.slowdown
    assert report["saving"] == PLAN.savings.together.value
    assert report["joules"] > 0


def test_killed_governor_gives_the_clock_back(one: ScriptedBoards) -> None:
    process = wait_until_ready(start_govern(one, "--plan", write_plan(one), *python_command(PATIENT_JOB)))
    assert one.wait_for(is_planned_clock_set, TIMEOUT_S) < TIMEOUT_S
    os.kill(process.pid, signal.SIGKILL)
    assert one.wait_for(ScriptedBoards.is_restored, TIMEOUT_S) < TIMEOUT_S
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_restore_gives_the_clock_back_after_all_are_killed(one: ScriptedBoards) -> None:
    process = wait_until_ready(start_govern(one, "--plan", write_plan(one), *python_command(PATIENT_JOB)))
    assert one.wait_for(is_planned_clock_set, TIMEOUT_S) < TIMEOUT_S
    (guard,) = find_processes("ekc.devices.clocks.guard", one)
    os.kill(guard, signal.SIGSTOP)
    os.killpg(process.pid, signal.SIGKILL)
    os.kill(guard, signal.SIGKILL)
    process.communicate()
    assert is_planned_clock_set(one)
    out, _ = one.start_python("-m", "ekc", "govern", "--restore").communicate(timeout=60)
    assert "previous settings are back" in out
    assert one.is_restored()


def find_processes(word: str, boards: ScriptedBoards) -> list[int]:
    """Processes with that word in their command that see these boards."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command, environment = ((entry / name).read_bytes().decode() for name in ("cmdline", "environ"))
        except (OSError, UnicodeDecodeError):
            continue
        if word in command and str(boards.file) in environment:
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"device": "a100"}, "GPU 0 (Scripted GPU) is no a100, which the plan is for"),
        (
            {"clock_mhz": 1207},
            "has no SM clock of 1207 MHz, which the plan sets; it offers 300 to 1995 MHz; nearest: 1200",
        ),
    ],
)
def test_plan_that_does_not_fit_is_refused(
    one: ScriptedBoards, change: dict[str, object], words: str
) -> None:
    plan = write_plan(one, replace(PLAN, **change))
    process = wait_until_ready(start_govern(one, "--plan", plan, *python_command(PATIENT_JOB)))
    line = process.stderr.readline()
    assert words in line
    assert line.endswith("the job runs ungoverned\n")
    assert end_job(process)[0] == 7
    assert not one.read_calls()


def test_plan_without_permission_is_refused(one: ScriptedBoards) -> None:
    one.update_script(fail={"nvmlDeviceSetPowerManagementLimit": 4})
    process = wait_until_ready(start_govern(one, "--plan", write_plan(one), *python_command(PATIENT_JOB)))
    line = process.stderr.readline()
    assert "CAP_SYS_ADMIN" in line
    assert line.endswith("the job runs ungoverned\n")
    assert end_job(process)[0] == 7


def test_file_without_a_plan_is_refused_before_the_job(one: ScriptedBoards) -> None:
    plan = Path(write_plan(one))
    plan.write_text(plan.read_text().replace('"schema": 1', '"schema": 7'))
    status, out, err = run_govern(one, "--plan", str(plan), *python_command(JOB))
    assert (status, out) == (2, "")
    assert "a clock plan of schema 7; this ekc reads 1" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--max-slowdown", "0.1", *python_command(JOB)), "--max-slowdown: the plan has its clock"),
        (("--simulate", "compute"), "--plan: it is for GPUs"),
    ],
)
def test_options_that_do_not_go_with_a_plan_are_refused(
    one: ScriptedBoards, words: tuple[str, ...], reason: str
) -> None:
    status, out, err = run_govern(one, "--plan", write_plan(one), *words)
    assert (status, out) == (2, "")
    assert reason in err
