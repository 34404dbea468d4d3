"""The governor's benchmarks in a tiny form, and that their verdicts can fail."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from ekc.governor.live.pretrained import open_model
from tests.benchmarks.running import FOLDER, run


def test_governor(tmp_path: Path) -> None:
    text, figures = run("governor.py", tmp_path, "--seeds", "1", "--seconds", "600", OMP_NUM_THREADS="1")
    assert "simulated" in text
    rows = {row["governor"]: row for row in figures["rows"]}
    assert set(rows) == {
        "ekc govern",
        "ekc govern, model",
        "ekc govern, step hooks",
        "GPOEO as published",
        "GPOEO, plain energy",
        "ODPP",
        "Zeus caps, step hooks",
    }
    assert figures["simulated"]
    for name, row in rows.items():
        lines = figures["jobs"][name]
        assert row["jobs"] == len(lines) == 12
        assert row["mean_saving"] == pytest.approx(sum(x["saving"] for x in lines) / 12)
        assert row["worst_slowdown"] == max(x["slowdown"] for x in lines)
        assert ("pass" in row) == name.startswith("ekc")
        assert row["regret"] == pytest.approx(figures["oracle"]["mean_saving"] - row["mean_saving"])
    assert rows["ekc govern"]["counter_windows"] == 0
    for line in figures["jobs"]["ekc govern"]:
        causes = line["regret_by_cause"]
        assert set(causes) == {"measuring", "searching", "choice", "watching", "late"}
        if line["kind"] != "drifting":  # What comes and goes whatever the clocks is in no bill.
            assert sum(causes.values()) == pytest.approx(line["oracle_saving"] - line["saving"], abs=1e-3)
    assert "watching" in text
    assert rows["ekc govern, model"]["counter_windows"] >= 12
    assert figures["pass"] == all(row["pass"] for name, row in rows.items() if name.startswith("ekc"))


def test_the_verdict_fails_where_a_bar_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import governor

    good = {
        "governor": "ekc govern",
        "mean_saving": 0.09,
        "share_of_oracle": 0.95,
        "mean_slowdown": 0.04,
        "worst_slowdown": 0.06,
        "extra_windows": 0,
    }
    worse = (
        {"share_of_oracle": 0.89},
        {"mean_slowdown": 0.051},
        {"worst_slowdown": 0.071},
        {"extra_windows": 1},
    )
    for change in ({}, *worse):
        rows = [good | change]
        governor.verdict(rows)
        assert rows[0]["pass"] == (not change)
    rival = good | {"governor": "ODPP", "mean_saving": 0.1}
    rows = [dict(good), rival]
    governor.verdict(rows)
    assert not rows[0]["pass"]
    rows = [dict(good), rival | {"mean_saving": 0.08}]
    governor.verdict(rows)
    assert rows[0]["pass"]


def test_shifts_are_judged_by_the_true_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import governor

    from ekc.governor.events import Shifted
    from ekc.governor.simulation.random_jobs import sample_job
    from ekc.governor.simulation.run import SimulatedRun

    watcher = governor.Watcher(SimulatedRun(sample_job(0, "compute", "h200", 60.0)))
    assert watcher.shifts(2) == (0, 1)
    watcher.told = [(Shifted(1.0, "large", 0.5), 0), (Shifted(9.0, "small", 0.2), 1)]
    assert watcher.shifts(2) == (1, 0)
    watcher.told.append((Shifted(9.0, "known", 0.0), 1))
    assert watcher.shifts(2) == (1, 0)


def sweeps(folder: Path) -> None:
    """Made-up sweeps in the form of the recordings: power follows the cube of the clock, time the clock."""
    for board, caps in (("v100", range(100, 251, 25)), ("a40", range(100, 301, 25))):
        with (folder / f"zeus_power_caps_{board}.csv").open("w", newline="") as file:
            columns = "dataset network batch_size optimizer power_limit time_per_epoch average_power"
            writer = csv.writer(file)
            writer.writerow(columns.split())
            for network, drawn in (("busy", 0.9 * caps[-1]), ("idle", 0.2 * caps[-1])):
                for cap in caps:
                    held = min(drawn, cap)
                    writer.writerow(["made", network, 8, "none", cap, 100 * (drawn / held) ** 0.4, held])
    with (folder / "perseus_gpt3_a100_clocks.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["stage", "instruction", "frequency", "time", "energy", "power_w"])
        for clock in range(855, 1411, 15):
            for instruction, share in (("forward", 1.0), ("backward", 2.0)):
                seconds = share * (0.4 * 1410 / clock + 0.6)
                writer.writerow(
                    [0, instruction, clock, seconds, seconds * (100 + 300 * (clock / 1410) ** 3), 0]
                )


def test_governor_model(tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    told = ("--card", "h200", "--seeds", "2", "--write", str(file))
    text, figures = run("governor_model.py", tmp_path, *told, OMP_NUM_THREADS="1")
    assert "simulated" in text
    assert [row["from"] for row in figures["rows"]] == [
        "counters and signals",
        "signals alone",
        "mean of other jobs",
    ]
    assert figures["pass"] == all(row.get("pass", True) for row in figures["rows"])
    model = open_model(str(file), "NVIDIA H200")
    assert model is not None
    assert "simulated" in model.trained_on


def test_governor_replay(tmp_path: Path) -> None:
    sweeps(tmp_path)
    text, figures = run("governor_replay.py", tmp_path, "--data", str(tmp_path), OMP_NUM_THREADS="1")
    assert "rows of real GPUs" in text
    rows = {row["recording"]: row for row in figures["rows"]}
    assert set(rows) == {
        "Zeus caps, V100",
        "V100, no cap felt",
        "Zeus caps, A40",
        "A40, no cap felt",
        "Perseus clocks, A100",
        "A100, golden section",
    }
    for name, row in rows.items():
        assert ("bar" in row) == (not name.endswith(("felt", "golden section")))
        assert row["points"] <= row["most_points"] < row["rows"]
        assert row["worst_slowdown"] <= 0.05
        if "bar" in row:
            assert row["share_of_best"] >= 0.9
            assert row["pass"]


def test_a_replay_without_its_recordings_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import governor_replay

    from ekc.errors import InvalidInput

    with pytest.raises(InvalidInput, match=r"zeus_power_caps_a40\.csv"):
        governor_replay.zeus(tmp_path, "a40")
