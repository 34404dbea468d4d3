"""The summary of a run: the notes beside the table, and the model card."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ekc.devices.statistics import Interval, MeasuredValue
from ekc.search.data.result import MeasurementCost, ModelCard
from ekc.search.data.trial import Trial
from ekc.search.run_data.from_result import collect_run
from ekc.search.summary import MAX_LINES, format_model_card
from ekc.search.tuning_result import TuningResult


@pytest.fixture
def result(plain_run: TuningResult) -> TuningResult:
    return plain_run


def card(number: int, **changes: object) -> ModelCard:
    changed = ModelCard(number, 4 * number, 0.8, 0.02, 0.03, 0.04, 0.7, True)
    return replace(changed, **changes)  # type: ignore[arg-type]


def test_summary_counts_refused_genomes(result: TuningResult) -> None:
    assert result.bred > 1000
    assert sum(result.refusals.values()) < result.bred
    many = replace(result, refusals={"registers": 300, "shared memory": 1200}, bred=50_000)
    assert "1,500 of 50,000 bred genomes stayed illegal: shared memory 1,200, registers 300" in " ".join(
        many.summary().split()
    )


def test_summary_omits_few_refused_genomes(result: TuningResult) -> None:
    assert "refused" not in replace(result, refusals={"registers": 300}, bred=50_000).summary()
    assert "refused" not in replace(result, refusals={}, bred=0).summary()


def test_summary_compares_latency_of_best_and_fastest(result: TuningResult) -> None:
    assert result.fastest.latency_s is not None
    other = next(t for t in result.trials if t.ok and t.schedule != result.fastest.schedule)
    best = replace(other, latency_s=1.02 * result.fastest.latency_s, energy_j=1e-6)
    assert ", at 2.0% more latency; " in " ".join(replace(result, best=best).summary().split())


@pytest.mark.parametrize(
    ("bound", "factor", "noted"), [("memory", 1.1, True), ("memory", 0.9, False), ("compute", 1.1, False)]
)
def test_summary_says_why_a_kernel_is_faster_than_memory(
    result: TuningResult, bound: str, factor: float, noted: bool
) -> None:
    assert result.best.latency_s is not None
    roof = replace(result.roof, bound=bound, least_s=factor * result.best.latency_s, unit="FLOP/s")
    text = " ".join(replace(result, roof=roof).summary().split())
    assert ("repeated calls find a part of their data in L2" in text) is noted


def test_summary_has_model_card(result: TuningResult) -> None:
    result = replace(result, model_cards=(card(1, error=None), card(2)))
    lines = result.summary().splitlines()
    at = lines.index("Model card: energy predicted before metering, compared with the meter")
    changed = [line.split()[0] for line in lines[at + 3 : at + 3 + len(result.model_cards)]]
    assert changed == [str(c.round) for c in result.model_cards]


def test_model_card_counts_wins_and_marks_rounds_without_correction() -> None:
    text = format_model_card(
        [card(1, error=None, rank_correlation=None), card(2), card(3, error=0.05, corrected=False)]
    )
    assert "better than latency x constant power in 1 of 2 rounds, than P0 t + E0 in 1" in text
    assert [line.endswith("not corrected") for line in text.splitlines()[3:6]] == [False, False, True]
    assert text.splitlines()[3].split() == ["1", "4", "-", "3.0%", "4.0%", "-", "0.70"]


def test_long_model_card_shows_first_and_last() -> None:
    cards = [card(n) for n in range(1, 41)]
    lines = format_model_card(cards).splitlines()[3:-1]
    assert len(lines) == MAX_LINES
    assert lines[0].split()[0] == "1"
    assert lines[-1].split()[0] == "40"
    assert f"{MAX_LINES} of 40 rounds shown" in format_model_card(cards)


def test_model_card_without_rounds_is_empty() -> None:
    assert format_model_card([]) == ""


@pytest.mark.parametrize("metered", [True, False])
def test_model_card_without_comparison_is_one_line(result: TuningResult, metered: bool) -> None:
    cards = (card(1, error=None, rank_correlation=None), card(2, error=None)) if metered else ()
    text = replace(result, model_cards=cards).summary()
    assert "latency x power" not in text
    assert ("Model card: no energy was predicted before it was metered" in text) is metered
    assert collect_run(replace(result, model_cards=cards)).model_card is None


def meter(trial: Trial, joules: float, half: float) -> Trial:
    """The trial with two meterings of `joules`, each with an interval of `half` to both sides."""
    interval = Interval(joules - half, joules + half)
    energies = (MeasuredValue(joules, interval),) * 2
    return replace(
        trial, energy_j=joules, energy_interval_j=interval, energies_j=energies, in_turn=True, metered=True
    )


@pytest.mark.parametrize(
    ("half", "in_turn", "calls", "words"),
    [
        (1e-6, True, (2e7, 5e6), "with the naive kernel; after 20 million, compared with the fastest"),
        (1e-6, False, (2e7, 5e6), "with the naive kernel; after 20 million, compared with the fastest"),
        (1e-3, True, (None, 5e6), "after 5 million calls, compared with the naive kernel bound"),
        (1e-3, False, (None, 5e6), "after 5 million calls, compared with the naive kernel bound"),
        (1e-2, True, (None, None), ""),
    ],
)
def test_break_even_needs_a_saving_that_the_meter_shows(
    result: TuningResult, half: float, in_turn: bool, calls: tuple[float | None, ...], words: str
) -> None:
    spent = MeasurementCost(timing_s=0.25, metering_s=100.0, joules=20_000.0, idle_w=50.0)
    best, fastest = meter(result.best, 1e-3, half), meter(result.fastest, 2e-3, half)
    fastest = replace(fastest, schedule=result.baseline.schedule, in_turn=in_turn)
    baseline = meter(result.baseline, 5e-3, half)
    changed = replace(result, spent=spent, best=best, fastest=fastest, baseline=baseline)
    text = " ".join(changed.summary().split())
    assert "cost simulated; a real GPU would take 20000 J" in text
    assert "100 s of metering" in text
    assert ("break-even" in text) is bool(words)
    assert words in text
    found = changed.to_json()["break_even_calls"]
    assert [found["fastest"], found["baseline"]] == [c if c is None else pytest.approx(c) for c in calls]


def test_run_counts_cost_of_measurements(result: TuningResult) -> None:
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
    result: TuningResult,
    best: tuple[MeasuredValue, ...],
    fastest: tuple[MeasuredValue, ...],
    elsewhere: str = "",
) -> str:
    """The summary of a run whose best and fastest differ, one of them metered `elsewhere`."""
    one = replace(result.best, energies_j=best, in_turn=elsewhere != "best")
    other = replace(result.fastest, schedule=result.baseline.schedule, energies_j=fastest)
    changed = replace(result, best=one, fastest=replace(other, in_turn=elsewhere != "fastest"))
    return " ".join(changed.summary().split())


@pytest.mark.parametrize(
    ("best", "fastest", "words"),
    [
        (figures(0.95, 0.951, 0.949), figures(1.0, 1.001, 0.999), "; a significant saving: 4."),
        (figures(1.05, 1.051, 1.049), figures(1.0, 1.001, 0.999), "; a significant loss, as a saving: -5."),
        (figures(0.99, 1.02, 0.97), figures(1.0, 1.0, 1.0), "no significant saving: -"),
        (figures(0.9), figures(1.0), "no significant saving: "),
        (figures(0.9, 0.9), figures(1.0), "significance unknown, because they were not metered in turn"),
    ],
)
def test_saving_is_compared_in_turn(
    result: TuningResult, best: tuple[MeasuredValue, ...], fastest: tuple[MeasuredValue, ...], words: str
) -> None:
    assert words in beside(result, best, fastest)


@pytest.mark.parametrize("elsewhere", ["best", "fastest"])
def test_saving_of_meterings_out_of_turn_is_not_shown(result: TuningResult, elsewhere: str) -> None:
    changed = beside(result, figures(0.95, 0.951, 0.949), figures(1.0, 1.001, 0.999), elsewhere)
    assert "significance unknown, because they were not metered in turn" in changed


def test_summary_has_notes_of_meter(result: TuningResult) -> None:
    assert "\nmetering " not in result.summary()
    changed = replace(result, best=replace(result.best, notes=("the clock moved from 900 to 1410 MHz",)))
    assert "\nmetering   the clock moved from 900 to 1410 MHz\n" in changed.summary()
