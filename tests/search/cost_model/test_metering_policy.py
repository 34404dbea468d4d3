"""The metering policy: the share of metered kernels on synthetic figures, and the choice of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

import ekc
from ekc.search.cost_model.metering_policy import (
    MeteringShare,
    PredictionBatch,
    PredictionRecord,
    is_accurate,
    select_for_metering,
    signal_to_noise,
)
from ekc.search.cost_model.power_model import PowerModel
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import METERING
from tests.search.helpers import run_search


def _figures(seed: int, count: int = 12) -> NDArray[np.float64]:
    return np.exp(np.random.default_rng(seed).normal(0, 0.3, count))


def _moved(share: MeteringShare, *rounds: tuple[NDArray[np.float64], NDArray[np.float64]]) -> list[float]:
    shares = []
    for predicted, measured in rounds:
        share.update(predicted, measured, new_count=len(measured))
        shares.append(share.share)
    return shares


def test_share_includes_meterings_of_the_finals() -> None:
    share = MeteringShare(0.25, is_adaptive=False, reserved_meterings=2.0)
    assert sum(share.allocate_meterings(4, max_count=4)[0] for _ in range(16)) == 16 - 2


def test_share_moves_to_its_minimum_or_maximum_unless_it_is_fixed() -> None:
    accurate = [(_figures(s) * 1.01, _figures(s)) for s in range(8)]
    scrambled = [(_figures(s + 100), _figures(s)) for s in range(8)]
    shares = _moved(MeteringShare(), *accurate)
    assert shares == sorted(shares, reverse=True)
    assert METERING.initial_share > shares[0] > METERING.min_share
    assert shares[-1] == METERING.min_share
    shares = _moved(MeteringShare(), *scrambled)
    assert METERING.initial_share < shares[0] < METERING.max_share
    assert shares[-1] == METERING.max_share
    assert _moved(MeteringShare(0.3, is_adaptive=False), *scrambled) == [0.3] * 8


def test_share_stays_between_accurate_and_inaccurate() -> None:
    measured = _figures(0, 400) ** 0.5
    predicted = measured * np.exp(np.random.default_rng(1).normal(0, 0.2, 400))
    assert is_accurate(predicted, measured) is None
    share = MeteringShare()
    share.update(predicted, measured, new_count=400)
    assert share.share == METERING.initial_share


def test_share_waits_for_enough_predictions() -> None:
    share = MeteringShare()
    share.update(_figures(1, 5), _figures(2, 5), new_count=5)
    assert share.share == METERING.initial_share, "five are too few for a verdict"
    share.update(_figures(3), _figures(4), new_count=0)
    assert share.share == METERING.initial_share * METERING.growth_factor, "the next call gives the verdict"
    moved = share.share
    share.update(_figures(5), _figures(6), new_count=2)
    assert share.share == moved, "two new ones give none"


def test_negligible_error_is_accurate() -> None:
    """Energies are equal to half a percent: no rank, no signal, and a negligible error."""
    random = np.random.default_rng(0)
    predicted, measured = np.exp(random.normal(0, 0.005, (2, 12)))
    assert signal_to_noise(predicted, measured) < 1.25
    assert is_accurate(predicted, measured)


@pytest.mark.parametrize(("early", "counts"), [(2, False), (5, True)])
def test_few_early_errors_do_not_count(early: int, counts: bool) -> None:
    """Kernels at the power cap have equal energies to half a percent, so ranks are random. The first
    predictions of the window were 7 % off; they count only if they are nearly half of it."""
    random = np.random.default_rng(3)
    predicted, measured = np.exp(random.normal(0, 0.003, (2, 12)))
    predicted[:early] *= 1.07
    assert signal_to_noise(predicted, measured) < 1.25
    assert (is_accurate(predicted, measured) is not True) is counts


def test_differing_latencies_do_not_make_a_power_model_accurate() -> None:
    """Energy is power x latency, and the latency is measured: it ranks well with any power."""
    random = np.random.default_rng(0)
    seconds, luck = np.exp(random.normal(0, 1.0, 400)), np.exp(random.normal(0, 0.5, 400))
    predicted, measured = seconds * 100.0, seconds * 100.0 * luck
    assert signal_to_noise(predicted, measured) > 2
    assert is_accurate(predicted, measured) is False
    assert is_accurate(predicted, predicted * luck**0.3), "an error of 0.15 is small enough"


def test_predicting_the_mean_has_no_signal() -> None:
    """A raw signal-to-noise ratio would be large for values far from zero."""
    measured = 100 + _figures(0)
    assert signal_to_noise(np.full(12, measured.mean()), measured) == pytest.approx(1.0)
    assert signal_to_noise(measured * 3, measured) > 1e6


def test_share_does_not_grow_if_the_last_predictions_are_right() -> None:
    """Figures hardly differ, as with constant power and equal latencies. Two of six predictions, by a model
    of four rows, were wrong; the last three are right."""
    measured = np.exp(np.array([0.001, -0.001, 0.002, 0.0, -0.002, 0.001]))
    early, late = np.array([0.09, 0.10, 0.01]), np.array([0.01, 0.01, 0.0])
    for off, moves in ((np.append(early, late), False), (np.append(late, early), True)):
        share = MeteringShare()
        assert is_accurate(measured * np.exp(off), measured) is False
        share.update(measured * np.exp(off), measured, new_count=6)
        assert (share.share > METERING.initial_share) is moves


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3, 1.0])
def test_shares_of_small_rounds_add_up(share: float) -> None:
    counted = MeteringShare(share, is_adaptive=False)
    dealt = [counted.allocate_meterings(timed, max_count=100) for timed in [3, 1, 4, 1, 5, 9, 2, 6] * 5]
    assert sum(count for count, _ in dealt) == int(share * 155 + 1e-9)
    assert sum(curious for _, curious in dealt) == int(0.3 * sum(count for count, _ in dealt) + 1e-9)
    assert all(0 <= curious <= count for count, curious in dealt)
    assert counted.allocate_meterings(1000, max_count=7)[0] == 7


def test_first_meterings_are_paid_back() -> None:
    share = MeteringShare(0.1, is_adaptive=False)
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


def _meter_batches(
    share: MeteringShare, sigma: float, error_std: Callable[[int], float]
) -> tuple[int, list[tuple[float, int, int, int]]]:
    """Feed 20 batches of 12 timed kernels, of equal latency and 200 W but for `sigma`, to the policy.

    `error_std(rows)`: standard deviation of the log error of a model that has learned so many rows. Returns
    (meterings, (share, kernels timed, kernels that wait, meterings) of each batch).
    """
    random, waiting, rows, batches = np.random.default_rng(0), 0, 0, list[tuple[float, int, int, int]]()
    predicted, measured = np.zeros(0), np.zeros(0)
    for number in range(20):
        waiting += 12
        before, min_count = share.share, METERING.initial_meterings if number == 0 else 0
        count, _ = share.allocate_meterings(12, waiting, min_count)
        batches.append((before, 12, waiting, count))
        waiting -= count
        energies = 2e-3 * np.exp(random.normal(0, 0.002, count) + sigma * random.normal(size=count))
        guesses = (
            energies * np.exp(random.normal(0, error_std(rows), count))
            if not sigma
            else np.full(count, 2e-3) * np.exp(random.normal(0, 0.1, count))
        )
        if rows:
            predicted, measured = np.append(predicted, guesses)[-12:], np.append(measured, energies)[-12:]
            share.update(predicted, measured, count)
        rows += count
    return rows, batches


def test_share_falls_to_its_minimum_with_constant_power() -> None:
    """The model predicts constant power to 5 % from 4 rows, then to 0.3 %."""
    share = MeteringShare()
    rows, batches = _meter_batches(share, 0.0, lambda rows: 0.05 if rows <= 4 else 0.003)
    assert batches[0][0] == METERING.initial_share
    assert share.share == METERING.min_share
    assert rows <= 0.15 * 20 * 12


def test_share_rises_to_its_maximum_with_unexplained_power() -> None:
    """Power differs by 50 %, and the predictions know nothing of it."""
    share = MeteringShare()
    _, batches = _meter_batches(share, 0.5, lambda rows: 0.0)
    assert batches[0][0] == METERING.initial_share
    assert share.share == METERING.max_share
    at_maximum = [(timed, waiting, count) for s, timed, waiting, count in batches if s == METERING.max_share]
    assert len(at_maximum) > 3
    # One kernel is metered for each that was timed, as long as enough of them wait.
    assert all(count == min(timed, waiting) for timed, waiting, count in at_maximum), at_maximum
    assert sum(count for *_, count in at_maximum) > 0.9 * sum(timed for timed, *_ in at_maximum)


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
