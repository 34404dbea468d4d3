"""Benchmarks of simulated devices: fidelity, the h200, load widths, the residual, and their page."""

from __future__ import annotations

import csv
import gzip
import itertools
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.common.recordings import RECORDINGS, Recording
from benchmarks.simulator import energy, energy_fit, h200, learner, residual, top, write_docs
from benchmarks.simulator.learner import measure_space
from tests.benchmarks.helpers import Run
from tests.benchmarks.recordings import make_rows, write_gemm, write_products


@pytest.mark.slow
def test_fidelity_scores_rows_that_were_not_fitted(run: Run, tmp_path: Path) -> None:
    write_gemm(tmp_path)
    options = ("--only", "clblast", "--rows", "6")
    text, figures = run("simulator.fidelity", "--data", str(tmp_path), *options)
    assert "all predictions are simulated" in text
    latency = [line for line in figures["lines"] if line["what"].startswith("latency")]
    assert [line["how"] for line in latency] == ["6 compiled", "not compiled, estimated"] * 3
    for line in latency:
        assert "(simulated)" in line["what"]
        assert line["shipped"]["rows"] > 0
        assert -1 <= line["trivial"]["minus thread tile"]["spearman"] <= 1
    # Two rows of eight were not compiled; made-up times are not met, and the verdict says so.
    assert latency[1]["shipped"]["rows"] == 2
    power = [line for line in figures["lines"] if line["what"].startswith("power")]
    for line in power:
        held_out = {one["rows"] for one in (line["shipped"], *line["trivial"].values())}
        assert len(held_out) == 1, "ours and what it must beat are scored on the same rows"
    assert power[1]["shipped"]["rows"] < 6
    assert figures["pass"] == all(line["pass"] for line in figures["lines"])
    assert {one["device"] for one in figures["registers"]} == {"a100", "rtx3090", "rtx2080ti"}


def test_top_scores_say_what_a_first_choice_costs() -> None:
    recorded = np.linspace(1.0, 3.0, 201)
    exact = top.score_top(recorded, recorded, 2 * recorded)
    assert (exact["pick"], exact["best_of_ten"], exact["spearman"], exact["rank_of_fastest_tenth"]) == (
        1.0,
        1.0,
        1.0,
        1.0,
    )
    assert exact["median_error"] == pytest.approx(1.0)
    first_is_slow = recorded.copy()
    first_is_slow[100] = 0.5
    found = top.score_top(first_is_slow, recorded, None)
    assert found["median_error"] is None
    assert found["pick"] == pytest.approx(2.0)
    assert found["best_of_ten"] == 1.0
    assert found["spearman"] > 0.9
    constant = top.score_top(np.ones(201), recorded, None)
    assert constant["pick"] == pytest.approx(recorded.mean())
    assert constant["spearman"] == 0.0


def test_fidelity_prints_the_gates_at_the_top(run: Run, tmp_path: Path) -> None:
    write_gemm(tmp_path)
    text, figures = run("simulator.fidelity", "--data", str(tmp_path), "--only", "top", "--best", "0")
    gates = figures["top"]
    assert {(line["device"], line["part"]) for line in gates["lines"]} == {
        (device, part)
        for device in ("a100", "rtx3090", "rtx2080ti")
        for part in ("all", "both staged", "direct reads")
    }
    for line in gates["lines"]:
        assert set(line["scores"]) == {"estimated", "other card", "minus thread tile", "constant"}
        assert (line["pass"] is None) == (line["device"] == "a100" or line["part"] != "all")
    assert "least energy within 5%" in text
    assert "direct reads, rtx3090: only " in text, "no slope from a handful of kernels"
    assert figures["pass"] == gates["pass"]


@pytest.mark.slow
def test_energies_are_fitted_within_their_bounds_and_scored(run: Run, tmp_path: Path) -> None:
    write_gemm(tmp_path)
    write_products(tmp_path)
    text, figures = run("simulator.energy", "--data", str(tmp_path))
    for line in figures["energies"]:
        least, most = line["bounds_pj"]
        assert least * (1 - 1e-9) <= line["fitted_pj"] <= most * (1 + 1e-9)
        assert line["kind"] in text
    judged = [line for line in figures["lines"] if "bar" in line]
    assert len(judged) == 6
    assert figures["pass"] == all(line["pass"] for line in judged)
    by_what = {line["what"]: line for line in judged}
    # Every score of ranks names its trivial predictors.
    for what in (*energy.BARS, *energy.BARS_FROM):
        assert {"tile area", "time alone"} <= {x["by"] for x in figures["lines"] if x["what"] == what}
        assert -1 <= by_what[what]["score"] <= 1


