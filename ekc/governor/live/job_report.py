"""The log of a governed job (events and a thinned trace of the sensors), and its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from ekc.governor.accounting import Accounted, Savings, SimulatedTruth, make_savings
from ekc.governor.advise import Advised
from ekc.governor.event_records import (
    Applied,
    Checked,
    Chosen,
    Ended,
    Event,
    Measured,
    PeriodFound,
    Planned,
    Shifted,
    Skipped,
    format_settings,
)
from ekc.governor.request import Tariff
from ekc.governor.samples import SensorSamples, finite_mean
from ekc.tables import count_nouns

TRACE_STEP_S = 1.0
"""Seconds of each mean in the trace."""
E = TypeVar("E", bound=Event)


@dataclass
class GovernorLog:
    """Events and trace of one GPU or group, filled while the loop runs."""

    name: str
    simulated: bool
    events: list[Event] = field(default_factory=list)
    trace: list[tuple[float, float, float]] = field(default_factory=list)
    """(seconds on the probe's clock, watts of the board, SM clock in MHz)."""
    problem: str | None = None
    """Reason why governing ended before the job; None where it did not."""

    def select_events(self, kind: type[E]) -> list[E]:
        """All events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def add_samples(self, samples: SensorSamples) -> None:
        """Add means over each `TRACE_STEP_S` to the trace."""
        if not len(samples):
            return
        rows = np.stack([samples.time_s, samples.power_w, samples.clock_mhz])
        cuts = np.flatnonzero(np.diff(np.floor(samples.time_s / TRACE_STEP_S))) + 1
        for part in np.split(rows, cuts, axis=1):
            at, watts, clock = (finite_mean(row) for row in part)
            self.trace.append((at, watts, clock))


@dataclass(frozen=True)
class GovernorReport:
    """Report on one GPU or group. Power and energy are the board's; None where something was not measured."""

    name: str
    simulated: bool
    seconds: float | None
    """Seconds that the job was governed."""
    joules: float | None
    """Joules of the board in that time."""
    iterations: str | None
    """Verdict and period of the detector, for people."""
    choice: str | None
    """Chosen limits, for people."""
    slowdown: float | None
    """Slowdown of the choice, as a share of the default's time per step."""
    half_width: float | None
    """Half width of the 95 % interval of the slowdown, from A/B/A checks."""
    saving: float | None
    """Joules per step saved, as a share of the default's."""
    choice_w: float | None
    """Mean watts of the last reading under the chosen limits."""
    checks: int
    """Number of A/B/A checks."""
    search_s: float
    search_j: float
    """Joules of the board during all searches."""
    shifts: int
    advice: Advised | None
    """The last advice, where only advice was asked for or possible."""
    savings: Savings | None
    """None where nothing could be set."""
    truth: SimulatedTruth | None
    """True figures of a simulated job; None for a real one."""
    problem: str | None
    """Reason why governing ended before the job; None where it did not."""

    def format_lines(self) -> list[str]:
        """The report as lines for people."""
        rows = [("governed", self.name), *self._format_energy(), *self._format_outcome()]
        if self.savings is not None:
            rows += self.savings.format_rows()
        if self.truth is not None:
            rows += self.truth.format_rows()
        if self.problem:
            rows.append(("not to the end", self.problem))
        return [f"  {name:15} {text}" for name, text in rows]

    def _format_energy(self) -> list[tuple[str, str]]:
        if self.seconds is None or self.joules is None:
            return [("energy", "not measured to the end")]
        mean = self.joules / self.seconds if self.seconds else 0.0
        return [("energy", f"{self.joules:,.0f} J of the board in {self.seconds:,.0f} s, {mean:.0f} W")]

    def _format_outcome(self) -> list[tuple[str, str]]:
        rows = [("iterations", self.iterations or "not looked for")]
        if self.choice is None:
            return [*rows, ("limits", "none chosen: the job ended first, or a search would not have paid")]
        rows.append(("limits", self.choice))
        if self.advice is not None:
            rows += [("measured", line) for line in self.advice.baseline.format_lines()]
            rows.append(("assumed", self.advice.format_assumption()))
        elif self.slowdown is not None and self.saving is not None:
            rows.append(("time per step", self._format_interval(self.slowdown)))
            rows.append(("energy per step", f"{-self.saving:+z.1%}"))
        if self.choice_w is not None:
            rows.append(("power", f"{self.choice_w:.0f} W under these limits, in the last reading"))
        if self.search_s:
            cost = f"{self.search_s:.0f} s, {self.search_j:,.0f} J"
            rows.append(("search", f"{cost}; {count_nouns(self.shifts, 'change')} of the job"))
        return rows

    def _format_interval(self, slowdown: float) -> str:
        if self.half_width is None:
            return f"{slowdown:+z.1%} expected; not checked against the default again"
        low, high = slowdown - self.half_width, slowdown + self.half_width
        return (
            f"{slowdown:+z.1%} (95 %: {low:+z.1%} to {high:+z.1%}, {count_nouns(self.checks, 'A/B/A check')})"
        )


def build_report(
    log: GovernorLog, tariff: Tariff | None = None, truth: SimulatedTruth | None = None
) -> GovernorReport:
    """The report of a log, with money and CO2 where a tariff is given, and the truth of a simulated job."""
    ended, periods = log.select_events(Ended), log.select_events(PeriodFound)
    chosen = log.select_events(Chosen)
    accounts = log.select_events(Accounted)
    checks = _list_checks(log)
    outcome = checks[-1] if checks else _find_expectation(log)
    return GovernorReport(
        name=log.name,
        simulated=log.simulated,
        seconds=ended[-1].seconds if ended else None,
        joules=ended[-1].joules if ended else None,
        iterations=periods[-1].format_line().removeprefix("iterations: ") if periods else None,
        choice=_format_choice(log),
        slowdown=outcome.slowdown if outcome else None,
        half_width=checks[-1].half_width if checks else None,
        saving=outcome.saving if outcome else None,
        choice_w=_find_choice_watts(log),
        checks=len(checks),
        search_s=sum(x.search_s for x in chosen),
        search_j=sum(x.search_j for x in chosen),
        # A change to an earlier phase is reported twice.
        shifts=sum(x.level != "known" for x in log.select_events(Shifted)),
        advice=advice[-1] if (advice := log.select_events(Advised)) else None,
        savings=make_savings(accounts[-1], tariff or Tariff()) if accounts else None,
        truth=truth,
        problem=log.problem,
    )


def _find_last_decision(log: GovernorLog) -> Chosen | Planned | Advised | Skipped | Shifted | None:
    """The event by which limits were decided last: a search, a skipped one, a plan, advice, or a returned
    phase."""
    for event in reversed(log.events):
        if isinstance(event, Chosen | Planned | Advised | Skipped):
            return event
        if isinstance(event, Shifted) and event.level == "known":
            return event
    return None


def _list_checks(log: GovernorLog) -> list[Checked]:
    """Checks since the last decision; earlier ones belong to another phase."""
    decision = _find_last_decision(log)
    return [x for x in log.select_events(Checked) if decision is None or x.at_s >= decision.at_s]


def _find_expectation(log: GovernorLog) -> Chosen | Planned | Advised | None:
    """The expected outcome where nothing was checked; for a returned phase, that of its own search."""
    decision = _find_last_decision(log)
    if isinstance(decision, Skipped):
        return None
    if not isinstance(decision, Shifted):
        return decision
    same = [x for x in log.select_events(Chosen) if format_settings(x.settings) == _format_choice(log)]
    return same[-1] if same else None


def _find_choice_watts(log: GovernorLog) -> float | None:
    """Watts of the last reading under the last choice."""
    choice = _format_choice(log)
    readings = [x.reading for x in log.select_events(Measured)]
    watts = [r.watts for r in readings if format_settings(r.settings) == choice]
    return watts[-1] if watts else None


def _format_choice(log: GovernorLog) -> str | None:
    """The last choice for people, as moved by checks since."""
    choices: list[Chosen | Planned | Advised] = [
        *log.select_events(Chosen),
        *log.select_events(Planned),
        *log.select_events(Advised),
    ]
    if not choices or isinstance(_find_last_decision(log), Skipped):
        return None
    if isinstance(choices[-1], Advised):
        return f"advised, not set: {format_settings(choices[-1].settings)}"
    applied = [x for x in log.select_events(Applied) if x.at_s >= choices[-1].at_s]
    settings = [x.settings for x in applied if x.why.startswith(("the choice", "the check moved"))]
    return format_settings((settings or [choices[-1].settings])[-1])
