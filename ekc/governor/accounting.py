"""Savings of a governed job: joules that its work would have cost at the default, less those it took.

A stretch at the default saves nothing. A stretch under other limits did work that would have cost
E / (1 - s) at the default: E are its joules, s is the saving of these limits as read against the default
before and after (A/B/A). All stretches count, those of the search and of the checks too, so their cost is in
the sum. A pause saves nothing. `Savings` has them for the report, with money and CO2. `SimulatedTruth` has
what a simulated job truly saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ekc.governor.decision import choose_static
from ekc.governor.event_records import Event, format_settings
from ekc.governor.phase import Phase
from ekc.governor.protocols import Settings
from ekc.governor.readings import DefaultComparison
from ekc.governor.request import JOULES_PER_KWH, Policy, Tariff
from ekc.governor.simulation.simulated_run import SimulatedJob, SimulatedRun, compute_costs

Z_95 = 1.96
"""Standard errors on each side of a 95 % interval."""
MIN_SHARE_LEFT = 0.05
"""Least share of the default's joules that limits may leave; a fitted curve can say less."""


@dataclass(frozen=True)
class SavingEstimate:
    """Saving of some limits in one phase, as a share of the default's joules per step."""

    saving: float
    error: float
    """Standard error."""
    slowdown: float


@dataclass(frozen=True)
class StaticLimit:
    """The best limit that the whole job could have had from its first second, by the fitted curves."""

    settings: Settings
    saving: float
    """Share of the default's joules."""
    half_width: float
    """Half width of the 95 % interval of the saving."""
    slowdown: float

    def format(self) -> str:
        """Limits and saving with its interval, for people."""
        if self.settings == Settings():
            return "none: no limit saves energy within the budget"
        low, high = self.saving - self.half_width, self.saving + self.half_width
        saving = f"{self.saving:.1%} saved (95 %: {low:.1%} to {high:.1%})"
        return f"{format_settings(self.settings)}: {saving}, {self.slowdown:+z.1%} time, by the fitted curve"


@dataclass(frozen=True)
class Accounted(Event):
    """Savings of the job so far; search and checks are billed."""

    joules: float
    """Joules of the board so far."""
    saved_j: float
    """Joules that the same work would have cost at the default, less `joules`."""
    half_width_j: float
    """Half width of the 95 % interval of `saved_j`, by the errors of the readings; the error of the board's
    meter is not in it."""
    cost_j: float
    """Joules that the final choice of each phase would have saved beyond `saved_j`, held from the start: the
    cost of the search, the checks and earlier choices."""
    static: StaticLimit | None
    """None where no reading was made under any limit."""

    @property
    def saved_share(self) -> float:
        """Saving as a share of what the default would have cost."""
        return self._compute_share(self.saved_j)

    @property
    def share_interval(self) -> tuple[float, float]:
        """95 % interval of the share."""
        low, high = self.saved_j - self.half_width_j, self.saved_j + self.half_width_j
        return self._compute_share(low), self._compute_share(high)

    def _compute_share(self, saved_j: float) -> float:
        default_j = self.joules + saved_j
        return saved_j / default_j if default_j > 0 else 0.0

    def format_line(self) -> str:
        """Joules and share saved, with the interval."""
        low, high = self.share_interval
        share = f"{self.saved_share:.1%} (95 %: {low:.1%} to {high:.1%})"
        return f"saved so far: {self.saved_j:,.0f} J, {share}, search and checks billed"


def account_savings(phases: Sequence[Phase], policy: Policy, at_s: float, joules: float) -> Accounted:
    """The account of a job that took `joules` so far; joules outside of all phases saved nothing."""
    saved = cost = variance = 0.0
    works: list[tuple[Phase, float]] = []
    for phase in phases:
        # Readings of one phase share their defaults, so their errors add; those of two phases do not.
        phase_saved = phase_error = 0.0
        work_j = 0.0
        for settings, used_j in phase.joules_by_settings.items():
            found = estimate_saving(phase, settings)
            default_j = used_j / max(1 - found.saving, MIN_SHARE_LEFT)
            work_j += default_j
            phase_saved += default_j - used_j
            phase_error += default_j * found.error / max(1 - found.saving, MIN_SHARE_LEFT)
        works.append((phase, work_j))
        saved, variance = saved + phase_saved, variance + phase_error**2
        cost += work_j * estimate_saving(phase, phase.choice).saving - phase_saved
    static = choose_static_limit(works, policy, joules + saved)
    return Accounted(at_s, joules, saved, Z_95 * float(np.sqrt(variance)), cost, static)


