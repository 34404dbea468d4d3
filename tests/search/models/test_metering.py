"""How many kernels are metered, and which: on figures whose truth is known, and on devices that are all
explained or not explained at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ekc
from ekc import devices
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Device, Metering
from ekc.devices.digest import digest_kernel
from ekc.devices.simulated.residual import make_generator
from ekc.devices.statistics import Interval
from ekc.search.cost_model.metering_policy import (
    GROWTH_FACTOR,
    INITIAL_METERINGS,
    INITIAL_SHARE,
    MAX_SHARE,
    MIN_SHARE,
    MeteringShare,
    PredictionBatch,
    PredictionRecord,
    is_accurate,
    select_for_metering,
    signal_to_noise,
)
from ekc.search.cost_model.power_model import PowerModel
from ekc.search.data.candidate import Candidate
from ekc.search.data.options import TuneOptions
from ekc.search.data.result import TuningResult
from ekc.search.database.database import RecordStore
from ekc.search.loop.breeding import DEFAULT_METHOD, SearchMethod
from ekc.search.loop.measure import Measurer
from ekc.search.run import TuningRun
from ekc.search.space.space import Space

SMALL = ekc.matvec(512, 512)


def _figures(seed: int, count: int = 12) -> NDArray[np.float64]:
    return np.exp(np.random.default_rng(seed).normal(0, 0.3, count))


def _moved(share: MeteringShare, *rounds: tuple[NDArray[np.float64], NDArray[np.float64]]) -> list[float]:
    shares = []
    for predicted, measured in rounds:
        share.update(predicted, measured, new_count=len(measured))
        shares.append(share.share)
    return shares


def test_what_the_finals_meter_is_part_of_the_share() -> None:
    share = MeteringShare(0.25, is_adaptive=False, reserved_meterings=2.0)
    assert sum(share.allocate_meterings(4, max_count=4)[0] for _ in range(16)) == 16 - 2


def test_the_share_shrinks_to_its_floor_on_faithful_predictions() -> None:
    shares = _moved(MeteringShare(), *((_figures(s) * 1.01, _figures(s)) for s in range(8)))
    assert shares == sorted(shares, reverse=True)
    assert INITIAL_SHARE > shares[0] > MIN_SHARE
    assert shares[-1] == MIN_SHARE


def test_the_share_rises_to_its_ceiling_on_scrambled_ones() -> None:
    shares = _moved(MeteringShare(), *((_figures(s + 100), _figures(s)) for s in range(8)))
    assert INITIAL_SHARE < shares[0] < MAX_SHARE
    assert shares[-1] == MAX_SHARE


def test_the_share_stays_where_predictions_are_neither_faithful_nor_lost() -> None:
    measured = _figures(0, 400) ** 0.5
    predicted = measured * np.exp(np.random.default_rng(1).normal(0, 0.2, 400))
    assert is_accurate(predicted, measured) is None
    share = MeteringShare()
    share.update(predicted, measured, new_count=400)
    assert share.share == INITIAL_SHARE


def test_few_predictions_say_nothing() -> None:
    share = MeteringShare()
    share.update(_figures(1, 5), _figures(2, 5), new_count=5)
    assert share.share == INITIAL_SHARE, "five are too few for a verdict"
    share.update(_figures(3), _figures(4), new_count=0)
    assert share.share == INITIAL_SHARE * GROWTH_FACTOR, "they waited, the next call gave it"
    moved = share.share
    share.update(_figures(5), _figures(6), new_count=2)
    assert share.share == moved, "two new ones do not"


def test_an_error_that_nobody_could_see_is_faithful() -> None:
    """All kernels cost the same but for half a percent: no rank, no signal, and nothing lost."""
    random = np.random.default_rng(0)
    predicted, measured = np.exp(random.normal(0, 0.005, (2, 12)))
    assert signal_to_noise(predicted, measured) < 1.25
    assert is_accurate(predicted, measured)


@pytest.mark.parametrize(("early", "counts"), [(2, False), (5, True)])
def test_what_was_predicted_from_next_to_nothing_does_not_count(early: int, counts: bool) -> None:
    """Kernels at the power cap cost the same to half a percent, so ranks are luck; the first of the window
    were predicted 7 % off. Where it is nearly half of them, that is no early mistake."""
    random = np.random.default_rng(3)
    predicted, measured = np.exp(random.normal(0, 0.003, (2, 12)))
    predicted[:early] *= 1.07
    assert signal_to_noise(predicted, measured) < 1.25
    assert (is_accurate(predicted, measured) is not True) is counts


def test_latencies_that_differ_do_not_make_a_model_of_power_faithful() -> None:
    """Energy is power x latency, and the latency is measured: it ranks well with any power."""
    random = np.random.default_rng(0)
    seconds, luck = np.exp(random.normal(0, 1.0, 400)), np.exp(random.normal(0, 0.5, 400))
    predicted, measured = seconds * 100.0, seconds * 100.0 * luck
    assert signal_to_noise(predicted, measured) > 2
    assert is_accurate(predicted, measured) is False
    assert is_accurate(predicted, predicted * luck**0.3), "0.15 is what a choice can live with"


def test_predicting_the_mean_is_no_signal() -> None:
    """A raw signal-to-noise ratio would be flattered by values far from zero."""
    measured = 100 + _figures(0)
    assert signal_to_noise(np.full(12, measured.mean()), measured) == pytest.approx(1.0)
    assert signal_to_noise(measured * 3, measured) > 1e6


def test_early_errors_of_a_model_that_has_learned_since_cost_no_more_meterings() -> None:
    """Figures that hardly differ, as of constant power among equally fast kernels: two of six predictions
    were off, by a model of four labels, and say no more than the mean. The last three are right."""
    measured = np.exp(np.array([0.001, -0.001, 0.002, 0.0, -0.002, 0.001]))
    early, late = np.array([0.09, 0.10, 0.01]), np.array([0.01, 0.01, 0.0])
    for off, moves in ((np.append(early, late), False), (np.append(late, early), True)):
        share = MeteringShare()
        assert is_accurate(measured * np.exp(off), measured) is False
        share.update(measured * np.exp(off), measured, new_count=6)
        assert (share.share > INITIAL_SHARE) is moves


def test_a_fixed_share_does_not_move() -> None:
    share = MeteringShare(0.3, is_adaptive=False)
    assert _moved(share, *((_figures(s + 100), _figures(s)) for s in range(8))) == [0.3] * 8


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3, 1.0])
def test_shares_of_small_rounds_add_up(share: float) -> None:
    counted = MeteringShare(share, is_adaptive=False)
    dealt = [counted.allocate_meterings(timed, max_count=100) for timed in [3, 1, 4, 1, 5, 9, 2, 6] * 5]
    assert sum(count for count, _ in dealt) == int(share * 155 + 1e-9)
    assert sum(curious for _, curious in dealt) == int(0.3 * sum(count for count, _ in dealt) + 1e-9)
    assert all(0 <= curious <= count for count, curious in dealt)
    assert counted.allocate_meterings(1000, max_count=7)[0] == 7


def test_what_is_metered_first_is_paid_back() -> None:
    share = MeteringShare(0.1, is_adaptive=False)
    assert share.allocate_meterings(16, max_count=16, min_count=4)[0] == 4
    assert [share.allocate_meterings(8, max_count=8)[0] for _ in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_the_promising_are_metered_and_of_equals_the_unsure() -> None:
    mean, spread = np.log(np.arange(1.0, 9.0)), np.full(8, 0.05)
    rows = np.eye(8, dtype=np.float32)
    assert select_for_metering(3, 0, mean, spread, mean[0], rows) == [0, 1, 2]
    spread[6] = 2.0
    assert select_for_metering(3, 0, mean, spread, mean[0], rows) == [0, 1, 6]
    assert select_for_metering(3, 0, np.zeros(8), spread, 0.0, rows)[-1] == 6


def test_curiosity_goes_where_the_model_is_unsure_and_nothing_alike_is_metered() -> None:
    mean, spread = np.arange(10.0), np.full(10, 0.1)
    rows = np.zeros((10, 2), dtype=np.float32)
    rows[7] = 5
    assert select_for_metering(4, 1, mean, spread, 0.0, rows) == [0, 1, 2, 7], "unlike the rest"
    rows[8], spread[8] = (-5, -5), 0.2
    assert select_for_metering(4, 1, mean, spread, 0.0, rows) == [0, 1, 2, 8], "as unlike, and less sure"
    assert select_for_metering(1, 1, np.zeros(1), np.ones(1), np.inf, rows[:1]) == [0]


class Repowered:
    """A simulated device whose meter shows another power. Everything else is the device's own."""

    def __init__(self, device: Device, sigma: float, base_w: float | None = None) -> None:
        self._device, self._sigma, self._base_w = device, sigma, base_w

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def meter(self, kernel: CompiledKernel, *, seconds: float = 1.0, repeat: int = 0) -> Metering:
        """The device's metering at `base_w` watts, or its own, times a factor that nothing explains."""
        true = self._device.meter(kernel, seconds=seconds, repeat=repeat)
        luck = make_generator("test", digest_kernel(kernel)).standard_normal()
        factor = (self._base_w or true.power_w) / true.power_w * float(np.exp(self._sigma * luck))
        power, energy = true.power_interval_w, true.energy_interval_j
        return dataclasses.replace(
            true,
            power_w=true.power_w * factor,
            energy_j=true.energy_j * factor,
            power_interval_w=Interval(power.low * factor, power.high * factor),
            energy_interval_j=Interval(energy.low * factor, energy.high * factor),
        )


