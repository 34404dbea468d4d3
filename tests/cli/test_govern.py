"""`ekc govern`: bad options are refused before any job starts; simulated jobs, their events and report."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks.governor import predict
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
        (("--model", "none.json", *TOUCH), "--model none.json: it cannot be read"),
        (("--model", "/dev/zero", *TOUCH), "--model /dev/zero: it cannot be read"),
        (("--advise", "--model", "none.json", *TOUCH), "--model: it says where a search begins"),
        (("--restore", "--model", "none.json"), "--model: --restore goes alone"),
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


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the simulated H200, as the documented command writes it."""
    file = tmp_path_factory.mktemp("model") / "h200.json"
    assert predict.main(["--card", "h200", "--seeds", "2", "--out", str(file)]) == 0
    return file


def test_search_begins_at_the_prediction_of_a_model(model_file: Path, cli: CommandLine) -> None:
    lines = cli(f"{SHORT} --model {model_file}").err.splitlines()
    (expected,) = [
        line for line in lines if "a model of 12 simulated jobs on a simulated h200 expects" in line
    ]
    first = next(line for line in lines if ": set SM up to" in line)
    assert expected.rpartition(" at ")[2] in first
    assert first.endswith(": candidate")
    assert lines.index(expected) < lines.index(first)


def test_model_of_another_card_is_refused(model_file: Path, cli: CommandLine) -> None:
    line = cli.refusal(f"govern --simulate compute --card rtx3090 --model {model_file}")
    assert f"--model {model_file}: it is for the board h200, and the simulated rtx3090 is another" in line


def test_model_of_the_environment_is_left_out_of_advice(
    model_file: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EKC_GOVERN_MODEL", str(model_file))
    assert "a model of" in cli(SHORT).err
    assert "a model of" not in cli(f"{SHORT} --advise").err


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