def test_energies_of_made_up_kernels_are_found_again() -> None:
    """Clocks that the model itself predicts give back the energies that it had."""
    random, spec = np.random.default_rng(0), energy.SPEC
    published = np.array(list(energy_fit.list_published(spec).values()))
    kinds = list(energy_fit.list_kinds(spec))
    count = 60
    share = random.uniform(0.2, 1.8, (count, len(kinds))) / (published * len(kinds))
    factor = {group: 0.6 + 0.2 * n for n, group in enumerate(energy_fit.GROUPS)}
    true = np.array(list(energy_fit.list_kinds(spec).values()))
    for group, members in energy_fit.GROUPS.items():
        for kind in members:
            true[kinds.index(kind)] = factor[group] * published[kinds.index(kind)]
    one, number = np.ones(count), np.arange(count)
    runs = energy_fit.Runs(
        seconds=0.01 * one,
        clock_mhz=one,
        power_w=one,
        kernel=number,
        fold=number % energy_fit.FOLDS,
        tile_area=one,
        settings=np.zeros((count, 1)),
        picojoules=1.1 * share,
        busy_share=one,
    )
    clocks = energy_fit.predict_capped_clock(spec, runs, true, lambda clock: 0.01 * clock**0)
    inside = (clocks > spec.min_mhz + 1) & (clocks < spec.boost_mhz - 1)
    assert inside.sum() > 20
    found = energy_fit.fit_energies(spec, replace(runs, clock_mhz=clocks)[inside])
    assert found == pytest.approx(true, rel=0.02)


def test_equals_are_pairs_of_one_clock_and_time() -> None:
    values = np.array([1.0, 1.03, 1.03, 2.0])
    clock = np.array([1.0, 1.0, 2.0, 1.0])
    one = np.ones(4)
    number = np.arange(4)
    runs = energy_fit.Runs(values, clock, one, number, number, one, one, one, one)
    assert energy.list_equals(runs).tolist() == [[0], [1]]
    pairs = np.array([[0, 0, 1], [1, 3, 3]])
    assert energy.rank_equals(values, np.log(values), pairs) > 0.9
    assert energy.rank_equals(-values, np.log(values), pairs) < -0.9


@pytest.mark.slow
def test_recorded_shape_is_tuned(run: Run, tmp_path: Path) -> None:
    write_products(tmp_path)
    options = ("--only", "h200", "--shapes", "1", "--trials", "4", "--seed", "1")
    text, figures = run("simulator.fidelity", "--data", str(tmp_path), *options)
    assert "h200 (simulated)" in text
    result = figures["h200"]
    assert result["rows"] == 400
    (one,) = result["shapes"]
    assert one["shape"] == [256, 256, 256]
    assert one["ratio"] == result["ratio"]["most"] == pytest.approx(one["simulated_s"] / one["recorded_s"])
    assert 100 < one["simulated_w"] <= 700
    # All rows that are long enough for the meter do more than it can.
    assert result["power"] is None
    assert figures["pass"] is True


def test_power_is_scored_against_rows_of_equal_rates(tmp_path: Path) -> None:
    write_products(tmp_path)
    rows = [row for row in h200.read(tmp_path) if row.seconds >= h200.LONG_S]
    assert {row.m for row in rows} == {8192}
    other = {"ratio": 1.0, "simulated_tflops": 1e-3, "simulated_s": 1.0, "gbytes": 1.0, "simulated_w": 1.0}
    like = other | {"simulated_tflops": 300.0, "simulated_s": 2 * 8192**3 / 300e12, "gbytes": 0.403}
    ours = [like | {"simulated_w": watt} for watt in (400.0, 410.0, 420.0, 430.0, 440.0)]
    assert h200.score_power(rows, [*ours[1:], other], 0) is None
    found = h200.score_power(rows, [*ours, other], 0)
    # Rows of 300 TFLOP/s take 3.7 ms and draw about 443 W.
    assert found["shipped"]["rows"] == found["trivial"]["table by TFLOP/s"]["rows"] == 5
    assert found["shipped"]["median_error"] == pytest.approx(0.05, abs=0.02)
    assert found["bias"] == pytest.approx(-0.05, abs=0.02)
    assert found["pass"] is True


