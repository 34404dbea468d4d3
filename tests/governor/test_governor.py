"""`ekc.Governor` in a training script: failures do not affect the script, and steps are counted."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import pytest

import ekc
from ekc.errors import InvalidInput
from tests.scripted.nvml.boards import ScriptedBoards

SCRIPT = """
import json, os, time
import ekc
with ekc.Governor(max_slowdown=0.03, quiet=True) as governor:
    ends = time.monotonic() + {seconds}
    while time.monotonic() < ends and governor._process.poll() is None:
        with governor.step():
            time.sleep(0.05)
print(json.dumps(governor.report))
"""


def _run_script(boards: ScriptedBoards, seconds: float) -> tuple[str, str]:
    (boards.folder / "train.py").write_text(SCRIPT.format(seconds=seconds))
    process = boards.start_python("train.py")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out, err


def test_script_is_governed_while_the_block_runs(tmp_path: Path) -> None:
    boards = ScriptedBoards(tmp_path)
    out, err = _run_script(boards, 6.0)
    report = json.loads(out)
    assert err == ""
    assert report["reports"][0]["problem"] is None
    assert report["reports"][0]["simulated"] is False
    assert boards.is_restored()


OPTIONS = (
    "power_cap_w=250",
    "node_power_cap_w=900, price=(0.3, 'EUR'), intensity=380",
    "deadline='2h', steps_total=1000",
    "remember='nightly'",
    "deadline='1h30m', remaining_s=3600",
)


def test_command_takes_every_argument_of_the_script(tmp_path: Path) -> None:
    """The flags of one script are none that the command refuses."""
    processes = []
    for number, options in enumerate(OPTIONS):
        (tmp_path / str(number)).mkdir()
        boards = ScriptedBoards(tmp_path / str(number))
        script = RANKED_SCRIPT.replace("quiet=True", f"quiet=True, {options}")
        (boards.folder / "train.py").write_text(script)
        processes.append((boards, boards.start_python("train.py")))
    for boards, process in processes:
        out, err = process.communicate(timeout=120)
        assert err == ""
        assert json.loads(out)["reports"][0]["problem"] is None
        assert boards.is_restored()


def test_script_without_a_gpu_runs_on(tmp_path: Path) -> None:
    boards = ScriptedBoards(tmp_path)
    boards.update_script(fail={"nvmlInit": 9})
    out, err = _run_script(boards, 15.0)
    assert out == "null\n"
    assert err.count("no NVIDIA driver here") == 1
    assert "Traceback" not in err


RANKED_SCRIPT = """
import json, os, time
from pathlib import Path
import ekc
with ekc.Governor(quiet=True) as governor:
    ends = time.monotonic() + 60
    while not list(Path(os.environ["EKC_RUN_DIR"]).glob("*.json")) and time.monotonic() < ends:
        time.sleep(0.05)
    time.sleep(2)
print(json.dumps(governor.report))
"""
"""Runs two seconds longer than it takes until a GPU is leased."""


def test_only_the_first_process_of_a_machine_governs(tmp_path: Path) -> None:
    boards = ScriptedBoards(tmp_path)
    (tmp_path / "train.py").write_text(RANKED_SCRIPT)
    processes = []
    for rank in ("0", "1"):
        boards.extra["LOCAL_RANK"] = rank
        processes.append(boards.start_python("train.py"))
    (first, output), second = (process.communicate(timeout=120) for process in processes)
    assert len(json.loads(first)["reports"]) == 1
    assert output == ""
    assert second == ("null\n", "")


def test_bad_arguments_are_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match="max_slowdown"):
        ekc.Governor(max_slowdown=-1)
    with pytest.raises(InvalidInput, match="objective"):
        ekc.Governor(objective="fame")
    with pytest.raises(InvalidInput, match=r"no actuator .fame.; actuators are auto, nvml, daemon, zeusd"):
        ekc.Governor(actuator="fame")


def test_full_disk_does_not_affect_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.warns(UserWarning, match="no governor"):
        governor = ekc.Governor()
    with governor, governor.step():
        pass
    assert governor.report is None


@pytest.mark.parametrize("left", ["", '{"event": "Started"}\n{"event": "Rep', "[]"])
def test_incomplete_report_does_not_affect_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """Replacement of `ekc govern` that writes a given text to its file of events."""
    fake = tmp_path / "python"
    fake.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != --json ]; do shift; done\n'
        f"printf '%s' '{left}' > \"$2\"\n"
        "exec sleep 30\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with ekc.Governor() as governor:
        time.sleep(0.5)
    assert governor.report is None
