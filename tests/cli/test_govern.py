"""`ekc govern`: bad options are refused before any job starts; simulated jobs, their events and report."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine

TOUCH = ("--", sys.executable, "-c", "open('started', 'w')")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "one thing to govern"),
        (("--pid", "1", *TOUCH), "one thing to govern"),
        (("--restore", *TOUCH), "--restore"),
        (("--restore", "--pid", "1"), "--restore"),
        (("--pid", "0"), "--pid"),
        (("--pid", "999999999"), "--pid 999999999"),
        (("--max-slowdown", "-0.1", *TOUCH), "max_slowdown"),
        (("--objective", "fame", *TOUCH), "energy, edp"),
        (("--min-saving", "2", *TOUCH), "min_saving"),
        (("--remaining", "-1", *TOUCH), "remaining"),
        (("--actuator", "magic", *TOUCH), "auto, nvml, daemon, zeusd"),
        (("--json", "no/such/folder/events", *TOUCH), "--json"),
        (("--plot", "job.txt", *TOUCH), "--plot"),
        (("--simulate", "nothing"), "compute"),
        (("--simulate", "compute", "--card", "abacus"), "rtx3090"),
        (("--simulate", "compute", "--minutes", "0"), "--minutes"),
        (("--restore", "--json", "x", "--plot", "y", "--objective", "nonsense"), "--restore goes alone"),
        (("--simulate", "compute", "--gpu", "7"), "--gpu: it is for GPUs"),
        (("--simulate", "compute", "--each"), "--each: it is for GPUs"),
        (("--simulate", "compute", "--actuator", "nvml"), "--actuator: it is for GPUs"),
        (("--simulate", "compute", "--sm-before", "1300"), "--sm-before: it is for GPUs"),
        (("--minutes", "3", *TOUCH), "--minutes: it is for --simulate"),
    ],
)
def test_bad_govern_input_is_one_line(words: tuple[str, ...], error: str, cli: CommandLine) -> None:
    assert error in cli.refusal(shlex.join(("govern", *words)))
    assert not Path("started").exists()


SHORT = "govern --simulate compute --card h200 --minutes 10"


def test_text_has_every_event_and_a_report(cli: CommandLine) -> None:
    out, err = cli(SHORT)
    assert out == ""
    assert "chose " in err
    assert "compute job on h200 (simulated)" in err
    assert err.index("ekc govern: report") > err.index("job ended")


def test_json_lines_go_to_stdout(cli: CommandLine) -> None:
    out, err = cli(f"{SHORT} --quiet --json - --seed 1")
    events = [json.loads(line) for line in out.splitlines()]
    assert err == ""
    assert events[0]["simulated"] is True
    (report,) = events[-1]["reports"]
    assert report["simulated"] is True
    assert report["seconds"] == pytest.approx(600, rel=0.2)


def test_output_depends_on_the_seed_alone(cli: CommandLine) -> None:
    assert cli(f"{SHORT} --seed 2").err == cli(f"{SHORT} --seed 2").err


def test_advise_sets_nothing(cli: CommandLine) -> None:
    err = cli(f"{SHORT} --advise").err
    assert "advice: " in err
    assert "(simulated): set " not in err
    assert "advised, not set: " in err


def test_help_names_the_options(cli: CommandLine) -> None:
    out = cli("govern --help").out
    for word in ("--max-slowdown", "--restore", "--advise", "--simulate", "python train.py"):
        assert word in out
    assert "--gpus-of" not in out


def test_aperiodic_job_is_reported(cli: CommandLine) -> None:
    err = cli("govern --simulate aperiodic --minutes 20").err
    assert "iterations: aperiodic" in err
    assert "ekc govern: report" in err
    assert "not to the end" not in err
