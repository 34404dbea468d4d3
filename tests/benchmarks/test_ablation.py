"""The ablation: ratios paired seed by seed, their intervals, what is changed and put back, and runs."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.running import FOLDER, run


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("ablation_figures")


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("ablation_variants")


def made(operator: str, seed: int, seconds: float, **more: Any) -> dict[str, Any]:
    both = {"latency_s": 2 * seconds, "without_luck_s": seconds}
    times = {"search_s": 1.0, "wall_s": 1.0, "timed": 8}
    return {"operator": operator, "device": "a100", "seed": seed} | both | times | more


def test_runs_are_paired_by_operator_device_and_seed(figures: Any) -> None:
    base = [made("a", 0, 1.0), made("a", 1, 2.0), made("b", 0, 4.0)]
    mine = [made("a", 1, 2.2), made("b", 0, 4.4), made("b", 1, 9.9)]
    logs = figures.paired(mine, base, "without_luck_s")
    assert set(logs) == {("a", "a100"), ("b", "a100")}
    assert [math.exp(own[0]) for own in logs.values()] == pytest.approx([1.1, 1.1])


def test_every_place_counts_alike_in_the_mean(figures: Any) -> None:
    assert figures.geometric_mean({"a": [math.log(2)] * 9, "b": [-math.log(2)]}) == pytest.approx(1.0)


def test_where_all_ratios_are_alike_the_interval_is_a_point(figures: Any) -> None:
    logs = {place: [math.log(1.05)] * 3 for place in "abcd"}
    for interval in (figures.interval_of_places(logs), figures.interval_of_seeds(logs)):
        assert interval == pytest.approx((1.05, 1.05))


def test_an_interval_of_places_is_as_wide_as_the_places_differ(figures: Any) -> None:
    """1.96 standard deviations of the mean of twelve places to each side."""
    logs = {place: [0.01 * (place - 5.5)] * 5 for place in range(12)}
    low, high = figures.interval_of_places(logs)
    spread = 0.01 * math.sqrt(143 / 12)
    assert math.log(high) == pytest.approx(1.96 * spread / math.sqrt(12), rel=0.1)
    assert math.log(low) == pytest.approx(-math.log(high), rel=0.1)
    assert figures.interval_of_seeds(logs) == pytest.approx((1.0, 1.0))


def test_too_few_runs_have_no_interval(figures: Any) -> None:
    assert figures.interval_of_places({"a": [0.0], "b": [0.0]}) is None
    assert figures.interval_of_seeds({"a": [0.0, 0.1], "b": [0.1]}) is None


def test_a_program_against_itself_pairs_no_seed_with_itself(figures: Any) -> None:
    lines = [made("a", seed, 1.0 + seed) for seed in range(5)]
    (own,) = figures.halves(lines, "without_luck_s").values()
    assert [math.exp(x) for x in own] == pytest.approx([1 / 3, 2 / 4])


@pytest.mark.parametrize(
    ("ratios", "search_s", "said"),
    [
        ((1.0, 1.0), 1.0, "may go"),
        ((1.0, 1.0), 1.2, "slower"),
        ((0.8, 1.25), 1.0, "not shown"),
        ((1.04, 1.05), 1.0, "worth it"),
    ],
)
def test_the_bars(figures: Any, ratios: tuple[float, float], search_s: float, said: str) -> None:
    cells = [(place, seed) for place in "abcdef" for seed in range(20)]
    base = [made(place, seed, 1.0) for place, seed in cells]
    mine = [made(place, seed, ratios[seed % 2], search_s=search_s) for place, seed in cells]
    assert figures.verdict(figures.compared("x", mine, base)) == said
    some = [x for x in mine if x["seed"] < 8]
    assert figures.verdict(figures.compared("x", some, base)) == f"{said} so far"
    assert figures.verdict(figures.compared("x", some[:6], base)) == "too few seeds"


def test_what_is_changed_is_put_back(variants: Any) -> None:
    from ekc.search.models import belief, gaussian

    before = gaussian.FAITH, vars(belief.Belief)["_plain"]
    with (
        pytest.raises(KeyError),
        variants.changed({"ekc.search.models.gaussian:FAITH": 1.0, "json:nothing": 0}),
    ):
        pass
    with variants.changed(variants.VARIANTS["process alone"].changes):
        assert vars(belief.Belief)["_plain"] is variants.believe_process
    assert (gaussian.FAITH, vars(belief.Belief)["_plain"]) == before


def test_all_that_variants_change_exists(variants: Any) -> None:
    for variant in variants.VARIANTS.values():
        with variants.changed(variant.changes):
            pass


def test_finished_runs_are_not_run_again_and_a_line_cut_short_is(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    options = ("--folder", str(folder), "--only", "MV 1024x8192 a100", "--seeds", "2", "--trials", "16")
    names = "default;process alone;trees alone;stop rule"
    text, found = run("ablation.py", tmp_path, *options, "--variants", names)
    (log,) = folder.glob("*.jsonl")
    lines = log.read_text().splitlines()
    assert [json.loads(x)["seed"] for x in lines] == [0] * 4 + [1] * 4
    assert "MV 1024x8192 a100 seed 1 trees alone" in text
    told = {x["variant"]: x["pass"] for x in found["lines"]}
    assert told == dict.fromkeys(("process alone", "trees alone", "stop rule", "default, other seeds"), False)
    log.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:40])
    text, again = run("ablation.py", tmp_path, *options, "--variants", names)
    assert text.count(" timed, search") == 1
    assert [x["mean"] for x in again["lines"]] == pytest.approx([x["mean"] for x in found["lines"]])
    text, shown = run(
        "ablation.py", tmp_path, *options, "--show", "--against", json.loads(lines[0])["program"]
    )
    assert " timed, search" not in text
    assert shown["lines"][-1]["mean"] == 1.0