def estimate_saving(phase: Phase, settings: Settings) -> SavingEstimate:
    """Saving of some limits in one phase: by the curve through all readings at their memory clock."""
    if settings == Settings():
        return SavingEstimate(0.0, 0.0, 0.0)
    value = phase.search.control.get_value(settings)
    if value is None:
        return _average_readings(phase, settings)
    curve = replace(phase.search, memory_mhz=settings.memory_mhz).fit_response(phase.readings)
    place = int(np.searchsorted(curve.values, value))
    saving, error, slowdown = (x[place] for x in (curve.saving, curve.saving_std, curve.slowdown))
    return SavingEstimate(float(saving), float(error), float(slowdown))


def _average_readings(phase: Phase, settings: Settings) -> SavingEstimate:
    """Mean of the readings under limits for which there is no curve, such as a memory clock alone."""
    outcomes = phase.readings.compare_settings(settings)
    if not outcomes:
        return SavingEstimate(0.0, 1.0, 0.0)
    saving, error, slowdown = np.array([(x.saving, _compute_saving_error(x), x.slowdown) for x in outcomes]).T
    weight = error**-2 / (error**-2).sum()
    # The default is common to the readings, so the mean is hardly more exact than the best of them.
    return SavingEstimate(float(weight @ saving), float(error.min()), float(weight @ slowdown))


def _compute_saving_error(outcome: DefaultComparison) -> float:
    """Standard error of the saving of one reading, of its power and of both times."""
    of_time = outcome.power_ratio * np.hypot(outcome.slowdown_error, outcome.default_error)
    return float(np.hypot((1 - outcome.saving) * outcome.power_error, of_time))


def choose_static_limit(
    works: Sequence[tuple[Phase, float]], policy: Policy, default_j: float
) -> StaticLimit | None:
    """The best limit for all phases together at the default memory clock, each with the joules that its work
    costs at the default; `default_j`: those of the whole job."""
    works = [(phase, work_j) for phase, work_j in works if work_j > 0 and len(phase.search.values)]
    if not any(phase.readings.other_readings for phase, _ in works) or not default_j > 0:
        return None
    curves = [replace(p.search, memory_mhz=None).fit_response(p.readings) for p, _ in works]
    values = curves[0].values
    work = np.array([work_j for _, work_j in works])
    work_s = work / np.array([phase.readings.get_default_watts() for phase, _ in works])
    saving = work @ np.array([c.saving for c in curves]) / default_j
    slowdown = work_s @ np.array([c.slowdown for c in curves]) / work_s.sum()
    error = np.sqrt(work**2 @ np.array([c.saving_std for c in curves]) ** 2) / default_j
    place = choose_static(policy, slowdown, saving, default_j, work_s.sum())
    if place is None:
        return StaticLimit(Settings(), 0.0, 0.0, 0.0)
    settings = works[0][0].search.control.make_settings(values[place])
    figures = float(saving[place]), Z_95 * float(error[place]), float(slowdown[place])
    return StaticLimit(settings, *figures)


