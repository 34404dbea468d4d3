"""`ekc govern --simulate`: events, report, JSON lines, labels."""

from __future__ import annotations

import json

import pytest

from ekc.cli import main
from ekc.governor.predict.train import TRAINING_SEEDS

SHORT = ("govern", "--simulate", "compute", "--card", "h200", "--minutes", "10")


def test_text_has_every_event_and_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "chose " in err
    assert "compute job on h200 (simulated)" in err
    assert err.index("ekc govern: report") > err.index("job ended")


def test_json_lines_go_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--quiet", "--json", "-", "--seed", "1"]) == 0
    out, err = capsys.readouterr()
    events = [json.loads(line) for line in out.splitlines()]
    assert err == ""
    assert events[0]["simulated"] is True
    (report,) = events[-1]["reports"]
    assert report["simulated"] is True
    assert report["seconds"] == pytest.approx(600, rel=0.2)


def test_output_depends_on_the_seed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for _ in range(2):
        assert main([*SHORT, "--seed", "2"]) == 0
        outputs.append(capsys.readouterr().err)
    assert outputs[0] == outputs[1]


def test_advise_sets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--advise"]) == 0
    err = capsys.readouterr().err
    assert "advice: " in err
    assert "(simulated): set " not in err
    assert "advised, not set: " in err


def test_help_names_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["govern", "--help"]) == 0
    out = capsys.readouterr().out
    for word in ("--max-slowdown", "--restore", "--advise", "--simulate", "python train.py"):
        assert word in out
    assert "--gpus-of" not in out


def test_aperiodic_job_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["govern", "--simulate", "aperiodic", "--minutes", "20"]) == 0
    err = capsys.readouterr().err
    assert "iterations: aperiodic" in err
    assert "ekc govern: report" in err
    assert "not to the end" not in err


def test_model_of_simulated_jobs_is_labelled(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--model", "simulated"]) == 0
    assert f"a model of {len(TRAINING_SEEDS)} simulated jobs of each kind expects" in capsys.readouterr().err
