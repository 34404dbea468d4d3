"""The turns of a model's layers, on runs with hand-made savings."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.model.scheduler import pick_fewest_trials
from benchmarks.search.ablation_variants import apply_changes
from ekc.search.whole_model.scheduler import Scheduler


@dataclass
class StubRun:
    """A layer whose rounds of four trials halve what a trial saves, and pay while they save enough."""

    name: str
    saving: float
    decay: float = 0.5
    rounds_left: int = 99
    stops: bool = False
    trial_count: int = 0
    failure: str = ""
    least_saving: float = 0.0
    """Saving of a trial below which a round does not pay."""
    run: Any = field(init=False)

    def __post_init__(self) -> None:
        reporter = SimpleNamespace(is_stop_requested=False)
        self.run = SimpleNamespace(reporter=reporter)
        self.run.task = SimpleNamespace(can_continue=lambda: not reporter.is_stop_requested)
        self.layer = SimpleNamespace(name=self.name, count=1)

    expected_saving = property(lambda self: self.saving)
    can_go_on = property(lambda self: self.rounds_left > 0 and self.run.task.can_continue())

    def warm_up(self) -> None:
        self.run_round(4)

    def run_round(self, most_trials: int, expected_passes: float | None = None) -> str:
        assert most_trials > 0
        if expected_passes is not None and self.saving * expected_passes < self.least_saving:
            self.rounds_left = 0
            return "another round would not pay: in 10 calls"
        self.trial_count += min(4, most_trials)
        self.saving *= self.decay
        self.rounds_left -= 1
        self.run.reporter.is_stop_requested |= self.stops
        return ""


def schedule(*runs: StubRun, trials: int, **options: Any) -> Scheduler:
    scheduler = Scheduler([], trials, **options)
    for run in runs:
        scheduler.runs.append(run)  # type: ignore[arg-type]
        scheduler.warm_up(run)  # type: ignore[arg-type]
    scheduler.run_turns()
    return scheduler


def test_rounds_go_where_they_save_most() -> None:
    found = schedule(StubRun("small", 1.0), StubRun("large", 8.5), trials=28)
    # After the warm-ups 0.5 and 4.25; each round halves what is left.
    assert found.turns == ["small", "large", "large", "large", "large", "large", "small"]
    assert sum(run.trial_count for run in found.runs) == 28


def test_round_robin_of_the_benchmark_takes_turns() -> None:
    runs = [StubRun(name, saving) for name, saving in (("a", 1.0), ("b", 100.0), ("c", 10.0))]
    with apply_changes({"ekc.search.whole_model.scheduler:pick_largest_saving": pick_fewest_trials}):
        found = schedule(*runs, trials=24)
    assert found.turns == ["a", "b", "c", "a", "b", "c"]


@pytest.mark.parametrize("trials", [8, 9, 30, 31, 100, 257])
def test_all_trials_are_used_and_no_more(trials: int) -> None:
    runs = [StubRun("a", 3.0, 0.9), StubRun("b", 2.0, 0.9)]
    schedule(*runs, trials=trials)
    assert sum(run.trial_count for run in runs) == trials


def test_layer_without_schedules_left_gets_no_turn() -> None:
    found = schedule(StubRun("tiny", 99.0, rounds_left=2), StubRun("other", 1.0), trials=20)
    assert found.turns == ["tiny", "other", "tiny", "other", "other"]


def test_effort_ends_where_no_round_would_pay() -> None:
    """A layer whose round does not pay gets no other; the last one to go is named."""
    runs = [StubRun("a", 0.6, least_saving=4.0), StubRun("b", 1.0, least_saving=2.0)]
    found = schedule(*runs, trials=100, expected_passes=10.0)
    # Savings in 10 passes after the warm-ups: 3 of "a", 5 of "b", then 2.5 and 1.25 of "b".
    assert found.turns == ["a", "b", "b", "b"]
    assert found.stop_reason == (
        "another round would not pay: in 10 calls of b, the last layer that had a turn"
    )


def test_effort_that_uses_all_trials_has_no_reason_to_stop() -> None:
    runs = [StubRun("a", 0.1, least_saving=4.0), StubRun("b", 9.0)]
    found = schedule(*runs, trials=16, expected_passes=10.0)
    assert found.turns == ["a", "b", "b", "b"]
    assert found.stop_reason == ""


def test_request_of_a_callback_to_end_reaches_all_layers() -> None:
    runs = [StubRun("a", 3.0), StubRun("b", 2.0, stops=True)]
    found = schedule(*runs, trials=100)
    assert found.turns == ["a", "b"]
    assert all(run.run.reporter.is_stop_requested for run in runs)
