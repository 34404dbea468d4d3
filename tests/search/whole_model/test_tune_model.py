"""`ekc.tune_model` on small models: the same winners in any way that a run may go, and what it returns."""

from __future__ import annotations

import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import ekc
from ekc.errors import InvalidInput, NothingLegal
from ekc.models.model import Coverage, LayerUse, Model, ModelLayer, UncoveredNode
from ekc.search.cost_model.surrogate import PeerRows, ResidualRows
from ekc.search.data.options import EFFORTS, Effort
from ekc.search.data.result import INTERRUPTED, STOPPED
from ekc.search.loop.task import ScheduleTask
from ekc.search.whole_model import scheduler
from ekc.search.whole_model.model_result import ModelResult, make_layer_table
from ekc.search.whole_model.scheduler import RecentSpaces
from tests.search.helpers import THREADS, rows, tune

OPERATORS = {"small": ekc.matvec(64, 64), "large": ekc.matvec(256, 256), "soft": ekc.softmax((32, 64))}
NET = Model("net", tuple(ModelLayer(op, (LayerUse(name, "net", 2),)) for name, op in OPERATORS.items()))
TRIALS = 16


def tune_net(model: Model = NET, **options: Any) -> ModelResult:
    options = {"target": "a100", "trials": TRIALS, "progress": False, "executor": THREADS} | options
    return ekc.tune_model(model, **options)


def list_winners(result: ModelResult) -> list[object]:
    trials = [r.trial_count for r in result.results]
    best = [(r.best.schedule.digest, r.best.energy_j, r.best.latency_s) for r in result.results]
    return [*best, trials, result.turns, result.stopped]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, compile_cache: None) -> tuple[ModelResult, Path]:
    """A run and its record file, which no test may change."""
    file = tmp_path_factory.mktemp("net") / "r.db"
    return tune_net(records=file), file


def test_all_trials_go_to_layers(tuned: tuple[ModelResult, Path]) -> None:
    result, _ = tuned
    assert result.trial_count == TRIALS
    assert result.turns[:3] == ("small", "large", "soft")
    assert [x.layer.name for x in result.layers] == list(OPERATORS)
    assert all(x.result is not None and x.result.best.metered for x in result.layers)


