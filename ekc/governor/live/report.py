"""The log of a governed job (events and a thinned trace of the sensors), its report, and a plot of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ekc.errors import InvalidInput
from ekc.governor.advise import Advised
from ekc.governor.events import (
    Applied,
    Checked,
    Chosen,
    Ended,
    Event,
    Measured,
    PeriodFound,
    Shifted,
    Skipped,
    format_settings,
    to_plain_json,
)
from ekc.governor.samples import SensorSamples, Values

TRACE_STEP_S = 1.0
"""The trace keeps one mean per this long."""
E = TypeVar("E", bound=Event)


@dataclass
class GovernorLog:
    """Filled while the loop runs, read by report and plot. `simulated` where no real GPU was behind it."""

    name: str
    simulated: bool
    events: list[Event] = field(default_factory=list)
    trace: list[tuple[float, float, float]] = field(default_factory=list)
    """Second on the probe's clock, watts of the board, SM clock [MHz]."""
    problem: str | None = None
    """Why governing ended before the job did."""

    def select_events(self, kind: type[E]) -> list[E]:
        """All events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def add_samples(self, samples: SensorSamples) -> None:
        """Keep the means of each `THIN_S`."""
        if not len(samples):
            return
        rows = np.stack([samples.time_s, samples.power_w, samples.clock_mhz])
        cuts = np.flatnonzero(np.diff(np.floor(samples.time_s / TRACE_STEP_S))) + 1
        for part in np.split(rows, cuts, axis=1):
            at, watts, clock = (_finite_mean(row) for row in part)
            self.trace.append((at, watts, clock))


def _finite_mean(row: Values) -> float:
    good = row[~np.isnan(row)]
    return float(good.mean()) if len(good) else float("nan")


@dataclass(frozen=True)
class GovernorReport:
    """Of one GPU or group. Everything is the whole board's; None is what was not measured."""

    name: str
    simulated: bool
    seconds: float | None
    joules: float | None
    iterations: str | None
    choice: str | None
    slowdown: float | None
    """Share of the default's time per step."""
    half_width: float | None
    """95 % interval of the slowdown, from measuring the default again between stretches of the choice."""
    saving: float | None
    """Share of the default's joules per step."""
    checks: int
    search_s: float
    search_j: float
    shifts: int
    problem: str | None

    def format_lines(self) -> list[str]:
        """For people."""
        rows = [("governed", self.name), *self._format_energy(), *self._format_outcome()]
        if self.problem:
            rows.append(("not to the end", self.problem))
        return [f"  {name:15} {text}" for name, text in rows]

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        found: dict[str, Any] = to_plain_json(self)
        return found

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
        if self.slowdown is not None and self.saving is not None:
            rows += [
                ("time per step", self._format_interval(self.slowdown)),
                ("energy per step", f"{-self.saving:+.1%}"),
            ]
        if self.search_s:
            rows.append(
                ("search", f"{self.search_s:.0f} s, {self.search_j:,.0f} J; {self.shifts} changes of the job")
            )
        return rows

    def _format_interval(self, slowdown: float) -> str:
        if self.half_width is None:
            return f"{slowdown:+.1%} expected; not checked against the default again"
        low, high = slowdown - self.half_width, slowdown + self.half_width
        return f"{slowdown:+.1%} (95 %: {low:+.1%} to {high:+.1%}, {self.checks} A/B/A checks)"


def build_report(governor_log: GovernorLog) -> GovernorReport:
    """From what the loop told."""
    ended, chosen, found = (
        governor_log.select_events(Ended),
        governor_log.select_events(Chosen),
        governor_log.select_events(PeriodFound),
    )
    checked = _list_checks(governor_log)
    promise = checked[-1] if checked else _find_expectation(governor_log)
    return GovernorReport(
        name=governor_log.name,
        simulated=governor_log.simulated,
        seconds=ended[-1].seconds if ended else None,
        joules=ended[-1].joules if ended else None,
        iterations=found[-1].format_line().removeprefix("iterations: ") if found else None,
        choice=_format_choice(governor_log),
        slowdown=promise.slowdown if promise else None,
        half_width=checked[-1].half_width if checked else None,
        saving=promise.saving if promise else None,
        checks=len(checked),
        search_s=sum(x.search_s for x in chosen),
        search_j=sum(x.search_j for x in chosen),
        # One to a phase seen before is told twice.
        shifts=sum(x.level != "known" for x in governor_log.select_events(Shifted)),
        problem=governor_log.problem,
    )