def test_shape_line_names_the_instruction_and_the_time_without_it() -> None:
    shape = {"shape": [3, 768, 2048], "recorded_s": 7.4e-6, "recorded_tflops": 1.3, "recorded_w": 156.0}
    ours = {"simulated_s": 21e-6, "ratio": 2.8, "simulated_tflops": 0.4, "simulated_w": 185.0}
    warp, group = ours | {"warpgroup": False, "parts": False}, ours | {"warpgroup": True, "parts": True}
    faster = {"without_s": 4.63e-6}
    shapes = [shape | warp, shape | group | faster, shape | faster]
    result = h200.format_result({"trials": 64, "shapes": shapes, "ratio": {}, "power": None}).splitlines()[
        4:7
    ]
    assert [line.endswith("  4.6 without them") for line in result] == [False, True, True]
    assert result[0].endswith("  mma")
    assert "  wgmma, in parts  " in result[1]


NAMES = "MWG NWG KWG MDIMC NDIMC MDIMA NDIMB KWI VWM VWN STRM STRN SA SB"
FILES = ("a100_gemm_energy.csv.gz", "clblast_gemm_rtx_3090.csv.gz", "clblast_gemm_rtx_2080_ti.csv.gz")


def test_pairs_are_counted_by_staging(run: Run, tmp_path: Path) -> None:
    """Wider is faster by a quarter where the operand is shared, slower by as much where it is not."""
    rows = []
    for vwn in (1, 2):
        for sb in (0, 1):
            values = (32, 64, 32, 8, 8, 8, 8, 2, 2, vwn, 0, 0, 0, sb)
            milliseconds = (20 if sb else 10) * (1.25 if (vwn == 1) == bool(sb) else 1.0)
            rows.append(dict(zip(NAMES.split(), values, strict=True)) | {"time_ms": milliseconds})
    for name in FILES:
        with gzip.open(tmp_path / name, "wt") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    text, figures = run("simulator.load_width", "--data", str(tmp_path), "--pairs", "2")
    assert "of 6 pairs the wider was faster in 50%" in text
    assert [(x["way"], x["pairs"], x["faster"]) for x in figures["lines"]] == [
        ("shared", 1, 1.0),
        ("global", 1, 0.0),
    ] * 3
    for x in figures["lines"]:
        assert x["ratio"] == pytest.approx(1.25 if x["way"] == "shared" else 0.8)
        # Only the pair from global memory is among the fastest fifth.
        assert x.get("compiled", 0) == (x["way"] == "global")
    assert all(x["recorded_ratio"] == pytest.approx(0.8) for x in figures["lines"] if "compiled" in x)
    assert all(0.5 < x["simulated_ratio"] < 2.0 for x in figures["lines"] if "compiled" in x)


def sample_path(
    traits: NDArray[np.float64], length_scale: float, random: np.random.Generator
) -> NDArray[np.float64]:
    """A smooth function of variance 1, by the covariance itself."""
    squared = np.sum((traits[:, None] - traits[None]) ** 2, axis=2)
    covariance = np.exp(-0.5 * squared / length_scale**2) + 1e-6 * np.eye(len(traits))
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
    assert found.length_scale == pytest.approx(1.5, rel=0.3)
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


def test_learner_leaves_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "ROUNDS", 100)
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


def test_page_keeps_the_parts_that_are_not_written(tmp_path: Path) -> None:
    times = np.array([0.01, 0.02, 0.09])
    texts = {"clblast": "the figures", "h200": "the shapes"}
    write_docs.write(texts, {"a100": (times, 1.1 * times)}, tmp_path)
    page = (tmp_path / "simulated-devices.md").read_text()
    assert page.count("the figures") == page.count("the shapes") == 1
    write_docs.write({"h200": "other shapes"}, {}, tmp_path)
    assert (tmp_path / "simulated-devices.md").read_text() == page.replace("the shapes", "other shapes")
    plot = ElementTree.parse(tmp_path / "simulated-a100.svg")
    assert len(plot.findall(".//{http://www.w3.org/2000/svg}circle")) == 3
