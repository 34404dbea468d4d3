"""Each benchmark in a tiny form: it runs, prints its table and writes its figures with bar and verdict."""

from __future__ import annotations

import csv
import gzip
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.benchmarks.running import ROOT, run


@pytest.mark.parametrize(
    "module",
    sorted(
        ".".join(p.relative_to(ROOT).with_suffix("").parts)
        for p in (ROOT / "benchmarks").rglob("*.py")
        if "argparse" in p.read_text() and "gpu" not in p.parts and "__main__" in p.read_text()
    ),
)
def test_every_benchmark_explains_itself(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


def test_search_rate(tmp_path: Path) -> None:
    text, figures = run("search.rate", tmp_path, "--seconds", "0.1", "--population", "512", "--seed", "1")
    assert "candidates/s" in text
    assert "a100 (simulated)" in text
    (row,) = figures["rows"]
    assert row["bar"]["candidates_per_s"] == 100_000
    assert row["structures_scored"] >= row["bar"]["structures_scored"] == 8
    assert sum(row["scored_by_structure"].values()) == row["scored"]
    assert row["candidates_per_s"] == pytest.approx(row["scored"] / row["seconds"])
    assert row["pass"] == (row["candidates_per_s"] >= 100_000)
    assert 0 < row["cascade"]["asked"] <= 1
    assert row["cascade"]["best_kept"] > 0.9
    assert row["cascade"]["rank_correlation"] > 0.9
    assert sum(row["share_of_time"].values()) == pytest.approx(1.0)


def test_search_depth(tmp_path: Path) -> None:
    options = ("--only", "MV", "--seeds", "2", "--trials", "8", "--long", "16", "--random", "40")
    text, figures = run("search.depth", tmp_path, *options, "--records", str(tmp_path / "kept"))
    (line,) = figures["lines"]
    assert "a100 (simulated)" in text
    assert len(line["winners_s"]) == 2
    assert line["ratio"]["long"] == pytest.approx(sum(line["winners_s"]) / 2 / line["long_s"])
    assert min(line["random_s"], line["long_s"]) > 0
    assert figures["pass"] == line["pass"] == (max(line["ratio"].values()) <= 1.01)
    assert line["without_luck"].keys() == line["ratio"].keys()


def test_search_depth_without_residual(tmp_path: Path) -> None:
    options = ("--only", "MV", "--seeds", "1", "--trials", "4", "--long", "8", "--random", "20")
    text, figures = run(
        "search_depth.py", tmp_path, *options, "--no-residual", "--records", str(tmp_path / "kept")
    )
    (line,) = figures["lines"]
    assert "a100 (simulated, no residual)" in text
    assert line["without_luck"] is None


def test_warm_start(tmp_path: Path) -> None:
    options = ("--only", "MV", "--seeds", "1", "--trials", "10", "--taught", "10")
    text, figures = run("search.warm_start", tmp_path, *options)
    assert "a100 (simulated)" in text
    assert [line["taught_by"] for line in figures["lines"]] == ["other shapes", "rtx4090 (simulated)", "both"]
    for line in figures["lines"]:
        assert line["ratio"] > 0
        assert line["told"].startswith(f"{line['kernels']} timed")


def test_tune_table(tmp_path: Path) -> None:
    text, figures = run("search.tune_table", tmp_path, "--only", "MM 127x255x63", "--trials", "8")
    (line,) = figures["lines"]
    assert "a100 (simulated)" in text
    assert "PTX was executed on the CPU" in text
    assert line["operator"] == "MM 127x255x63"
    assert line["kept"] >= 1
    assert line["problems"] == []
    assert line["trials"] == 8
    assert line["best_latency_s"] <= 1.05 * line["fastest_latency_s"]
    assert line["bar"]["problems"] == 0
    assert figures["pass"] == line["pass"]


def test_tune_table_against_the_schedule_by_hand(tmp_path: Path) -> None:
    text, figures = run(
        "tune_table.py", tmp_path, "--only", "MM 4096^3 by hand", "--trials", "4", "--side", "256"
    )
    (line,) = figures["lines"]
    assert "by hand" in text
    assert line["operator"] == "MM 256^3"
    assert line["hand_latency_s"] > 0
    assert line["bar"]["latency_s"] == line["hand_latency_s"]
    assert line["pass"] is False or line["fastest_latency_s"] <= line["hand_latency_s"]


def test_a_wrong_kept_kernel_would_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import ekc
    from benchmarks.search import tune_table
    from ekc.search.data.result import Trial
    from ekc.search.sketches.naive import make_naive_schedule

    op = ekc.matmul(16, 16, 16)
    trial = Trial(make_naive_schedule(op), "naive", "ok")
    assert tune_table.problems_of(op, [trial]) == []
    monkeypatch.setattr(tune_table, "ARCHITECTURES", ("sm_80", "sm_12"))
    (problem,) = tune_table.problems_of(op, [trial])
    assert "sm_12" in problem


def test_emulator_rate(tmp_path: Path) -> None:
    text, figures = run(
        "emulator_rate.py", tmp_path, "--side", "128", "--large", "256", "--naive", "20", "--seed", "3"
    )
    whole, unwatched, chosen, *naives = figures["lines"]
    assert "lane instr./s" in text
    assert "CUDA simulator" in text
    assert [whole["sanitize"], unwatched["sanitize"]] == [True, False]
    assert whole["lane_instructions"] == unwatched["lane_instructions"] > 128**3
    assert whole["blocks_run"] == whole["total_blocks"] == 1
    assert chosen["blocks_run"] == chosen["total_blocks"] == 4
    assert naives[0]["lane_instructions"] > 20**3
    assert whole["bar"] == {"seconds": 4.0, "peak_bytes": 2**30}
    assert chosen["bar"]["seconds"] == 10.0
    for line in figures["lines"]:
        assert line["right"]
        assert line["findings"] == []
        assert line["peak_bytes"] > 2**20
        assert line["lane_instructions_per_s"] == pytest.approx(line["lane_instructions"] / line["seconds"])
    assert figures["pass"] == all(line["pass"] for line in figures["lines"])
    if figures["numba"] is None:
        assert "not installed (pip install numba" in text
    else:
        assert figures["numba"]["right"]


def test_a_slow_large_or_wrong_run_fails_its_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    import emulator_rate as rate

    good = {"right": True, "findings": [], "seconds": 3.9, "peak_bytes": 2**29}
    for change in ({}, {"seconds": 4.1}, {"peak_bytes": 2**30}, {"right": False}, {"findings": ["race"]}):
        assert rate.barred(good | change, rate.WHOLE_BAR_S, rate.MEMORY_BAR)["pass"] == (not change)
    a, b = rate.operands(8, 0)
    assert rate.agrees(a @ b, a, b)
    assert not rate.agrees(a @ b + 1e-4, a, b)
    assert rate.chosen_blocks(3, 4, 0) == [0, 1, 2]
    assert len(rate.chosen_blocks(100, 4, 0)) == 4


COLUMNS = "MWG NWG KWG MDIMC NDIMC MDIMA NDIMB KWI VWM VWN STRM STRN SA SB PRECISION"


def made_up_rows() -> list[dict[str, Any]]:
    """Configurations with times that nobody recorded: the smaller the tile of a thread, the longer."""
    rows = []
    for nwg, sa, sb in itertools.product((32, 64), (0, 1), (0, 1)):
        values = (32, nwg, 32, 8, 8, 8, 8, 2, 2, 1, 0, 0, sa, sb, 32)
        seconds = 1e3 / nwg + 2 * sa + sb
        rows.append(dict(zip(COLUMNS.split(), values, strict=True)) | {"time_ms": seconds})
    return rows


def recorded_gemm(folder: Path) -> None:
    """All files of recordings of CLBlast's GEMM."""
    rows = made_up_rows()
    measured = [row | {"power_w": 200.0 + n, "clock_mhz": 1050} for n, row in enumerate(rows)]
    fma = [{"gpu": "A100-PCIE-40GB", "clock_mhz": clock, "power_w": clock / 10} for clock in (600, 900, 1200)]
    files = {
        "a100_gemm_energy.csv.gz": measured,
        "clblast_gemm_rtx_3090.csv.gz": rows,
        "clblast_gemm_rtx_2080_ti.csv.gz": rows,
        "a100_gemm_clocks.csv": measured,
        "fp32_power_vs_clock.csv": fma,
    }
    for name, table in files.items():
        opened = gzip.open if name.endswith("gz") else open
        with opened(folder / name, "wt") as stream:
            writer = csv.DictWriter(stream, list(table[0]))
            writer.writeheader()
            writer.writerows(table)


def test_prior_accuracy(tmp_path: Path) -> None:
    recorded_gemm(tmp_path)
    text, figures = run("cost_model.analytic", tmp_path, "--data", str(tmp_path), "--rows", "6")
    assert "recordings of real GPUs" in text
    lines = figures["lines"]
    assert [line["rows"] for line in lines] == [6, 2] * 3 + [8]
    # Made-up watts grow with the number of a row; nothing in a kernel says so.
    assert lines[-1]["of_rows"] < 0.02 < lines[-1]["spread"]
    # Made-up times fall with the tile of a thread, as those that the prior expects do.
    assert lines[2]["spearman"] > 0


def test_register_estimate(tmp_path: Path) -> None:
    options = ("--only", "conv 1x64", "--draws", "4")
    text, figures = run("cost_model.registers", tmp_path, *options, "--a-round", "0")
    assert "0 registers a round" in text
    (line,) = figures["lines"]
    assert line["compiled"] == 4
    assert 0 <= line["spill"] <= 1
    assert line["median"] > 0


def test_simulator_fidelity(tmp_path: Path) -> None:
    recorded_gemm(tmp_path)
    options = ("--only", "clblast", "--rows", "6")
    text, figures = run("simulator.fidelity", tmp_path, "--data", str(tmp_path), *options)
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
    assert power[2]["shipped"]["rows"] < 6
    assert figures["pass"] == all(line["pass"] for line in figures["lines"])
    assert {one["device"] for one in figures["registers"]} == {"a100", "rtx3090", "rtx2080ti"}


def recorded_products(folder: Path) -> None:
    """Made-up library kernels: as many TFLOP/s and watts as they please, one not seen by the meter."""
    with gzip.open(folder / "h200_gemm_power.csv.gz", "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["gemm_dtype", "m", "n", "k", "time_ms", "power_w"])
        for n in range(200):
            writer.writerow(["bfloat16", 256, 256, 256, 1e-3 * (3 + 0.1 * n), 300 + n])
            writer.writerow(["bfloat16", 8192, 8192, 8192, 1e-3 * (200 + 80 * n), 400 + n])
            writer.writerow(["fp8_block", 256, 256, 256, 1e-3, 1000])
        writer.writerow(["bfloat16", 8192, 8192, 8192, 2.0, 137])


def test_simulator_fidelity_of_tensor_cores(tmp_path: Path) -> None:
    recorded_products(tmp_path)
    options = ("--only", "h200", "--shapes", "1", "--trials", "4", "--seed", "1")
    text, figures = run("simulator.fidelity", tmp_path, "--data", str(tmp_path), *options)
    assert "h200 (simulated)" in text
    told = figures["h200"]
    assert told["rows"] == 400
    (one,) = told["shapes"]
    assert one["shape"] == [256, 256, 256]
    assert one["ratio"] == told["ratio"]["most"] == pytest.approx(one["simulated_s"] / one["recorded_s"])
    assert 100 < one["simulated_w"] <= 700
    # All rows that are long enough for the meter do more than it can.
    assert told["power"] is None
    assert figures["pass"] is True


def test_power_is_scored_against_rows_of_like_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.simulator import h200

    recorded_products(tmp_path)
    rows = [row for row in h200.read(tmp_path) if row.seconds >= h200.LONG_S]
    assert {row.m for row in rows} == {8192}
    other = {"ratio": 1.0, "simulated_tflops": 1e-3, "simulated_s": 1.0, "gbytes": 1.0, "simulated_w": 1.0}
    like = other | {"simulated_tflops": 300.0, "simulated_s": 2 * 8192**3 / 300e12, "gbytes": 0.403}
    ours = [like | {"simulated_w": watt} for watt in (400.0, 410.0, 420.0, 430.0, 440.0)]
    assert h200.scored(rows, [*ours[1:], other], 0) is None
    found = h200.scored(rows, [*ours, other], 0)
    assert found is not None
    # Rows of 300 TFLOP/s take 3.7 ms and draw about 443 W.
    assert found["shipped"]["rows"] == found["trivial"]["table by TFLOP/s"]["rows"] == 5
    assert found["shipped"]["median_error"] == pytest.approx(0.05, abs=0.02)
    assert found["bias"] == pytest.approx(-0.05, abs=0.02)
    assert found["pass"] is True


def test_a_shape_says_what_multiplies_and_whether_it_is_faster_without_tensor_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from benchmarks.simulator import h200

    shape = {"shape": [3, 768, 2048], "recorded_s": 7.4e-6, "recorded_tflops": 1.3, "recorded_w": 156.0}
    ours = {"simulated_s": 21e-6, "ratio": 2.8, "simulated_tflops": 0.4, "simulated_w": 185.0}
    warp, group = ours | {"warpgroup": False, "parts": False}, ours | {"warpgroup": True, "parts": True}
    faster = {"without_s": 4.63e-6}
    shapes = [shape | warp, shape | group | faster, shape | faster]
    told = h200.text({"trials": 64, "shapes": shapes, "ratio": {}, "power": None}).splitlines()[4:7]
    assert [line.endswith("  4.6 without them") for line in told] == [False, True, True]
    assert told[0].endswith("  mma")
    assert "  wgmma, in parts  " in told[1]


def test_the_page_of_the_simulated_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    from benchmarks.simulator import write_docs

    times = np.array([0.01, 0.02, 0.09])
    texts = {"clblast": "the figures", "h200": "the shapes"}
    write_docs.write(texts, {"a100": (times, 1.1 * times)}, tmp_path)
    page = (tmp_path / "simulated-devices.md").read_text()
    assert page.count("the figures") == page.count("the shapes") == 1
    write_docs.write({"h200": "other shapes"}, {}, tmp_path)
    assert (tmp_path / "simulated-devices.md").read_text() == page.replace("the shapes", "other shapes")
    plot = ElementTree.parse(tmp_path / "simulated-a100.svg")
    assert len(plot.findall(".//{http://www.w3.org/2000/svg}circle")) == 3


def recorded_hotspot(folder: Path) -> None:
    """A made-up table in the form of a recording: least at tile 3, factor 2, unroll 1; two rows failed."""
    names = ("tile_size_y", "temporal_tiling_factor", "loop_unroll_factor_t", "sh_power", "blocks_per_sm")
    with gzip.open(folder / "a4000_hotspot_energy.csv.gz", "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "energy_j"])
        for row in itertools.product((1, 2, 3), (1, 2, 4), (1, 2), (0, 1), (0, 1, 2)):
            tile, factor, unroll, power, blocks = row
            joules = 1 + abs(tile - 3) + abs(factor - 2) + 0.5 * (unroll - 1) + 0.1 * power + 0.01 * blocks
            writer.writerow([*row, "" if row[3:] == (1, 2) and factor == 4 and unroll == 1 else joules])


def test_search_quality(tmp_path: Path) -> None:
    recorded_hotspot(tmp_path)
    options = ("--data", str(tmp_path), "--only", "hotspot A4000 energy", "--seeds", "3", "--trials", "24")
    text, figures = run("search.quality", tmp_path, *options, "--kernel-tuner", "/bin/false")
    ours, drawn = figures["lines"]
    assert [ours["search"], drawn["search"]] == ["ekc", "random search"]
    assert "Kernel Tuner not installed" in text
    for line in (ours, drawn):
        assert line["runs"] == 3
        assert line["evaluations"] == line["shortest_run"] == 24
        assert 1 <= line["median"] <= line["half_median"]
        assert line["median"] <= line["p90"]
        assert "charged_s" not in line
    assert ours["median"] <= drawn["median"]
    # The bar is for 100 evaluations.
    assert "pass" not in ours
    assert "no bar here" in text


def timed_hotspot(folder: Path, twice: bool) -> None:
    """A made-up recording whose power falls with the tile and with nothing else, and the noise of a meter."""
    names = ("tile_size_y", "temporal_tiling_factor", "loop_unroll_factor_t", "sh_power", "blocks_per_sm")
    with gzip.open(folder / "a4000_hotspot_energy.csv.gz", "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "time_ms", "energy_j"])
        for row in itertools.product((1, 2, 3, 4, 5, 6, 7), (1, 2, 4), (1, 2), (0, 1), (0, 1, 2)):
            milliseconds = 1 + abs(row[1] - 2) + 0.5 * row[2] + 0.1 * row[3] + 0.01 * row[4]
            writer.writerow([*row, milliseconds, milliseconds * (50 + 100 / row[0]) / 1e3])
    with gzip.open(folder / "a4000_gemm_noise.csv.gz", "wt", newline="") as file:
        csv.writer(file).writerows([("rep", "time_ms", "energy_j"), (0, 2, 0.98), (1, 2, 1.02)][: 2 + twice])


def test_energy_model(tmp_path: Path) -> None:
    timed_hotspot(tmp_path, twice=True)
    text, figures = run(
        "energy_model.py", tmp_path, "--data", str(tmp_path), "--only", "hotspot A4000 energy"
    )
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


def test_what_was_measured_once_says_nothing_of_noise(tmp_path: Path) -> None:
    timed_hotspot(tmp_path, twice=False)
    text, figures = run(
        "energy_model.py", tmp_path, "--data", str(tmp_path), "--only", "hotspot A4000 energy"
    )
    assert figures["noise"] == [{"recording": "hotspot A4000 energy", "rows": 0}]
    assert "nothing was measured twice" in text


def test_settings_that_a_kernel_does_not_use_make_no_new_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    from benchmarks.cost_model import energy, energy_rows

    names = [n for n in COLUMNS.split() if n != "PRECISION"] + ["time_ms", "energy_j"]
    rows = [
        (16, nwg, 32, 8, 8, mdima, ndimb, 2, 1, 1, 0, 0, sa, sb, nwg, nwg / 4)
        for nwg, mdima, ndimb, sa, sb in itertools.product((32, 64, 128), (8, 16), (8, 16), (0, 1), (0, 1))
    ]
    with gzip.open(tmp_path / "a100_gemm_energy.csv.gz", "wt", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    (recording,) = (r for r in energy.ENERGIES if r.name == "GEMM A100 energy")
    whole = energy_rows.kernels(tmp_path, recording)
    # Of each tile: one kernel with neither staged, two with one staged, four with both.
    assert len(np.unique(whole.kernel)) == 3 * (1 + 2 + 2 + 4)
    held = [set(whole.kernel[whole.energy == e].tolist()) for e in (8, 16, 32)]
    assert not set.intersection(*held)
    seen: list[set[int]] = []

    def spy(known: energy_rows.Kernels, asked: energy_rows.Kernels, seed: int) -> np.ndarray:
        seen.append(set(known.kernel.tolist()) & set(asked.kernel.tolist()))
        return asked.energy

    np.testing.assert_array_equal(energy.folded(whole, spy, 0), whole.energy)
    assert seen == [set()] * 5


def test_paper(tmp_path: Path) -> None:
    records = tmp_path / "records"
    options = ("--only", "MV 1024x8192 a100", "--seeds", "1", "--trials", "8", "--records", str(records))
    text, figures = run("search.paper", tmp_path, *options, "--plots", str(tmp_path), "--processes", "1")
    lines = {line["variant"]: line for line in figures["lines"]}
    assert len(lines) == 7
    assert "virtual s" in text
    assert "a100 (simulated)" in text
    everything, adaptive, latency = (lines[v] for v in ("meter everything", "adaptive", "latency only"))
    assert everything["energy_median"] == everything["metered"] == 1.0
    assert min(line["metering_s"] for line in lines.values()) > 6.5, "the naive schedule alone takes as long"
    assert latency["error"] is None, "nothing was predicted"
    assert figures["adaptive"]["bar"] == {"energy_median": 1.01, "metered": 0.15}
    assert figures["pass"] == (adaptive["energy_median"] <= 1.01 and adaptive["metered"] <= 0.15)
    assert figures["saving_within_a_run"]["pairs"] == 1
    # A bootstrap says nothing of a maximum.
    assert set(figures["saving_within_a_run"]) == {"pairs", "median", "median_interval", "most"}
    assert re.search(r"median \S+% \(\S+% to \S+%\), maximum \S+%, 1 of 1 pairs", text)
    # Finished runs are read; where only the measurements are left, the runs come out the same.
    again, same = run("search.paper", tmp_path, *options, "--processes", "1")
    assert same == figures
    assert "mJ," not in again
    (log,) = records.glob("*.jsonl")
    log.unlink()
    _, filed = run("search.paper", tmp_path, *options, "--processes", "1")
    unlike = {"search_s"}
    assert [{k: v for k, v in x.items() if k not in unlike} for x in filed["lines"]] == [
        {k: v for k, v in x.items() if k not in unlike} for x in figures["lines"]
    ]


def test_sums_in_parts(tmp_path: Path) -> None:
    options = ("--only", "MV", "--trials", "4", "--seed", "1")
    text, figures = run("search.split_k", tmp_path, *options)
    assert "a100 (simulated)" in text
    (line,) = figures["lines"]
    whole, both = line["structures"]
    assert 0 < whole < both
    assert line["ratio"] == pytest.approx(line["in_parts_s"] / line["whole_s"])
    assert figures["pass"] == line["pass"] == (line["ratio"] <= 1)
