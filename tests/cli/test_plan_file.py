"""`ekc tune --plan FILE`: the plan is written and read back; a file that cannot hold it is refused first."""

from __future__ import annotations

from pathlib import Path

import pytest

from ekc.cli import main
from ekc.search.clocks.plan import ClockPlan

TUNE = ("tune", "matvec", "256", "256", "--target", "a100", "--trials", "4", "--quiet", "--workers", "1")


def test_plan_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "plan.json", tmp_path / "build"
    assert main([*TUNE, "--clocks", "search", "--plan", str(file), "--out", str(out)]) == 0
    plan = ClockPlan.read(file)
    assert plan.device == "a100"
    printed = capsys.readouterr()
    assert f"Clock plan for a100 (simulated): {plan.clock_mhz} MHz" in printed.out
    assert f"ekc govern --plan {file} -- COMMAND" in printed.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--plan", "plan.json"), "--plan: a plan needs --clocks search"),
        (("--clocks", "search", "--plan", "no/folder/plan.json"), "--plan no/folder/plan.json: not a file"),
        (("--clocks", "search", "--plan", "."), "--plan .: not a file in a folder"),
    ],
)
def test_file_that_cannot_hold_a_plan_is_refused(
    words: tuple[str, ...],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*TUNE, *words]) == 2
    assert reason in capsys.readouterr().err
