"""The split of the simulator's error into a shared and an own part, on populations whose split is known."""

from __future__ import annotations

import csv
import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.common.recordings import RECORDINGS, Recording
from benchmarks.simulator import learner, residual
from benchmarks.simulator.learner import measure_space
from tests.benchmarks.helpers import Run
from tests.benchmarks.recordings import make_rows


def sample_path(
    traits: NDArray[np.float64], alike: float, random: np.random.Generator
) -> NDArray[np.float64]:
    """A smooth function of variance 1, by the covariance itself."""
    squared = np.sum((traits[:, None] - traits[None]) ** 2, axis=2)
    covariance = np.exp(-0.5 * squared / alike**2) + 1e-6 * np.eye(len(traits))
    return np.asarray(np.linalg.cholesky(covariance) @ random.standard_normal(len(traits)))


@pytest.mark.parametrize(("own", "shared"), [(0.002, 0.1), (0.03, 0.08)])
def test_fit_recovers_known_sizes(own: float, shared: float) -> None:
    random, bins = np.random.default_rng(0), []
    for _ in range(6):
        traits = random.uniform(0, 6, (300, 3))
        logs = shared * sample_path(traits, 1.5, random) + own * random.standard_normal(300)
        bins += list(residual.compute_variogram(residual.Errors(logs, traits)))
    found = residual.fit_sizes(bins, "robust")
    assert found.shared == pytest.approx(shared, rel=0.2)
    assert found.alike == pytest.approx(1.5, rel=0.3)
    assert found.own == pytest.approx(own, abs=0.01)


def test_unshared_residual_has_a_flat_variogram() -> None:
    random = np.random.default_rng(1)
    traits = random.uniform(0, 6, (500, 3))
    bins = list(residual.compute_variogram(residual.Errors(0.05 * random.standard_normal(500), traits)))
    assert all(one["robust"] == pytest.approx(0.05, rel=0.25) for one in bins)


def test_too_few_pairs_have_no_fit() -> None:
    bins = list(residual.compute_variogram(residual.Errors(np.zeros(3), np.zeros((3, 2)))))
    assert bins == []
    assert residual.fit_sizes(bins, "robust") is None
    assert residual.is_near_shipped(None) is False


def test_learner_leaves_the_noise() -> None:
    random = np.random.default_rng(2)
    settings = np.array(list(itertools.product((1, 2, 4, 8, 16), repeat=4)), dtype=np.float64)
    smooth = np.log2(settings) @ (0.1, 0.2, 0.0, -0.1)
    rest = learner.compute_residuals(settings, smooth + 0.05 * random.standard_normal(len(settings)), 0)
    assert 0.04 < learner.compute_robust_std(rest) < 0.08
    assert learner.compute_robust_std(learner.compute_residuals(settings, smooth, 0)) < 0.03


def test_repeats_of_a_kernel_count_once(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    with gzip.open(tmp_path / "made_up.csv.gz", "wt", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["MWG", "MDIMA", "SA", "time_ms"])
        for tile, across, shared in itertools.product((16, 32, 64, 128), (8, 16, 32), (0, 1)):
            noise = 1 + 0.01 * random.standard_normal()
            writer.writerow([tile, across, shared, tile * (1 + shared) * noise])
    made_up = Recording("made up", "made_up", ("MWG", "MDIMA", "SA"), "time_ms", (), 1, False)
    found = measure_space(tmp_path, made_up, 0)
    # Where nothing is copied to shared memory, the shape of the threads that copy changes no kernel.
    assert (found["rows"], found["kernels"]) == (24, 16)
    assert 0.003 < found["repeats"] < 0.03


@pytest.mark.slow
def test_residual_of_few_pairs_fails_its_bar(run: Run, tmp_path: Path) -> None:
    for recording in RECORDINGS:
        rows = make_rows()
        if "SA" not in recording.decisions:
            kinds = itertools.product((1, 2), (1, 2), (1, 2), *[(1,)] * (len(recording.decisions) - 3))
            rows = [dict(zip(recording.decisions, k, strict=True)) | {"time_ms": 1.0 + sum(k)} for k in kinds]
        figures = {"clock_mhz": 1200, "energy_j": 1.0, "compile_time_ms": 1.0, "benchmark_time_ms": 1.0}
        with gzip.open(tmp_path / f"{recording.file}.csv.gz", "wt", newline="") as stream:
            writer = csv.DictWriter(stream, [*rows[0], "power_w", *figures])
            writer.writeheader()
            writer.writerows(row | figures | {"power_w": 200.0 + n} for n, row in enumerate(rows))
    options = ("--data", str(tmp_path), "--only", "residual", "--rows", "8")
    text, found = run("simulator.fidelity", *options)
    result = found["residual"]
    spaces = [(one["space"], one["figure"]) for one in result["learner"]]
    assert len(spaces) == len(set(spaces)) == 8
    assert [one["device"] for one in result["spaces"]] == ["a100", "rtx3090", "rtx2080ti"]
    assert all(one["kernels"] == 8 for one in result["spaces"])
    # So few pairs fit nothing, and nothing passes for that.
    assert found["pass"] is result["pass"] is False
    assert "too few pairs to fit" in text
    assert text.rstrip().endswith("FAIL")
