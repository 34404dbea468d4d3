"""The energy model on made-up recordings."""

from __future__ import annotations

import csv
import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cost_model import energy, energy_rows
from tests.benchmarks.helpers import Run
from tests.benchmarks.recordings import COLUMNS, write_timed_hotspot


def test_energy_model_beats_constant_power(run: Run, tmp_path: Path) -> None:
    write_timed_hotspot(tmp_path, twice=True)
    text, figures = run("cost_model.energy", "--data", str(tmp_path), "--only", "hotspot A4000 energy")
    lines = {line["prediction"]: line for line in figures["lines"]}
    ours, rule = lines["ekc, time known"], lines["latency x constant power"]
    assert rule["rows"] == 252
    assert ours["times_better"] == pytest.approx(rule["mean"] / ours["mean"])
    assert ours["mean"] < rule["mean"] / 5
    assert ours["bar"] == {"times_better": 10}
    assert figures["pass"] == ours["pass"] == (ours["times_better"] >= 10)
    assert ours["mean"] < lines["ekc, configuration alone"]["mean"] < rule["mean"]
    assert "mean" not in lines["latency alone"]
    (noise,) = figures["noise"]
    assert noise["rows"] == 2
    assert noise["energy_rms"] == pytest.approx(0.02 * 2**0.5)
    assert noise["time_rms"] == 0
    assert "2.8% (RMS) from the truth" in text


def test_single_measurement_gives_no_noise(tmp_path: Path) -> None:
    write_timed_hotspot(tmp_path, twice=False)
    (recording,) = (r for r in energy.ENERGIES if r.name == energy_rows.HOTSPOT)
    noise = energy_rows.measure_noise(recording.name, tmp_path, energy_rows.read_kernels(tmp_path, recording))
    assert noise == {"recording": "hotspot A4000 energy", "rows": 0}
    assert "nothing was measured twice" in energy_rows.format_noise(noise)


def test_unused_settings_make_no_new_kernel(tmp_path: Path) -> None:
    names = [n for n in COLUMNS.split() if n != "PRECISION"] + ["time_ms", "energy_j"]
    rows = [
        (16, nwg, 32, 8, 8, mdima, ndimb, 2, 1, 1, 0, 0, sa, sb, nwg, nwg / 4)
        for nwg, mdima, ndimb, sa, sb in itertools.product((32, 64, 128), (8, 16), (8, 16), (0, 1), (0, 1))
    ]
    with gzip.open(tmp_path / "a100_gemm_energy.csv.gz", "wt", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    (recording,) = (r for r in energy.ENERGIES if r.name == "GEMM A100 energy")
    whole = energy_rows.read_kernels(tmp_path, recording)
    # For each tile: one kernel with neither staged, two with one staged, four with both.
    assert len(np.unique(whole.kernel)) == 3 * (1 + 2 + 2 + 4)
    held = [set(whole.kernel[whole.energy == e].tolist()) for e in (8, 16, 32)]
    assert not set.intersection(*held)
    shared: list[set[int]] = []

    def spy(learned: energy_rows.Kernels, tested: energy_rows.Kernels, seed: int) -> np.ndarray:
        shared.append(set(learned.kernel.tolist()) & set(tested.kernel.tolist()))
        return tested.energy

    np.testing.assert_array_equal(energy.predict_folds(whole, spy, 0), whole.energy)
    assert shared == [set()] * 5