def searched(
    device: Any, method: SearchMethod = DEFAULT_METHOD, trials: int = 192
) -> tuple[TuningResult, TuningRun]:
    wish = TuneOptions(trials, "energy", 0.05, False, 0, None)
    with RecordStore(None) as store, ThreadPoolExecutor(2) as workers:
        run = TuningRun(Space(SMALL, device.limits), Measurer(device, store), workers, wish, None, method)
        return run.run(()), run


def test_where_power_is_constant_the_share_falls_to_its_floor() -> None:
    result, run = searched(Repowered(devices.open("a100"), sigma=0.0, base_w=200.0), trials=256)
    shares = [card.share for card in result.model_cards]
    assert shares[0] == INITIAL_SHARE
    assert shares[-1] == run.task.learner.metering_share.share == MIN_SHARE
    assert result.metered_count <= 0.15 * result.trial_count


def test_where_nothing_explains_power_the_share_rises_to_its_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, int, int, int]] = []
    wanted = MeteringShare.allocate_meterings

    def note(share: MeteringShare, timed: int, most: int, fewest: int = 0) -> tuple[int, int]:
        found = wanted(share, timed, most, fewest)
        asked.append((share.share, timed, most, found[0]))
        return found

    monkeypatch.setattr(MeteringShare, "allocate_meterings", note)
    result, run = searched(Repowered(devices.open("a100"), sigma=0.5), trials=256)
    shares = [card.share for card in result.model_cards]
    assert shares[0] == INITIAL_SHARE
    assert shares[-1] == run.task.learner.metering_share.share == MAX_SHARE
    at_ceiling = [(timed, most, count) for share, timed, most, count in asked if share == MAX_SHARE]
    assert len(at_ceiling) > 3
    # One is metered for each that was timed, as long as fast ones wait for it.
    assert all(count == min(timed, most) for timed, most, count in at_ceiling), at_ceiling
    assert sum(count for *_, count in at_ceiling) > 0.9 * sum(timed for timed, *_ in at_ceiling)