@dataclass(frozen=True)
class Savings:
    """Net savings of a job, its search and checks billed. `low_`, `high_`: ends of the 95 % interval."""

    joules: float
    """Joules that the same work would have cost at the default, less those that it took."""
    low_j: float
    high_j: float
    kwh: float
    share: float
    """Share of what the default would have cost."""
    low_share: float
    high_share: float
    cost_j: float
    """Cost of search, checks and earlier choices: joules that the final choices would have saved beyond
    `joules`, held from the start."""
    money: float | None
    """Money saved, in `currency`; None without a price."""
    currency: str
    co2_g: float | None
    """Grams of CO2 saved; None without an intensity."""
    static: StaticLimit | None
    """The best limit for the whole job, as the fitted curves estimate it."""

    def format_rows(self) -> list[tuple[str, str]]:
        """Rows of the report: name and text."""
        share = f"{self.share:.1%} of what the default would have cost"
        shares = f"{self.low_share:.1%} to {self.high_share:.1%}"
        rows = [
            ("saved net", f"{self.joules:,.0f} J, {format_kwh(self.kwh)}, {share}"),
            ("", f"95 %: {shares}, {self.low_j:,.0f} to {self.high_j:,.0f} J"),
        ]
        worth = []
        if self.money is not None:
            worth.append(f"{self.money:.{2 if abs(self.money) >= 1 else 4}f} {self.currency}")
        if self.co2_g is not None:
            worth.append(f"{self.co2_g:,.{0 if abs(self.co2_g) >= 100 else 1}f} g CO2")
        if worth:
            rows.append(("worth", ", ".join(worth)))
        rows.append(("billed in it", f"search, checks and earlier choices: {self.cost_j:,.0f} J"))
        if self.static is not None:
            rows.append(("best static", self.static.format()))
        return rows


def format_kwh(kwh: float) -> str:
    """kWh for people: three digits after the point, more below a hundredth."""
    return f"{kwh:,.{3 if abs(kwh) >= 0.01 else 5}f} kWh"


def make_savings(account: Accounted, tariff: Tariff) -> Savings:
    """The savings of an account."""
    low_share, high_share = account.share_interval
    kwh = account.saved_j / JOULES_PER_KWH
    return Savings(
        joules=account.saved_j,
        low_j=account.saved_j - account.half_width_j,
        high_j=account.saved_j + account.half_width_j,
        kwh=kwh,
        share=account.saved_share,
        low_share=low_share,
        high_share=high_share,
        cost_j=account.cost_j,
        money=None if tariff.price is None else kwh * tariff.price,
        currency=tariff.currency,
        co2_g=None if tariff.intensity is None else kwh * tariff.intensity,
        static=account.static,
    )


@dataclass(frozen=True)
class SimulatedTruth:
    """True figures; savings and slowdowns are shares of the joules and seconds at the default."""

    saved_j: float
    saving: float
    static_settings: Settings
    """The best upper limit of the SM clock for the whole job."""
    static_saving: float
    static_slowdown: float

    def format_rows(self) -> list[tuple[str, str]]:
        """Rows of the report: name and text."""
        static = f"{format_settings(self.static_settings)}: {self.static_saving:.1%} saved"
        return [
            ("simulated truth", f"{self.saved_j:,.0f} J saved net, {self.saving:.1%}"),
            ("", f"best static: {static}, {self.static_slowdown:+z.1%} time"),
        ]


def compute_truth(run: SimulatedRun, policy: Policy) -> SimulatedTruth:
    """The truth of a run that has ended."""
    default_j = float(compute_costs(run.job).joules[:, -1, -1].sum())
    static = compute_true_static(run.job, policy)
    return SimulatedTruth(default_j - run.true_j, 1 - run.true_j / default_j, *static)


def compute_true_static(job: SimulatedJob, policy: Policy) -> tuple[Settings, float, float]:
    """(settings, saving, slowdown) of the best SM clock for the whole job, at the default memory clock."""
    costs = compute_costs(job)
    seconds, joules = costs.seconds[:, -1, :].sum(axis=0), costs.joules[:, -1, :].sum(axis=0)
    # No step is slower in a pause.
    is_paused = np.array([stage.is_paused for stage in job.stages])[job.stage_indices]
    worked_s = float(seconds[-1]) - float(job.seconds[is_paused].sum())
    slowdown, saving = (seconds - seconds[-1]) / worked_s, 1 - joules / joules[-1]
    place = choose_static(policy, slowdown, saving, float(joules[-1]), float(seconds[-1]))
    if place is None or place == len(seconds) - 1:
        return Settings(), 0.0, 0.0
    clock = int(job.card.list_sm_clocks_mhz()[place])
    return Settings(sm_mhz=clock), float(saving[place]), float(slowdown[place])