def _find_last_decision(governor_log: GovernorLog) -> Chosen | Advised | Skipped | Shifted | None:
    """What limits were decided by last: a search, one that was left out, advice, or a phase seen before."""
    for event in reversed(governor_log.events):
        if isinstance(event, Chosen | Advised | Skipped) or (
            isinstance(event, Shifted) and event.level == "known"
        ):
            return event
    return None


def _list_checks(governor_log: GovernorLog) -> list[Checked]:
    """Of what was decided last: those of an earlier phase say nothing of it."""
    settled = _find_last_decision(governor_log)
    return [x for x in governor_log.select_events(Checked) if settled is None or x.at_s >= settled.at_s]


def _find_expectation(governor_log: GovernorLog) -> Chosen | Advised | None:
    """Where nothing was checked; of a phase seen before, what its own search had promised."""
    settled = _find_last_decision(governor_log)
    if isinstance(settled, Skipped):
        return None
    if not isinstance(settled, Shifted):
        return settled
    same = [
        x
        for x in governor_log.select_events(Chosen)
        if format_settings(x.settings) == _format_choice(governor_log)
    ]
    return same[-1] if same else None


def _format_choice(governor_log: GovernorLog) -> str | None:
    """What was chosen last; a check may have moved it since."""
    told: list[Chosen | Advised] = [*governor_log.select_events(Chosen), *governor_log.select_events(Advised)]
    if not told or isinstance(_find_last_decision(governor_log), Skipped):
        return None
    if isinstance(told[-1], Advised):
        return f"advised, not set: {format_settings(told[-1].settings)}"
    since = [x for x in governor_log.select_events(Applied) if x.at_s >= told[-1].at_s]
    held = [x.settings for x in since if x.why.startswith(("the choice", "the check moved"))]
    return format_settings((held or [told[-1].settings])[-1])


def plot_log(governor_log: GovernorLog, file: Path) -> None:
    """Three panels over one axis of minutes. Raises `InvalidInput` without matplotlib, or for a bad file."""
    check_plot_file(file)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    clock, power, period = figure.subplots(3, sharex=True)
    trace = np.array(governor_log.trace or [(0.0, np.nan, np.nan)])
    minutes = (trace[:, 0] - trace[0, 0]) / 60
    clock.plot(minutes, trace[:, 2], linewidth=0.8, label="SM clock")
    _plot_limits(clock, governor_log, trace[0, 0], minutes[-1])
    power.plot(minutes, trace[:, 1], linewidth=0.8)
    seen = [
        (x.reading.at_s, 1 / x.reading.pace.beats)
        for x in governor_log.select_events(Measured)
        if x.reading.pace.beats > 0
    ]
    at, seconds = np.array(seen or [(np.nan, np.nan)]).T
    period.plot((at - trace[0, 0]) / 60, seconds, "o", markersize=3)
    for shift in governor_log.select_events(Shifted):
        for axes in (clock, power, period):
            axes.axvline((shift.at_s - trace[0, 0]) / 60, color="gray", linestyle=":")
    clock.set(ylabel="MHz", title=governor_log.name)
    power.set(ylabel="W, whole board", ylim=(0, None))
    period.set(ylabel="iteration [s]", xlabel="minutes", ylim=(0, None))
    figure.savefig(file)


def check_plot_file(file: Path) -> None:
    """Refuse before the job starts what could not be drawn after it. Raises `InvalidInput`."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as problem:
        raise InvalidInput(
            "--plot needs matplotlib: pip install matplotlib, or leave --plot out"
        ) from problem
    kinds = FigureCanvasBase.get_supported_filetypes()
    if file.suffix.removeprefix(".") not in kinds:
        raise InvalidInput(f"--plot {file}: it must end in one of {', '.join(sorted(kinds))}")
    if not file.absolute().parent.is_dir():
        raise InvalidInput(f"--plot {file}: there is no folder {file.parent}")


def _plot_limits(axes: Any, governor_log: GovernorLog, start_s: float, end_min: float) -> None:
    """The SM limit in force, where there is one."""
    told = [
        ((x.at_s - start_s) / 60, x.settings.sm_mhz or np.nan) for x in governor_log.select_events(Applied)
    ]
    if told:
        at, limit = np.array([*told, (end_min, told[-1][1])]).T
        axes.step(at, limit, where="post", color="black", linewidth=1.2, label="limit set")
        axes.legend(fontsize="small")
