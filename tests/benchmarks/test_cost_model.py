"""Benchmarks of the cost model: the analytic prior, energies, and registers against ptxas."""

from __future__ import annotations

import csv
import gzip
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cost_model import energy, energy_rows, few_rows, recording
from ekc.devices.recording import read_recording
from tests.benchmarks.helpers import Run
from tests.benchmarks.recordings import COLUMNS, write_gemm, write_timed_hotspot
from tests.devices.recording.helpers import COUNT, record


def test_prior_is_ranked_against_recordings(run: Run, tmp_path: Path) -> None:
    write_gemm(tmp_path)
    text, figures = run("cost_model.analytic", "--data", str(tmp_path), "--rows", "6")
    assert "recordings of real GPUs" in text
    lines = figures["lines"]
    assert [line["rows"] for line in lines] == [6, 2] * 3 + [8]
    # Made-up watts grow with the number of a row; nothing in a kernel says so.
    assert lines[-1]["of_rows"] < 0.02 < lines[-1]["spread"]
    # Made-up times fall with the tile of a thread, as those that the prior expects do.
    assert lines[2]["spearman"] > 0


def test_energy_model_beats_constant_power(run: Run, tmp_path: Path) -> None:
    write_timed_hotspot(tmp_path, twice=True)
    options = ("--only", "hotspot A4000 energy", "--draws", "1")
    text, figures = run("cost_model.energy", "--data", str(tmp_path), *options)
    lines = {line["prediction"]: line for line in figures["lines"] if "draws" not in line}
    ours, rule = lines["ekc, time known"], lines["latency x constant power"]
    assert rule["rows"] == 252
    assert ours["times_better"] == pytest.approx(rule["mean"] / ours["mean"])
    assert ours["mean"] < rule["mean"] / 5
    assert ours["bar"] == {"times_better": 10}
    assert ours["pass"] == (ours["times_better"] >= 10)
    # The made-up power does not depend on the time.
    assert lines["P0 t + E0"]["mean"] == pytest.approx(rule["mean"], rel=0.1)
    _check_few_rows([line for line in figures["lines"] if "draws" in line])
    assert figures["pass"] == all(line["pass"] for line in figures["lines"] if "pass" in line)
    assert ours["mean"] < lines["ekc, configuration alone"]["mean"] < rule["mean"]
    assert "mean" not in lines["latency alone"]
    (noise,) = figures["noise"]
    assert noise["rows"] == 2
    assert noise["energy_rms"] == pytest.approx(0.02 * 2**0.5)
    assert noise["time_rms"] == 0
    assert "2.8% (RMS) from the truth" in text


def _check_few_rows(lines: list[dict[str, Any]]) -> None:
    """Four row counts of five predictions; ours is judged at three of them."""
    assert [line["rows"] for line in lines] == [n for n in few_rows.ROW_COUNTS for _ in range(5)]
    judged = [line for line in lines if "pass" in line]
    assert [line["rows"] for line in judged] == list(few_rows.BARS)
    for line in judged:
        assert line["prediction"] == "ekc, time known"
        assert line["pass"] == (line["mean"] <= few_rows.BARS[line["rows"]])
    assert judged[-1]["mean"] < judged[0]["mean"]
    assert all(line["pick"] >= 1 for line in lines)
    assert all(("mean" in line) == (line["prediction"] != "latency alone") for line in lines)


def test_few_kernels_are_drawn_apart_from_those_tested() -> None:
    kernel = np.repeat(np.arange(10), 3)
    figures = np.arange(30) + 1.0
    whole = energy_rows.Kernels(np.zeros((30, 1)), figures, figures, kernel)
    drawn = list(few_rows.draw_kernels(whole, 4, 5, 0))
    for learned, tested in drawn:
        assert len(set(learned.kernel.tolist())) == len(learned.kernel) == 4
        assert not set(learned.kernel.tolist()) & set(tested.kernel.tolist())
        assert len(tested.kernel) == 18
    assert len({tuple(sorted(learned.energy)) for learned, _ in drawn}) == 5
    again = [learned.energy.tolist() for learned, _ in few_rows.draw_kernels(whole, 4, 5, 0)]
    assert again == [learned.energy.tolist() for learned, _ in drawn]


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


@pytest.mark.slow
def test_model_is_compared_with_constant_power(run: Run, tmp_path: Path) -> None:
    file = record(tmp_path / "all.jsonl.gz", every=1)
    text, figures = run("cost_model.recording", str(file))
    assert "a100 (simulated), recorded" in text
    assert "Simulated: the energies are those of a model, not of a GPU." in text
    model, rule, prior, other = figures["lines"]
    assert model["rows"] == COUNT - 1
    assert model["bar"] == {"mean": rule["mean"]}
    assert model["pass"] == figures["pass"] == (model["mean"] < rule["mean"])
    assert prior["prediction"] == "the prior alone"
    assert other["prediction"].startswith("not judged: at least 10 metered schedules")
    whole = recording.make_candidates(read_recording(file), 0)
    measured = np.array([c.energy_j for c in whole])
    fold = np.random.default_rng(0).permutation(len(whole)) % recording.FOLDS
    watts = measured / np.array([c.latency_s for c in whole])
    known = np.array([np.median(watts[fold != f]) for f in fold])
    assert rule["mean"] == pytest.approx(np.mean(np.abs(known / watts - 1)))


def test_folds_never_predict_a_schedule_from_itself() -> None:
    whole = list(range(23))

    def predict(known: list[int], asked: list[int], peaks: object, seed: int) -> np.ndarray:
        assert not set(known) & set(asked)
        assert sorted([*known, *asked]) == whole
        return np.array(asked, dtype=np.float64)

    assert recording.predict_folds(whole, predict, None, 5, 0).tolist() == whole


@pytest.mark.slow
def test_registers_are_compared_with_ptxas(run: Run) -> None:
    options = ("--only", "conv 1x64", "--draws", "4")
    text, figures = run("cost_model.registers", *options, "--a-round", "0")
    assert "0 registers a round" in text
    (line,) = figures["lines"]
    assert line["compiled"] == 4
    assert 0 <= line["spill"] <= 1
    assert line["median"] > 0
