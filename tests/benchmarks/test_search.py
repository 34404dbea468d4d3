"""Benchmarks of the search, in a tiny form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ekc
from benchmarks.search import tune_table
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.data.trial import Trial
from ekc.search.database.database import RecordStore
from tests.benchmarks.helpers import Run
from tests.benchmarks.recordings import write_hotspot


@pytest.mark.slow
def test_depth_is_the_ratio_to_a_longer_run(run: Run, tmp_path: Path) -> None:
    options = ("--only", "MV", "--seeds", "2", "--trials", "8", "--long", "16", "--random", "40")
    text, figures = run("search.depth", *options, "--records", str(tmp_path / "kept"))
    (line,) = figures["lines"]
    assert "a100 (simulated)" in text
    assert len(line["winners_s"]) == 2
    assert line["ratio"]["long"] == pytest.approx(sum(line["winners_s"]) / 2 / line["long_s"])
    assert min(line["random_s"], line["long_s"]) > 0
    assert figures["pass"] == line["pass"] == (max(line["ratio"].values()) <= 1.01)
    assert line["without_luck"].keys() == line["ratio"].keys()


@pytest.mark.slow
def test_depth_without_residual_has_no_luck(run: Run, tmp_path: Path) -> None:
    options = ("--only", "MV", "--seeds", "1", "--trials", "4", "--long", "8", "--random", "20")
    text, figures = run("search.depth", *options, "--no-residual", "--records", str(tmp_path / "kept"))
    (line,) = figures["lines"]
    assert "a100 (simulated, no residual)" in text
    assert line["without_luck"] is None


@pytest.mark.slow
def test_paper_resumes_from_runs_and_from_measurements(run: Run, tmp_path: Path) -> None:
    records = tmp_path / "records"
    options = ("--only", "MV 1024x8192 a100", "--seeds", "1", "--trials", "8", "--records", str(records))
    text, figures = run("search.paper", *options, "--plots", str(tmp_path), "--processes", "1")
    lines = {line["variant"]: line for line in figures["lines"]}
    assert len(lines) == 7
    assert "virtual s" in text
    assert "a100 (simulated)" in text
    everything, default, latency = (lines[v] for v in ("meter everything", "default", "latency only"))
    assert everything["energy_median"] == everything["metered"] == 1.0
    assert min(line["metering_s"] for line in lines.values()) > 6.5, "the naive schedule alone takes as long"
    assert latency["error"] is None, "nothing was predicted"
    assert figures["default"]["bar"] == {"energy_median": 1.01, "metered": 0.15}
    assert figures["pass"] == (default["energy_median"] <= 1.01 and default["metered"] <= 0.15)
    assert figures["saving_within_a_run"]["pairs"] == 1
    # A bootstrap says nothing of a maximum.
    assert set(figures["saving_within_a_run"]) == {"pairs", "median", "median_interval", "most"}
    assert re.search(r"median \S+% \(\S+% to \S+%\), maximum \S+%, 1 of 1 pairs", text)
    # Finished runs are read; where only the measurements are left, the runs come out the same.
    again, same = run("search.paper", *options, "--processes", "1")
    assert same == figures
    assert "mJ," not in again
    (log,) = records.glob("*.jsonl")
    log.unlink()
    _, filed = run("search.paper", *options, "--processes", "1")
    unlike = {"search_s"}
    assert [{k: v for k, v in x.items() if k not in unlike} for x in filed["lines"]] == [
        {k: v for k, v in x.items() if k not in unlike} for x in figures["lines"]
    ]


@pytest.mark.slow
def test_search_beats_random_search_on_a_smooth_table(run: Run, tmp_path: Path) -> None:
    write_hotspot(tmp_path)
    options = ("--data", str(tmp_path), "--only", "hotspot A4000 energy", "--seeds", "3", "--trials", "24")
    text, figures = run("search.quality", *options, "--kernel-tuner", "/bin/false")
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


@pytest.mark.slow
def test_rate_is_distinct_candidates_over_seconds(run: Run) -> None:
    text, figures = run("search.rate", "--seconds", "0.1", "--population", "512", "--seed", "1")
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


@pytest.mark.slow
def test_best_of_many_rows_is_found_within_seconds(run: Run, tmp_path: Path) -> None:
    text, figures = run("search.record_scale", "--rows", "12000", "--file", str(tmp_path / "t.db"))
    best, listed = figures["lines"]
    assert re.search(r"ekc best +12,000 .* pass", text)
    assert figures["pass"] == best["pass"] == listed["pass"] is True
    assert max(best["cpu_s"], listed["cpu_s"]) < figures["bar"]["cpu_s"] == 5.0
    assert 20 < max(best["peak_mb"], listed["peak_mb"]) < 250
    assert re.search(r" 3000 +3000 +0 ", listed["printed"]), "schedules that were timed, metered, failed"
    with RecordStore(tmp_path / "t.db", create=False) as store:
        rows = list(store.read_rows(kind="timing"))
        watts = {
            row.key.schedule_digest: row.to_metering().power_w for row in store.read_rows(kind="metering")
        }
    seconds = {row.key.schedule_digest: row.to_timing().latency_s for row in rows}
    assert (len(rows), len(seconds)) == (9_000, 3_000)
    allowed = [digest for digest in seconds if seconds[digest] <= 1.05 * min(seconds.values())]
    energies = [seconds[digest] * watts[digest] for digest in allowed]
    assert f"{1e3 * min(energies):.4g} " in best["printed"], "the same best as by a look at every row"


@pytest.mark.slow
def test_kept_kernels_are_verified(run: Run) -> None:
    text, figures = run("search.tune_table", "--only", "MM 127x255x63", "--trials", "8")
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


@pytest.mark.slow
def test_winner_is_compared_with_the_schedule_by_hand(run: Run) -> None:
    text, figures = run("search.tune_table", "--only", "MM 4096^3 by hand", "--trials", "4", "--side", "256")
    (line,) = figures["lines"]
    assert "by hand" in text
    assert line["operator"] == "MM 256^3"
    assert line["hand_latency_s"] > 0
    assert line["bar"]["latency_s"] == line["hand_latency_s"]
    assert line["pass"] is False or line["fastest_latency_s"] <= line["hand_latency_s"]


def test_wrong_kept_kernel_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    op = ekc.matmul(16, 16, 16)
    trial = Trial(make_naive_schedule(op), "naive", "ok")
    assert tune_table.find_problems(op, [trial]) == []
    monkeypatch.setattr(tune_table, "ARCHITECTURES", ("sm_80", "sm_12"))
    (problem,) = tune_table.find_problems(op, [trial])
    assert "sm_12" in problem
