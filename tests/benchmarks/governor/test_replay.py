"""The governor's search replayed on made-up sweeps."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.governor.replay import read_zeus
from ekc.errors import InvalidInput
from tests.benchmarks.helpers import Run


def write_sweeps(folder: Path) -> None:
    """Made-up sweeps in the form of the recordings: power follows the cube of the clock, time the clock."""
    for board, caps in (("v100", range(100, 251, 25)), ("a40", range(100, 301, 25))):
        with (folder / f"zeus_power_caps_{board}.csv").open("w", newline="") as file:
            columns = "dataset network batch_size optimizer power_limit time_per_epoch average_power"
            writer = csv.writer(file)
            writer.writerow(columns.split())
            for network, drawn in (("busy", 0.9 * caps[-1]), ("idle", 0.2 * caps[-1])):
                for cap in caps:
                    watts = min(drawn, cap)
                    writer.writerow(["made", network, 8, "none", cap, 100 * (drawn / watts) ** 0.4, watts])
    with (folder / "perseus_gpt3_a100_clocks.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["stage", "instruction", "frequency", "time", "energy", "power_w"])
        for clock in range(855, 1411, 15):
            for instruction, share in (("forward", 1.0), ("backward", 2.0)):
                seconds = share * (0.4 * 1410 / clock + 0.6)
                writer.writerow(
                    [0, instruction, clock, seconds, seconds * (100 + 300 * (clock / 1410) ** 3), 0]
                )


def test_replay_finds_the_best_rows(run: Run, tmp_path: Path) -> None:
    write_sweeps(tmp_path)
    text, figures = run("governor.replay", "--data", str(tmp_path))
    assert "rows of real GPUs" in text
    rows = {row["recording"]: row for row in figures["lines"]}
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


def test_replay_names_a_missing_recording(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"zeus_power_caps_a40\.csv"):
        read_zeus(tmp_path, "a40")
