"""The ablation: ratios paired seed by seed, their intervals, changes that are undone, and runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import ekc
from benchmarks.search import ablation
from benchmarks.search import ablation_figures as figures
from benchmarks.search import ablation_variants as variants
from ekc import devices
from ekc.search.cost_model import feature_process, power_model
from ekc.search.space.space import Space
from tests.benchmarks.helpers import Run


def make_line(operator: str, seed: int, seconds: float, **more: Any) -> dict[str, Any]:
    both = {"latency_s": 2 * seconds, "without_luck_s": seconds}
    times = {"search_s": 1.0, "wall_s": 1.0, "timed": 8}
    return {"operator": operator, "device": "a100", "seed": seed} | both | times | more


def test_runs_are_paired_by_operator_device_and_seed() -> None:
    base = [make_line("a", 0, 1.0), make_line("a", 1, 2.0), make_line("b", 0, 4.0)]
    runs = [make_line("a", 1, 2.2), make_line("b", 0, 4.4), make_line("b", 1, 9.9)]
    logs = figures.pair_runs(runs, base, "without_luck_s")
    assert set(logs) == {("a", "a100"), ("b", "a100")}
    assert [math.exp(own[0]) for own in logs.values()] == pytest.approx([1.1, 1.1])


def test_places_have_equal_weight_in_the_mean() -> None:
    assert figures.compute_geometric_mean({"a": [math.log(2)] * 9, "b": [-math.log(2)]}) == pytest.approx(1.0)


def test_interval_of_equal_ratios_is_a_point() -> None:
    logs = {place: [math.log(1.05)] * 3 for place in "abcd"}
    for interval in (figures.compute_interval_of_places(logs), figures.compute_interval_of_seeds(logs)):
        assert interval == pytest.approx((1.05, 1.05))


def test_interval_of_places_follows_the_spread_of_places() -> None:
    """1.96 standard deviations of the mean of twelve places to each side."""
    logs = {place: [0.01 * (place - 5.5)] * 5 for place in range(12)}
    low, high = figures.compute_interval_of_places(logs)
    spread = 0.01 * math.sqrt(143 / 12)
    assert math.log(high) == pytest.approx(1.96 * spread / math.sqrt(12), rel=0.1)
    assert math.log(low) == pytest.approx(-math.log(high), rel=0.1)
    assert figures.compute_interval_of_seeds(logs) == pytest.approx((1.0, 1.0))


def test_interval_needs_enough_runs() -> None:
    assert figures.compute_interval_of_places({"a": [0.0], "b": [0.0]}) is None
    assert figures.compute_interval_of_seeds({"a": [0.0, 0.1], "b": [0.1]}) is None


def test_split_seeds_pairs_no_seed_with_itself() -> None:
    lines = [make_line("a", seed, 1.0 + seed) for seed in range(5)]
    (own,) = figures.split_seeds(lines, "without_luck_s").values()
    assert [math.exp(x) for x in own] == pytest.approx([1 / 3, 2 / 4])


@pytest.mark.parametrize(
    ("ratios", "search_s", "expected"),
    [
        ((1.0, 1.0), 1.0, "may go"),
        ((1.0, 1.0), 1.2, "slower"),
        ((0.8, 1.25), 1.0, "not shown"),
        ((1.04, 1.05), 1.0, "worth it"),
    ],
)
def test_verdict_follows_the_bars(ratios: tuple[float, float], search_s: float, expected: str) -> None:
    cells = [(place, seed) for place in "abcdef" for seed in range(20)]
    base = [make_line(place, seed, 1.0) for place, seed in cells]
    runs = [make_line(place, seed, ratios[seed % 2], search_s=search_s) for place, seed in cells]
    assert figures.judge(figures.compare_variant("x", runs, base)) == expected
    some = [x for x in runs if x["seed"] < 8]
    assert figures.judge(figures.compare_variant("x", some, base)) == f"{expected} so far"
    assert figures.judge(figures.compare_variant("x", some[:6], base)) == "too few seeds"


def test_changes_are_undone_after_the_block_and_after_an_error() -> None:
    setting = "ekc.search.cost_model.feature_process:GAUSSIAN_PROCESS"
    before = feature_process.GAUSSIAN_PROCESS, power_model.train_metered_trees
    with pytest.raises(KeyError), variants.apply_changes({setting: None, "json:nothing": 0}):
        pass
    with variants.apply_changes(variants.VARIANTS["no trees of metered kernels"].changes):
        assert power_model.train_metered_trees is variants.train_nothing
    assert (feature_process.GAUSSIAN_PROCESS, power_model.train_metered_trees) == before


def test_change_that_a_subclass_overrides_is_refused() -> None:
    change = {"ekc.search.cost_model.acquisition:Acquisition.predict_figures": None}
    with pytest.raises(KeyError, match="overridden by a subclass"), variants.apply_changes(change):
        pass


def test_variant_without_split_sums_has_fewer_structures() -> None:
    op, limits = ekc.matvec(64, 65536), devices.open("a100").limits
    both = Space(op, limits).structures
    with variants.apply_changes(variants.VARIANTS["no split-K"].changes):
        whole = Space(op, limits).structures
    assert 0 < len(whole) < len(both)


def test_attributes_that_variants_change_exist() -> None:
    for variant in variants.VARIANTS.values():
        with variants.apply_changes(variant.changes):
            pass


def test_finished_runs_are_kept_and_a_cut_line_is_run_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_stub(place: Any, name: str, seed: int, trials: int, objective: str) -> dict[str, Any]:
        seconds = 1e-5 * (1 + seed + len(name))
        both = {"latency_s": seconds, "without_luck_s": seconds, "timed": trials, "course": name}
        return both | {"search_s": 1.0, "measuring_s": 1.0, "wall_s": 1.0}

    monkeypatch.setattr(ablation.Place, "run", run_stub)
    folder = tmp_path / "runs"
    options = ("--folder", str(folder), "--only", "MV 1024x8192 a100", "--seeds", "2", "--trials", "16")
    options = (*options, "--variants", "default;no boosted model;population 512;stop rule")
    text, first = run("search.ablation", *options)
    (log,) = folder.glob("*.jsonl")
    lines = log.read_text().splitlines()
    assert [json.loads(x)["seed"] for x in lines] == [0] * 4 + [1] * 4
    assert "MV 1024x8192 a100 seed 1 population 512" in text
    assert {x["variant"]: x["pass"] for x in first["lines"]} == dict.fromkeys(
        ("no boosted model", "population 512", "stop rule", "default, other seeds"), False
    )
    assert (first["bar"], first["pass"]) == ({"ratio": 1.01, "search_share": 1.1}, None)
    log.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:40])
    text, again = run("search.ablation", *options)
    assert text.count(" timed, search") == 1
    assert [x["mean"] for x in again["lines"]] == pytest.approx([x["mean"] for x in first["lines"]])
    program = json.loads(lines[0])["program"]
    text, shown = run("search.ablation", *options, "--show", "--against", program)
    assert " timed, search" not in text
    assert shown["lines"][-1]["mean"] == 1.0


@pytest.mark.slow
def test_every_variant_runs(run: Run, tmp_path: Path) -> None:
    options = ("--folder", str(tmp_path / "runs"), "--only", "MV 1024x8192 a100", "--seeds", "1")
    names = list(variants.VARIANTS)
    text, figures = run("search.ablation", *options, "--trials", "16", "--variants", ";".join(names))
    verdicts = {row["variant"]: row["verdict"] for row in figures["lines"]}
    assert set(verdicts) == set(names) - {"default"}
    assert text.count(" timed, search") == len(names)