@pytest.mark.parametrize("workers", [1, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_a_killed_run_goes_on_with_the_same_turns(
    workers: int, tuned: tuple[ModelResult, Path], tmp_path: Path
) -> None:
    """With half of the rows on file, which is what a kill leaves, and with any number of workers."""
    result, file = tuned
    cut = Path(shutil.copy(file, tmp_path / "r.db"))
    with sqlite3.connect(cut) as connection:
        connection.execute("delete from trials where id > ?", (rows(file) // 2,))
    connection.close()
    with ThreadPoolExecutor(workers) as pool:
        again = tune_net(records=cut, executor=pool)
    assert list_winners(again) == list_winners(result)
    assert rows(cut) == rows(file)


def test_winners_are_the_same_where_memory_of_layers_is_freed(
    tuned: tuple[ModelResult, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One evaluator and one cache of inputs at a time, where a run of this size keeps those of all layers."""
    held, note_use, tasks = list[tuple[int, int]](), RecentSpaces.note_use, set[ScheduleTask]()

    def note(self: RecentSpaces, task: ScheduleTask) -> None:
        note_use(self, task)
        tasks.add(task)
        evaluators = sum("evaluator" in vars(one.space) for one in tasks)
        held.append((evaluators, sum(one.input_cache._rows is not None for one in tasks)))

    monkeypatch.setattr(RecentSpaces, "note_use", note)
    monkeypatch.setattr(scheduler, "KEPT_EVALUATORS", 1)
    result, file = tuned
    again = tune_net(records=shutil.copy(file, tmp_path / "r.db"))
    assert list_winners(again) == list_winners(result)
    assert len(tasks) == len(OPERATORS)
    assert max(held) == (1, 1)


def test_layers_learn_from_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[list[int]] = []
    collect = PeerRows.collect

    def note(self: PeerRows, place: int) -> list[ResidualRows]:
        found = collect(self, place)
        collected.append([len(x.rows) for x in found])
        return found

    monkeypatch.setattr(PeerRows, "collect", note)
    tune_net()
    assert max(len(x) for x in collected) == len(OPERATORS) - 1
    collected.clear()
    tune_net(trials=None, trials_per_layer=4)
    assert not collected
    tune_net(replace(NET, layers=NET.layers[:1]), trials=4)
    assert not collected, "there is no other layer"


def test_equal_shares_are_runs_of_each_layer_alone() -> None:
    result = tune_net(replace(NET, layers=NET.layers[:2]), trials=None, trials_per_layer=5)
    assert result.trials == 10
    for x in result.layers[1:]:
        alone = tune(x.layer.op, trials=5)
        assert x.result is not None
        assert [t.schedule for t in x.result.trials] == [t.schedule for t in alone.trials]
        assert (x.result.best.schedule, x.result.best.energy_j) == (alone.best.schedule, alone.best.energy_j)


def test_events_name_the_layer_and_count_all_trials() -> None:
    events: list[ekc.TuningEvent] = []
    result = tune_net(trials=12, callback=events.append)
    assert {(e.layer, e.model, e.planned) for e in events} == {(name, "net", 12) for name in OPERATORS}
    tried = [e.tried for e in events if e.name == "trial"]
    assert tried == list(range(1, 13))
    assert [e.layer for e in events if e.name == "end"] == list(OPERATORS)
    assert result.trial_count == 12


def test_callback_that_returns_true_ends_the_run_with_the_best_so_far() -> None:
    result = tune_net(callback=lambda event: event.name == "trial" and event.tried == 6)
    assert result.stopped == STOPPED
    assert result.trial_count == 6
    assert [x.failure for x in result.layers] == ["", "", "not tuned: stopped by the callback"]


@pytest.mark.parametrize(("at", "missing", "is_equal"), [(6, 1, False), (4, 1, True)])
def test_ctrl_c_returns_the_best_so_far(at: int, missing: int, is_equal: bool) -> None:
    seen = count(1)

    def interrupt(event: ekc.TuningEvent) -> None:
        if event.name == "trial" and next(seen) == at:
            raise KeyboardInterrupt

    sizes = {"trials": None, "trials_per_layer": 3} if is_equal else {"trials": 15}
    result = tune_net(callback=interrupt, **sizes)
    assert result.stopped == INTERRUPTED
    assert [x.failure for x in result.layers if x.failure] == ["not tuned"] * missing
    assert all(r.best.ok for r in result.results)


def test_ctrl_c_before_the_first_trial_reaches_the_caller() -> None:
    def interrupt(event: ekc.TuningEvent) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune_net(callback=interrupt)


@pytest.mark.parametrize("sizes", [{"trials": 12}, {"trials": None, "trials_per_layer": 4}])
def test_time_budget_is_of_the_whole_run(sizes: dict[str, Any]) -> None:
    result = tune_net(time_budget_s=1e-6, **sizes)
    assert result.stopped == "time budget of 1e-06 s used"
    assert [x.failure for x in result.layers] == ["", *["not tuned: time budget of 1e-06 s used"] * 2]
    assert result.trial_count == 1


@pytest.mark.exhaustive
def test_effort_ends_the_run_where_no_round_would_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "quick", Effort(16, 1.0))
    result = tune_net(replace(NET, layers=NET.layers[:1]), trials=None, effort="quick")
    assert result.stopped.startswith("another round would not pay: ")
    assert result.trials == 16
    assert result.trial_count == 8


@pytest.mark.parametrize("sizes", [{"trials": 8}, {"trials": None, "trials_per_layer": 4}])
def test_a_layer_that_fails_ends_no_other(sizes: dict[str, Any]) -> None:
    vast = ModelLayer(ekc.matvec(1_000_000, 1_000_000), (LayerUse("vast", "net", 1),))
    result = tune_net(Model("net", (vast, NET.layers[0])), **sizes)
    failed, good = result.layers
    assert "memory" in failed.failure
    assert good.result is not None
    assert result.totals[0].missing == ("vast (failed)",)
    with pytest.raises(NothingLegal, match=r"^net: no layer has a kernel; vast: "):
        tune_net(Model("net", (vast,)), **sizes)


@pytest.mark.exhaustive
def test_few_trials_are_shared_by_all_layers() -> None:
    result = tune_net(trials=4)
    assert sorted(r.trial_count for r in result.results) == [1, 1, 2]


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("net.toml", {}, r"model: 'net.toml' is not a model; ekc.models.from_torch"),
        (Model("net", ()), {}, "net: it has no layer that ekc can tune; 0 nodes are not covered"),
        (NET, {"trials": 2}, "trials: 2 are fewer than the 3 layers of net; give one for each at least"),
        (NET, {"trials": 9, "trials_per_layer": 3}, "trials and trials_per_layer: give one"),
        (NET, {"trials": None, "trials_per_layer": 0}, "trials_per_layer: 0"),
        (NET, {"trials": 9, "effort": "quick"}, "effort and trials: give one"),
        (NET, {"clocks": "slow"}, "clocks: no 'slow'"),
        (NET, {"records": 3}, "records: 3 is not a path"),
        (NET, {"executor": 3}, "executor: 3 has no submit"),
        (NET, {"seed": -1}, "seed: -1"),
    ],
)
def test_bad_arguments_are_one_line(model: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        tune_net(model, **options)
    assert "\n" not in str(caught.value)


def test_sums_are_over_calls(tuned: tuple[ModelResult, Path]) -> None:
    result, _ = tuned
    (total,) = result.totals
    assert (total.model, total.calls, total.missing) == ("net", 6, ())
    assert total.energy_j == pytest.approx(sum(2 * (r.best.energy_j or 0) for r in result.results))
    assert total.latency_s == pytest.approx(sum(2 * (r.best.latency_s or 0) for r in result.results))
    assert total.roofline_s == pytest.approx(sum(2 * r.roof.least_s for r in result.results))
    assert total.launches >= 6


def test_summary_has_layers_sums_and_what_is_not_covered(tuned: tuple[ModelResult, Path]) -> None:
    result, _ = tuned
    node = UncoveredNode("blocks.0.attn", "aten::cumsum", "no operator for it", 3.0, 4, count=2)
    partly = replace(result, model=replace(NET, uncovered=(node,), coverage=Coverage(0.99, 0.9)))
    text = " ".join(partly.summary().split())
    for words in (
        "Best schedules on a100 (simulated)",
        "Nothing ran on a GPU",
        "net: 6 calls, ",
        "of the latency",
        "than with the fastest kernels",
        f"trials {TRIALS} of {TRIALS}, ",
        "uncovered 1.00% of the flops, 10.0% of the bytes: aten::cumsum (2): no operator for it",
    ):
        assert words in text
    assert "uncovered" not in result.summary()
    assert "aten::cumsum" in str(partly.to_json()["uncovered"])
    assert repr(result).startswith("<ModelResult a100 (simulated): net: 6 calls, ")
    assert len(repr(result)) < 120
    assert "<table" in result._repr_html_()
    assert repr(result.layers[0]).startswith("<TunedLayer small, 2 calls: ")


def test_model_of_each_layer_is_named_where_there_are_several(tuned: tuple[ModelResult, Path]) -> None:
    result, _ = tuned
    assert make_layer_table(result)[0][:2] == ("layer", "times")
    first, *others = result.layers
    moved = replace(first, layer=replace(first.layer, uses=(LayerUse("small", "other", 2),)))
    headers, table = make_layer_table(replace(result, layers=(moved, *others)))
    assert headers[:2] == ("model", "layer")
    assert [row[0] for row in table] == ["other", "net", "net"]


def test_export_writes_one_library_with_the_names_of_layers(
    tuned: tuple[ModelResult, Path], tmp_path: Path
) -> None:
    paths = tuned[0].export(tmp_path / "out")
    assert paths[0].name == "net_sm_80.cu"
    header = (tmp_path / "out" / "include" / "ekc" / "net.hpp").read_text()
    assert all(f"struct {name}_extents" in header for name in OPERATORS)
    with pytest.raises(InvalidInput, match="'2x2' is not an identifier"):
        tuned[0].export(tmp_path / "other", name="2x2")
