"""The result of a tuning run as text: a table of figures, notes on how they were measured, the model card.

The model card has one line for each round with meterings: the error of energies that were predicted before
they were metered, beside the three trivial predictors that a model must beat (energy = latency x constant
power; energy = P0 x latency + E0; and the order by latency alone).
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ekc.devices.statistics import Interval
from ekc.display import format_html_table
from ekc.search.data.library_result import describe_ratios
from ekc.search.data.result import ModelCard, TuningData
from ekc.search.data.trial import Trial, compare_energies, describe_energy_source
from ekc.tables import (
    TABLE_WIDTH,
    choose_unit,
    count_nouns,
    format_figure,
    format_rounded,
    format_table,
    group_pairs,
)

MAX_LINES = 8
"""Lines of the model card, at most. A long run shows rounds evenly spaced, the first and last included."""
_TITLE = "Model card: energy predicted before metering, compared with the meter"
CARD_HEADERS = (
    *("round", "rows", "error", "latency x power", "P0 t + E0"),
    *("rank", "time rank", ""),
)
"""P0 t + E0: energy as a line over the latency t, fitted to the kernels metered so far."""


def format_model_card(cards: Sequence[ModelCard]) -> str:
    """Format the model card as a table and a verdict over all rounds; one line where no round compares a
    prediction with the meter, and "" without rounds."""
    if not cards:
        return ""
    if not is_card_judged(cards):
        return f"Model card: {NO_COMPARISON}"
    table = format_table(CARD_HEADERS, list_card_rows(cards), _TITLE, label_count=0)
    return "\n".join([table, *describe_verdict(cards)])


NO_COMPARISON = "no energy was predicted before it was metered; more trials meter more kernels"


def is_card_judged(cards: Sequence[ModelCard]) -> bool:
    """Whether any round compares energies predicted before metering with the meter."""
    return any(card.error is not None for card in cards)


def list_card_rows(cards: Sequence[ModelCard]) -> list[tuple[str, ...]]:
    """List the rows of the model card, with the columns `CARD_HEADERS`."""
    picks = np.linspace(0, len(cards) - 1, min(len(cards), MAX_LINES)).round().astype(int).tolist()
    return [_make_row(cards[i]) for i in picks]


def _make_row(card: ModelCard) -> tuple[str, ...]:
    return (
        str(card.round),
        str(card.rows),
        _format_known(card.error, ".1%"),
        _format_known(card.constant_power_error, ".1%"),
        _format_known(card.two_number_error, ".1%"),
        _format_known(card.rank_correlation, "z.2f"),
        _format_known(card.latency_rank, "z.2f"),
        "" if card.corrected else "not corrected",
    )


def _format_known(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def describe_verdict(cards: Sequence[ModelCard]) -> list[str]:
    """Describe how often the model beat the trivial predictors, and how many rounds are shown."""
    judged = [card for card in cards if card.error is not None]
    lines = []
    if judged:
        constant = sum(_is_less(card.error, card.constant_power_error) for card in judged)
        two_numbers = sum(_is_less(card.error, card.two_number_error) for card in judged)
        lines.append(
            f"better than latency x constant power in {constant} of {len(judged)} rounds, "
            f"than P0 t + E0 in {two_numbers}"
        )
    if len(cards) > MAX_LINES:
        lines.append(f"{MAX_LINES} of {len(cards)} rounds shown")
    return ["; ".join(lines)] if lines else []


def _is_less(error: float | None, other: float | None) -> bool:
    """Whether both errors are known and the first is less."""
    return error is not None and other is not None and error < other


_LABEL_WIDTH = 11
"""Width in characters of the names before the notes."""
_LARGE_NUMBERS = ((1e12, " trillion"), (1e9, " billion"), (1e6, " million"))
EXPECTED_ILLEGAL_SHARE = 0.01
"""Share of the bred genomes that may stay illegal without a note. Repair stops at half of it by design."""


def format_summary(result: TuningData) -> str:
    """Format a result: a table of best, fastest and naive schedule, notes, model card, front over clocks."""
    notes = [line for note in list_notes(result) for line in wrap_note(*note)]
    parts = [_format_title(result), format_table(*make_main_table(result)), "", *notes]
    for table in (format_model_card(result.model_cards), _format_clock_table(result)):
        parts += ["", table] if table else []
    return "\n".join(parts)


def _choose_units(trials: Sequence[Trial]) -> tuple[tuple[float, str], tuple[float, str]]:
    """Scales and units of latency and energy."""
    return choose_unit([t.latency_s for t in trials], "s"), choose_unit([t.energy_j for t in trials], "J")


def _format_figures(trial: Trial, latency_scale: float, energy_scale: float) -> tuple[str, str, str, str]:
    """Format latency, power and energy, and the source of the energy."""
    interval = trial.energy_interval_j if trial.metered else None
    energy = format_figure(trial.energy_j, energy_scale) + format_relative_interval(trial.energy_j, interval)
    source = describe_energy_source(trial)
    return format_figure(trial.latency_s, latency_scale), format_figure(trial.power_w), energy, source


def format_relative_interval(value: float | None, interval: Interval | None) -> str:
    """Format half the width of a 95 % interval, relative to the value: `+/-0.5%`."""
    if value is None or interval is None:
        return ""
    return f" +/-{50 * (interval.high - interval.low) / value:.1f}%"


def _format_title(result: TuningData) -> str:
    device = result.device
    lines = [f"{str(result.op).splitlines()[0]} on {device.label}, clocks {device.clock_regime or 'unknown'}"]
    if device.simulated:
        lines.append("Simulated: every figure comes from a model of the device. Nothing ran on a GPU.")
    return "\n".join([*lines, ""])


def format_summary_html(result: TuningData) -> str:
    """A small table in HTML of best, fastest and naive schedule, with the number of trials below."""
    counts = f"{count_nouns(result.trial_count, 'trial')}, {result.metered_count} of them metered"
    notes = (_describe_saving(result), f"{counts}, in {result.seconds:.1f} s; summary() has more")
    title, note = _format_title(result).strip(), "\n".join(filter(None, notes))
    return format_html_table(*make_main_table(result), title, note)


def make_main_table(result: TuningData) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Make headers and rows of the table of best, fastest and naive schedule."""
    named = (("best", result.best), ("fastest", result.fastest), ("naive", result.baseline))
    latency, energy = _choose_units([t for _, t in named])
    units = f"latency [{latency[1]}]", "power [W]", f"energy [{energy[1]}]"
    headers = ("", *units, "source", "of roofline", "speed-up")
    rows = []
    for name, t in named:
        time, *others = _format_figures(t, latency[0], energy[0])
        time += format_relative_interval(t.latency_s, t.latency_interval_s)
        shares = _format_roofline_share(t, result), format_speedup(result.baseline, t)
        rows.append((name, time, *others, *shares))
    return headers, rows


