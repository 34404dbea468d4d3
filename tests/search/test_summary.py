"""The summary of a run: what it says beside the table, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ekc.devices.statistics import Interval, MeasuredValue
from ekc.search.data.cost import MeasurementCost, compute_break_even_calls
from ekc.search.data.result import ModelCard, TuningResult
from ekc.search.summary import MAX_LINES, format_model_card
from tests.search.runs import tune


@pytest.fixture(scope="module")
def result() -> TuningResult:
    """A small run that used all its trials."""
    return tune(trials=24)


def card(number: int, **changes: object) -> ModelCard:
    told = ModelCard(number, 4 * number, 0.8, 0.02, 0.03, 0.7, 0.25, False)
    return replace(told, **changes)  # type: ignore[arg-type]


def test_refused_genomes_stand_beside_the_number_bred(result: TuningResult) -> None:
    assert result.bred > 1000
    assert sum(result.refusals.values()) < result.bred
    many = replace(result, refusals={"registers": 300, "shared memory": 1200}, bred=50_000)
    assert "1,500 of 50,000 bred genomes stayed illegal: shared memory 1,200, registers 300" in " ".join(
        many.summary().split()
    )


def test_the_few_that_repair_always_gives_up_are_no_news(result: TuningResult) -> None:
    assert "refused" not in replace(result, refusals={"registers": 300}, bred=50_000).summary()
    assert "refused" not in replace(result, refusals={}, bred=0).summary()


@pytest.mark.parametrize(
    ("ratio", "told"), [(1.02, ", at 2.0% more latency; "), (0.996, ", at 0.4% less latency, a tie; ")]
)
def test_the_best_may_be_level_with_the_fastest(result: TuningResult, ratio: float, told: str) -> None:
    assert result.fastest.latency_s is not None
    other = next(t for t in result.trials if t.ok and t.schedule != result.fastest.schedule)
    best = replace(other, latency_s=ratio * result.fastest.latency_s, energy_j=1e-6)
    assert told in " ".join(replace(result, best=best).summary().split())


def test_every_run_carries_its_model_card(result: TuningResult) -> None:
    lines = result.summary().splitlines()
    at = lines.index("Model card: energies predicted beforehand, against the meter")
    told = [line.split()[0] for line in lines[at + 3 : at + 3 + len(result.model_cards)]]
    assert told == [str(c.round) for c in result.model_cards]


def test_a_model_card_says_where_the_trivial_predictor_won_and_what_was_quarantined() -> None:
    text = format_model_card(
        [card(1, error=None, rank_correlation=None), card(2), card(3, error=0.05, quarantined=True)]
    )
    assert "better than latency x constant power in 1 of 2 rounds" in text
    assert [line.endswith("quarantined") for line in text.splitlines()[3:6]] == [False, False, True]
    assert text.splitlines()[3].split() == ["1", "4", "-", "3.0%", "-", "0.70", "25%"]


def test_a_long_model_card_shows_first_and_last() -> None:
    cards = [card(n) for n in range(1, 41)]
    lines = format_model_card(cards).splitlines()[3:-1]
    assert len(lines) == MAX_LINES
    assert lines[0].split()[0] == "1"
    assert lines[-1].split()[0] == "40"
    assert f"{MAX_LINES} of 40 rounds shown" in format_model_card(cards)


def test_no_card_where_nothing_was_judged() -> None:
    assert format_model_card([]) == ""


@pytest.mark.parametrize(
    ("best", "other", "calls"), [(1.0, 3.0, 500.0), (3.0, 3.0, None), (3.0, 1.0, None), (None, 1.0, None)]
)
def test_break_even_by_hand(best: float | None, other: float | None, calls: float | None) -> None:
    assert compute_break_even_calls(1000.0, best, other) == calls


def test_the_summary_says_when_the_search_has_paid_for_itself(result: TuningResult) -> None:
    spent = MeasurementCost(timing_s=0.25, metering_s=100.0, joules=20_000.0, idle_w=50.0)
    best = replace(result.best, energy_j=1e-3)
    rival = replace(result.fastest, schedule=result.baseline.schedule, energy_j=2e-3)
    told = replace(
        result, spent=spent, best=best, fastest=rival, baseline=replace(result.baseline, energy_j=5e-3)
    )
    text = " ".join(told.summary().split())
    assert "cost simulated, a real one would take 20000 J" in text
    assert "100 s of metering" in text
    assert "pays after 20 million calls against the fastest" in text
    assert "5 million calls against the naive" in text
    assert told.to_json()["break_even_calls"] == {
        "fastest": pytest.approx(2e7),
        "baseline": pytest.approx(5e6),
    }


def test_a_run_counts_what_its_measurements_took(result: TuningResult) -> None:
    spent = result.spent
    windows = result.metered_count * 2.5
    assert spent.metering_s > windows
    timings = sum(20 * t.latency_s for t in result.trials if t.latency_s)
    assert spent.timing_s > timings
    idle, cap = spent.metering_s * 30, spent.metering_s * 500
    assert idle < spent.joules < cap


def figures(*joules: float) -> tuple[MeasuredValue, ...]:
    return tuple(MeasuredValue(x, Interval(0.998 * x, 1.002 * x)) for x in joules)


def beside(
    result: TuningResult, best: tuple[MeasuredValue, ...], fastest: tuple[MeasuredValue, ...], apart: str = ""
) -> str:
    """The summary of a run whose best and fastest differ, one of them metered `apart`."""
    one = replace(result.best, energies_j=best, in_turn=apart != "best")
    other = replace(result.fastest, schedule=result.baseline.schedule, energies_j=fastest)
    told = replace(result, best=one, fastest=replace(other, in_turn=apart != "fastest"))
    return " ".join(told.summary().split())


@pytest.mark.parametrize(
    ("best", "fastest", "words"),
    [
        (figures(0.95, 0.951, 0.949), figures(1.0, 1.001, 0.999), "a difference: -5.0 % (-5"),
        (figures(0.99, 1.02, 0.97), figures(1.0, 1.0, 1.0), "no difference is shown: -0.7 % ("),
        (figures(0.9), figures(1.0), "no difference is shown: -10.0 % ("),
        (figures(0.9, 0.9), figures(1.0), "not metered in turn, so no difference is shown"),
    ],
)
def test_a_saving_counts_by_what_was_metered_in_turn(
    result: TuningResult, best: tuple[MeasuredValue, ...], fastest: tuple[MeasuredValue, ...], words: str
) -> None:
    assert words in beside(result, best, fastest)


@pytest.mark.parametrize("apart", ["best", "fastest"])
def test_what_was_metered_in_another_run_shows_no_difference(result: TuningResult, apart: str) -> None:
    told = beside(result, figures(0.95, 0.951, 0.949), figures(1.0, 1.001, 0.999), apart)
    assert "not metered in turn, so no difference is shown" in told


def test_what_the_meter_had_to_say_is_in_the_summary(result: TuningResult) -> None:
    assert "\nmetering " not in result.summary()
    told = replace(result, best=replace(result.best, notes=("the clock moved from 900 to 1410 MHz",)))
    assert "\nmetering   the clock moved from 900 to 1410 MHz\n" in told.summary()
