"""Benchmarks of the cost model: priors, energies, and registers against ptxas."""

from __future__ import annotations

import csv
import gzip
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ekc
from benchmarks.common import estimated
from benchmarks.common.clblast import Xgemm
from benchmarks.cost_model import analytic, energy, energy_rows, recording
from ekc.devices.recording import read_recording
from ekc.devices.simulated import specs
from ekc.search.cost_model.boosted_prior import BoostedPrior
from tests.benchmarks.helpers import Run
from tests.benchmarks.recordings import COLUMNS, write_gemm, write_timed_hotspot
from tests.devices.recording.helpers import COUNT, record


def test_priors_are_ranked_against_recordings(run: Run, tmp_path: Path) -> None:
    write_gemm(tmp_path)
    text, figures = run("cost_model.analytic", "--data", str(tmp_path), "--rows", "6", "--own", "0")
    assert "recordings of real GPUs" in text
    lines = [line for line in figures["lines"] if line["half"] == "all"]
    assert [line["kernels"] for line in lines] == [6] * 24
    assert [line["recording"] for line in lines[::8]] == ["a100", "rtx3090", "rtx2080ti"]
    judged = [line for line in lines if "pass" in line]
    assert [(line["accesses"], line["prior"]) for line in judged] == [("recorded", "data sheet")] * 3
    for line in judged:
        assert line["pass"] == (line["spearman"] >= 0.93 and line["pick"] <= 1.15)
    assert figures["pass"] == all(line["pass"] for line in figures["lines"] if "pass" in line)
    # Made-up times fall with the tile of a thread, but for what staging adds.
    assert next(line for line in lines if line["prior"] == "thread tile")["spearman"] > 0.4
    # Made-up watts grow with the number of a row; nothing in a kernel says so.
    for power in figures["powers"]:
        assert power["of_rows"] < 0.02 < power["spread"]


def test_accesses_of_recorded_kernels_replace_those_of_the_schedule() -> None:
    direct = Xgemm(64, 64, 32, 8, 8, 0, 0, 2, 4, 4, 1, 1, 0, 0)
    staged = Xgemm(64, 64, 32, 8, 8, 8, 8, 2, 1, 1, 0, 0, 1, 1)
    kernels = [direct, staged, replace(staged, mdima=16)]
    analysed = analytic.analyse_kernels(specs.RTX3090, kernels)
    recorded = analytic.replace_accesses(analysed, kernels)
    assert set(recorded) == set(analysed)
    for name, values in recorded.items():
        if name not in estimated.ACCESS_QUANTITIES and name != "l2_bytes":
            np.testing.assert_array_equal(values, analysed[name])
        # Where nothing is staged, CLBlast reads as the schedule says.
        assert values[0] == pytest.approx(analysed[name][0], rel=0.05), name
    assert recorded["total_global_load_sectors"][1] > 2 * analysed["total_global_load_sectors"][1]
    assert recorded["total_global_passes"][1] != recorded["total_global_passes"][2]


@pytest.mark.slow
def test_estimated_counts_are_compared_with_compiled_ones() -> None:
    found = analytic.compare_compiled("matmul", ekc.matmul(128, 128, 128), 8, 0)
    assert found["kernels"] == 8
    assert found["spearman"] > 0.8
    assert found["median_error"] < 0.2


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
    assert lines["ekc, configuration alone"]["mean"] < rule["mean"] / 5
    assert "mean" not in lines["latency alone"]
    (noise,) = figures["noise"]
    assert noise["rows"] == 2
    assert noise["energy_rms"] == pytest.approx(0.02 * 2**0.5)
    assert noise["time_rms"] == 0
    assert "2.8% (RMS) from the truth" in text


def _check_few_rows(lines: list[dict[str, Any]]) -> None:
    """Four row counts of five predictions; ours is judged at three of them."""
    assert [line["rows"] for line in lines] == [n for n in energy.ROW_COUNTS for _ in range(5)]
    judged = [line for line in lines if "pass" in line]
    assert [line["rows"] for line in judged] == list(energy.BARS)
    for line in judged:
        assert line["prediction"] == "ekc, time known"
        assert line["pass"] == (line["mean"] <= energy.BARS[line["rows"]])
    assert judged[-1]["mean"] < judged[0]["mean"]
    assert all(line["pick"] >= 1 for line in lines)
    assert all(("mean" in line) == (line["prediction"] != "latency alone") for line in lines)


def test_few_kernels_are_drawn_apart_from_those_tested() -> None:
    kernel = np.repeat(np.arange(10), 3)
    figures = np.arange(30) + 1.0
    whole = energy_rows.Kernels(np.zeros((30, 1)), figures, figures, kernel)
    drawn = list(energy.draw_kernels(whole, 4, 5, 0))
    for learned, tested in drawn:
        assert len(set(learned.kernel.tolist())) == len(learned.kernel) == 4
        assert not set(learned.kernel.tolist()) & set(tested.kernel.tolist())
        assert len(tested.kernel) == 18
    assert len({tuple(sorted(learned.energy)) for learned, _ in drawn}) == 5
    again = [learned.energy.tolist() for learned, _ in energy.draw_kernels(whole, 4, 5, 0)]
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
    model, plain, rule, _, prior, other = figures["lines"]
    assert plain["prediction"] == "not corrected"
    assert model["rows"] == COUNT - 1
    assert model["bar"] == {"mean": rule["mean"]}
    assert model["pass"] == figures["pass"] == (model["mean"] < rule["mean"])
    assert prior["prediction"] == "the prior alone"
    assert other["prediction"].startswith("not judged: at least 10 metered schedules")
    origin = read_recording(file).origin
    booster = BoostedPrior(origin.peaks, origin.limits.sms)
    whole = recording.make_candidates(read_recording(file), 0, booster)
    measured = np.array([c.energy_j for c in whole])
    fold = np.random.default_rng(0).permutation(len(whole)) % recording.FOLDS
    watts = measured / np.array([c.latency_s for c in whole])
    known = np.array([np.median(watts[fold != f]) for f in fold])
    assert rule["mean"] == pytest.approx(np.mean(np.abs(known / watts - 1)))


def test_folds_never_predict_a_schedule_from_itself() -> None:
    whole = list(range(23))

    def predict(known: list[int], asked: list[int], booster: object) -> np.ndarray:
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