def format_speedup(baseline: Trial, trial: Trial) -> str:
    """Format the speed-up over the naive schedule."""
    if not baseline.latency_s or not trial.latency_s:
        return "-"
    return f"{baseline.latency_s / trial.latency_s:.1f}x"


def _format_roofline_share(trial: Trial, result: TuningData) -> str:
    """Format the least latency on the roofline as a share of the trial's latency."""
    if not trial.latency_s or not math.isfinite(result.roof.least_s):
        return "-"
    return f"{100 * result.roof.least_s / trial.latency_s:.1f}%"


def list_notes(result: TuningData) -> list[tuple[str, str]]:
    """List names and texts of the notes; a note that does not apply has no text."""
    best = result.best
    counts = f"{result.trial_count}, {result.metered_count} of them metered"
    counts += f", in {result.seconds:.1f} s" if math.isfinite(result.seconds) else ""
    return [
        ("trials", counts),
        ("space", result.user_space),
        ("found by", result.found and f"the search: {result.found}"),
        ("failures", _describe_failures(result.trials)),
        ("refused", _describe_refusals(result.refusals, result.bred)),
        ("energy", _describe_saving(result)),
        ("library", _describe_library(result)),
        ("cost", _describe_cost(result)),
        ("break-even", _describe_break_even(result)),
        ("bound", _describe_bound(result)),
        ("checked", best.checked or "not executed"),
        ("atomics", describe_rounding(best)),
        ("throttled", ", ".join(best.throttle)),
        ("metering", "; ".join(best.notes)),
        ("readings", _describe_readings(best, result.baseline)),
        ("clocks", result.clocks_note),
        ("stopped", result.stopped),
    ]