def test_what_is_judged_was_predicted_before_it_was_metered(monkeypatch: pytest.MonkeyPatch) -> None:
    of, judge, learn = PredictionBatch.from_power_model, PredictionBatch.make_records, PowerModel.learn
    learned: list[Candidate] = []
    made: list[tuple[PredictionBatch, int]] = []
    known: list[bool] = []

    def foresee(candidates: Sequence[Candidate], power: PowerModel) -> PredictionBatch:
        made.append((of(candidates, power), len(learned)))
        return made[-1][0]

    def judged_by(foresight: PredictionBatch, metered: Sequence[int]) -> list[PredictionRecord]:
        ((_, before),) = [m for m in made if m[0] is foresight]
        seen = {id(c) for c in learned[:before]}
        known.extend(id(foresight.candidates[i]) in seen for i in metered)
        return judge(foresight, metered)

    def learns(power: PowerModel, metered: Sequence[Candidate], timed: Sequence[Candidate]) -> None:
        learned.extend(metered)
        learn(power, metered, timed)

    monkeypatch.setattr(PredictionBatch, "from_power_model", foresee)
    monkeypatch.setattr(PredictionBatch, "make_records", judged_by)
    monkeypatch.setattr(PowerModel, "learn", learns)
    result, run = searched(devices.open("a100"), trials=40)
    judged, cards = run.task.learner.prediction_records, result.model_cards
    assert cards[0].error is None
    assert cards[-1].rows < run.task.learner.power_model.row_count == INITIAL_METERINGS + len(judged)
    assert known == [False] * len(judged), "none was learned from before its foresight was made"
    assert all(j.measured_j != j.believed_j and j.std > 0 for j in judged)
