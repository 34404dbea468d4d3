"""`ekc govern` refuses bad options before any job starts, in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ekc.cli import main

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
        (("--actuator", "magic", *TOUCH), "auto, nvml, zeusd"),
        (("--json", "no/such/folder/events", *TOUCH), "--json"),
        (("--plot", "job.txt", *TOUCH), "--plot"),
        (("--model", "no/such/model.json", *TOUCH), "--model no/such/model.json"),
        (("--simulate", "compute", "--model", "magic"), "--model magic"),
        (("--simulate", "nothing"), "compute"),
        (("--simulate", "compute", "--card", "abacus"), "rtx3090"),
        (("--simulate", "compute", "--minutes", "0"), "--minutes"),
        (("--restore", "--json", "x", "--plot", "y", "--objective", "nonsense"), "--restore goes alone"),
        (("--simulate", "compute", "--gpu", "7"), "--gpu: it is for GPUs"),
        (("--simulate", "compute", "--each"), "--each: it is for GPUs"),
        (("--simulate", "compute", "--actuator", "nvml"), "--actuator: it is for GPUs"),
        (("--simulate", "compute", "--sm-before", "1300"), "--sm-before: it is for GPUs"),
        (("--minutes", "3", *TOUCH), "--minutes: it is for --simulate"),
        (("--", "no-such-program-here"), "cannot run 'no-such-program-here'"),
    ],
)
def test_bad_govern_input_is_one_line(
    words: tuple[str, ...],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["govern", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert error in err
    assert err.count("\n") == 1
    assert not Path("started").exists()