def _describe_readings(best: Trial, naive: Trial) -> str:
    """The readings of observers for the best schedule, beside those for the naive one."""
    beside = {name: format_rounded(value, 4) for name, value in naive.readings.items()}
    return "; ".join(
        f"{name} {format_rounded(value, 4)} (naive {beside.get(name, '-')})"
        for name, value in best.readings.items()
    )


def _describe_bound(result: TuningData) -> str:
    if not math.isfinite(result.roof.least_s):
        return ""
    words = f"the least time on the roofline is set by {result.roof}"
    if result.roof.bound == "memory" and (result.best.latency_s or np.inf) < result.roof.least_s:
        return f"{words}; the kernel takes less, because repeated calls find a part of their data in L2"
    return words


def wrap_note(name: str, text: str) -> Iterator[str]:
    """Wrap a named note. Yields no line for an empty text."""
    if text:
        label, indent = f"{name:{_LABEL_WIDTH}}", " " * _LABEL_WIDTH
        yield from textwrap.wrap(text, TABLE_WIDTH, initial_indent=label, subsequent_indent=indent)


def describe_rounding(best: Trial) -> str:
    """Describe the rounding of sums that blocks add to by atomics; "" if there are none."""
    names = ", ".join(best.schedule.program.nondeterministic_outputs)
    words = f"blocks add to {names} in any order, so results differ from run to run by rounding"
    return words if names else ""


def _describe_failures(trials: Sequence[Trial]) -> str:
    """Count failed trials by kind (the status before the colon), with the message of the first of each."""
    parts = (trial.status.partition(":") for trial in trials if not trial.ok)
    kinds = group_pairs((kind, " ".join(message.split())) for kind, _, message in parts)
    first = {kind: f" (first: {found[0]})" if found[0] else "" for kind, found in kinds.items()}
    return "; ".join(f"{kind} {len(found)}{first[kind]}" for kind, found in kinds.items())


def _describe_refusals(refusal_counts: Mapping[str, int], bred_count: int) -> str:
    """Count the genomes that stayed illegal, by rule; "" for the few that repair gives up in any space."""
    total = sum(refusal_counts.values())
    if total <= EXPECTED_ILLEGAL_SHARE * bred_count:
        return ""
    reasons = ", ".join(f"{reason} {number:,}" for reason, number in Counter(refusal_counts).most_common())
    return f"{total:,} of {bred_count:,} bred genomes stayed illegal: {reasons}"


def _describe_saving(result: TuningData) -> str:
    """Compare the best's energy with the fastest's, and say whether the meter shows a saving. Intervals are
    of the saving, 95 %."""
    best, fastest = result.best, result.fastest
    if best.schedule == fastest.schedule:
        return "the best kernel is also the fastest"
    if best.energy_j is None or fastest.energy_j is None:
        return ""
    saved = 100 * (1 - best.energy_j / fastest.energy_j)
    words = f"{abs(saved):.1f}% {'less' if saved >= 0 else 'more'} than the fastest kernel"
    evidence = f"{_describe_slowdown(best, fastest)}; {_describe_evidence(best, fastest)}"
    return f"{words}{evidence}{_describe_saving_interval(result.saving_interval)}"


