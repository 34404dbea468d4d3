"""The metering policy: the share of metered kernels on synthetic figures, and the choice of kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import ekc
from ekc.search.cost_model.learner import (
    MeteringShare,
    PredictionBatch,
    PredictionRecord,
    select_for_metering,
)
from ekc.search.cost_model.power_model import PowerModel
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import METERING
from tests.search.helpers import run_search


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3, 1.0])
def test_shares_of_small_rounds_add_up(share: float) -> None:
    counted = MeteringShare(share)
    dealt = [counted.allocate_meterings(timed, max_count=100) for timed in [3, 1, 4, 1, 5, 9, 2, 6] * 5]
    assert sum(count for count, _ in dealt) == int(share * 155 + 1e-9)
    assert sum(curious for _, curious in dealt) == int(0.3 * sum(count for count, _ in dealt) + 1e-9)
    assert all(0 <= curious <= count for count, curious in dealt)
    assert counted.allocate_meterings(1000, max_count=7)[0] == 7


def test_first_meterings_are_paid_back() -> None:
    share = MeteringShare(0.1)
    assert share.allocate_meterings(16, max_count=16, min_count=4)[0] == 4
    assert [share.allocate_meterings(8, max_count=8)[0] for _ in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_selection_takes_largest_expected_improvement() -> None:
    mean, spread = np.log(np.arange(1.0, 9.0)), np.full(8, 0.05)
    rows = np.eye(8, dtype=np.float32)
    assert select_for_metering(3, 0, mean, spread, mean[0], rows) == [0, 1, 2]
    spread[6] = 2.0
    assert select_for_metering(3, 0, mean, spread, mean[0], rows) == [0, 1, 6]
    assert select_for_metering(3, 0, np.zeros(8), spread, 0.0, rows)[-1] == 6


def test_exploration_takes_uncertain_and_distant_kernels() -> None:
    mean, spread = np.arange(10.0), np.full(10, 0.1)
    rows = np.zeros((10, 2), dtype=np.float32)
    rows[7] = 5
    assert select_for_metering(4, 1, mean, spread, 0.0, rows) == [0, 1, 2, 7], "unlike the rest"
    rows[8], spread[8] = (-5, -5), 0.2
    assert select_for_metering(4, 1, mean, spread, 0.0, rows) == [0, 1, 2, 8], "as unlike, and less sure"
    assert select_for_metering(1, 1, np.zeros(1), np.ones(1), np.inf, rows[:1]) == [0]


def test_records_hold_predictions_made_before_metering(monkeypatch: pytest.MonkeyPatch) -> None:
    predict, judge, learn = PredictionBatch.from_power_model, PredictionBatch.make_records, PowerModel.learn
    learned: set[int] = set()
    learned_before: dict[int, set[int]] = {}
    were_learned: list[bool] = []

    def predict_and_note(candidates: Sequence[Candidate], power: PowerModel) -> PredictionBatch:
        batch = predict(candidates, power)
        learned_before[id(batch)] = set(learned)
        return batch

    def judge_and_compare(batch: PredictionBatch, metered: Sequence[int]) -> list[PredictionRecord]:
        were_learned.extend(id(batch.candidates[i]) in learned_before[id(batch)] for i in metered)
        return judge(batch, metered)

    def learn_and_note(power: PowerModel, metered: Sequence[Candidate], timed: Sequence[Candidate]) -> None:
        learned.update(map(id, metered))
        learn(power, metered, timed)

    monkeypatch.setattr(PredictionBatch, "from_power_model", predict_and_note)
    monkeypatch.setattr(PredictionBatch, "make_records", judge_and_compare)
    monkeypatch.setattr(PowerModel, "learn", learn_and_note)
    result, run = run_search(ekc.matvec(512, 512), trials=24)
    judged, cards = run.task.learner.prediction_records, result.model_cards
    assert cards[0].error is None
    assert cards[-1].rows < run.task.learner.power_model.row_count == METERING.initial_meterings + len(judged)
    assert were_learned == [False] * len(judged), "no kernel was learned before it was predicted"
    assert all(j.measured_j != j.predicted_j and j.std > 0 for j in judged)