def _describe_library(result: TuningData) -> str:
    """Compare the library's kernel with the best, or say why none was measured; "" where none was asked."""
    library = result.library
    if library is None:
        return result.library_note
    count = len(library.failures)
    failed = f"; {count} of {library.algorithms} algorithms failed" if count else ""
    throttled = f"; throttled by {', '.join(library.throttle)}" if library.throttle else ""
    return f"the library's kernel is {describe_ratios(library)}; {library.name}{failed}{throttled}"


def _describe_saving_interval(interval: Interval | None) -> str:
    """Describe how sure the model of a simulated device is of the saving; "" for a real device."""
    if interval is None:
        return ""
    low, high = 100 * interval.low, 100 * interval.high
    return f"; the simulator's model allows {low:z.1f}% to {high:z.1f}%"


def _describe_cost(result: TuningData) -> str:
    spent = result.spent
    words = (
        f"{format_figure(spent.joules)} J on the device: {spent.metering_s:.0f} s of metering, "
        f"{format_rounded(spent.timing_s, 2)} s of timing; the host is not counted"
    )
    if result.device.simulated:
        return f"simulated; a real GPU would take {words}"
    if result.device.replayed:
        return f"none now, this is a replay; the recording took {words}"
    return words


def _describe_break_even(result: TuningData) -> str:
    """Describe after how many calls the energy of the search is saved; "" where no saving is shown."""
    calls = result.break_even_calls
    parts = []
    if calls["fastest"] is not None:
        parts.append(f"after {_format_count(calls['fastest'])}, compared with the fastest")
    if calls["baseline"] is not None:
        parts.insert(0, f"after {_format_count(calls['baseline'])} calls, compared with the naive kernel")
    return "; ".join(parts)


def _format_count(value: float | None) -> str:
    """Format a count with two significant digits, in words from a million on."""
    if value is None:
        return "-"
    size, name = next((x for x in _LARGE_NUMBERS if value >= x[0]), (1.0, ""))
    rounded = float(f"{value / size:.2g}")
    return f"{rounded:,.0f}{name}" if rounded >= 10 else f"{rounded:g}{name}"


def _describe_slowdown(best: Trial, fastest: Trial) -> str:
    if not best.latency_s or not fastest.latency_s:
        return ""
    more = 100 * (best.latency_s / fastest.latency_s - 1)
    return f", at {more:.1f}% more latency"


def _describe_evidence(best: Trial, fastest: Trial) -> str:
    if not (best.metered and fastest.metered):
        return "a prediction, because not both were metered"
    found = compare_energies(best, fastest)
    if found is None:
        return "significance unknown, because they were not metered in turn"
    # The saving is what the ratio lacks to 1, so the ends of the interval change places.
    low, high = (100 * (1 - edge) for edge in (found.interval.high, found.interval.low))
    words = "no significant saving"
    if found.is_significant:
        # With the objective edp the best may take more energy than the fastest.
        words = "a significant saving" if low > 0 else "a significant loss, as a saving"
    return f"{words}: {low:z.1f}% to {high:z.1f}%, metered {found.pair_count} times in turn"


CLOCK_NOTE = (
    "A lower clock alone is no better kernel: these figures do not compare with the table above, and a .cu "
    "carries no clock."
)


def make_clock_table(result: TuningData) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Make (headers, rows) of the best schedule at other clocks, which must have been searched."""
    front = result.clock_front
    latency, energy = _choose_units(front)
    clocks = [f"{t.clock_mhz:.0f}" if t.clock_mhz is not None else "-" for t in front]
    rows: list[tuple[str, ...]] = [
        (c, *_format_figures(t, latency[0], energy[0])) for c, t in zip(clocks, front, strict=True)
    ]
    headers = ("clock [MHz]", f"latency [{latency[1]}]", "power [W]", f"energy [{energy[1]}]", "source")
    return headers, rows


def _format_clock_table(result: TuningData) -> str:
    if not result.clock_front:
        return ""
    title = f"The best schedule at other clocks, {result.device.label}. {CLOCK_NOTE}"
    return format_table(*make_clock_table(result), "\n".join(textwrap.wrap(title, TABLE_WIDTH)))
