"""Slowdown budget of a job: time lost so far, slowdown that the rest may have, and whether a search pays.

A slowdown larger than expected, or a change of the job that was found late, costs time beyond the budget.
The lost time is estimated again after each measurement of the default; the rest of the job has to make up
for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ekc.governor.decision import add_uncertainty_margin, compute_power_share
from ekc.governor.event_records import Event, format_settings
from ekc.governor.phase import Phase
from ekc.governor.protocols import Settings
from ekc.governor.request import Policy


@dataclass(frozen=True)
class TimeLoss:
    """Time that a job took longer than at its default so far."""

    seconds: float
    error: float
    """Standard error in seconds."""


def estimate_time_loss(phases: Iterable[Phase]) -> TimeLoss:
    """Time lost under every setting so far, by the slowdowns that are expected now."""
    lost = error = 0.0
    for phase in phases:
        for settings, seconds in phase.seconds_by_settings.items():
            expected = phase.predict_settings(settings)
            lost += seconds * expected.slowdown / (1 + expected.slowdown)
            # Readings of one phase share their defaults, so their errors do not average out.
            error += seconds * expected.slowdown_error
    return TimeLoss(lost, error)


def compute_affordable_slowdown(
    policy: Policy, elapsed_s: float, remaining_s: float, loss: TimeLoss
) -> float:
    """Slowdown of the rest of a job that keeps the budget of the whole; at most the budget itself, which is
    promised for every step: fast steps do not allow slower ones."""
    share = 0.0
    if elapsed_s > 0:
        share = float(
            add_uncertainty_margin(loss.seconds / elapsed_s, loss.error / elapsed_s, is_checked=True)
        )
    default_s = elapsed_s - loss.seconds
    spare = policy.max_slowdown * (default_s + remaining_s) - share * elapsed_s
    return float(np.clip(spare / max(remaining_s, 1.0), 0.0, policy.max_slowdown))


EXPECTED_SAVING = 0.07
"""Expected saving before a search, a share of the default's watts (simulated jobs: 0.06 to 0.1)."""
SEARCH_COST = 0.03
"""Power wasted while a search runs at clocks that are not the best, as a share of the default's watts."""
MIN_READINGS = 5
"""Readings of a short search. Where much of the job is left, a search takes about ten (`LimitSearch`)."""
MIN_REMAINING_S = 900.0
"""Least expected remaining seconds of a job whose length the user did not give."""


@dataclass(frozen=True)
class SearchPayoff:
    """Estimated cost and benefit of a search."""

    remaining_s: float
    """Expected remaining seconds of the job, the search included."""
    search_s: float
    saving_w: float
    """Expected mean watts saved after the search."""
    waste_w: float
    """Expected mean watts wasted during the search."""

    @property
    def is_worthwhile(self) -> bool:
        """Whether the joules saved after the search exceed those wasted in it."""
        return max(0.0, self.remaining_s - self.search_s) * self.saving_w > self.search_s * self.waste_w


def estimate_payoff(policy: Policy, elapsed_s: float, window_s: float, watts: float) -> SearchPayoff:
    """Estimate a search; `window_s`: seconds of one reading, `watts`: power at the default."""
    search_s = MIN_READINGS * (window_s + 2.0)
    return SearchPayoff(
        estimate_remaining_s(policy, elapsed_s), search_s, EXPECTED_SAVING * watts, SEARCH_COST * watts
    )


def estimate_remaining_s(policy: Policy, elapsed_s: float) -> float:
    """Expected remaining seconds: those that the user gave, else as long again as the job has run."""
    total_s = policy.remaining_s
    return max(elapsed_s, MIN_REMAINING_S) if total_s is None else max(0.0, total_s - elapsed_s)


CAP_RESERVE = 0.01
"""Share of a power cap that is kept free: two standard errors of a mean of watts."""
DEADLINE_RESERVE = 0.01
"""Share of the time to a deadline, and of the work of the whole job, that is kept free for errors."""
MAX_DEADLINE_SLOWDOWN = 1.0
"""Largest slowdown however far the deadline is: least energy never needs half the speed."""

MIN_BUDGET_SHARE = 0.8
"""Share of the policy's slowdown below which a search had a reduced budget. It then measured no settings that
use the full budget, and is repeated once that is available."""
MIN_DEADLINE_BUDGET = 0.02
"""Slowdown that a deadline must allow before a search is repeated with it."""


@dataclass(frozen=True)
class LimitMissed(Event):
    """A power cap or deadline that cannot be kept."""

    problem: str

    def format_line(self) -> str:
        """The limit and how far it is missed."""
        return self.problem


def make_phase_policy(
    policy: Policy, phase: Phase, phases: Sequence[Phase], elapsed_s: float, step_count: float | None
) -> tuple[Policy, str | None]:
    """(the limits of a job as those of its present phase, the problem where its deadline cannot be kept)."""
    if policy.has_power_cap:
        return _limit_phase_power(policy, phase), None
    loss = estimate_time_loss(phases)
    if policy.deadline_s is None:
        # Pauses do not count: no step was fast in them.
        worked_s = sum(seconds for one in phases for seconds in one.seconds_by_settings.values())
        remaining_s = estimate_remaining_s(policy, elapsed_s)
        budget = compute_affordable_slowdown(policy, worked_s, remaining_s, loss)
        return replace(policy, max_slowdown=budget), None
    left_s = _estimate_left_s(policy, phase, step_count, elapsed_s, loss.seconds)
    if left_s is None:
        problem = "the deadline: nothing tells how much work is left, so the default is kept"
        return replace(policy, max_slowdown=0.0), problem
    limited = _limit_phase_slowdown(policy, elapsed_s, left_s)
    return limited, _explain_missed_deadline(policy, elapsed_s, left_s)


def has_budget_returned(policy: Policy, phase: Phase) -> bool:
    """Whether the phase's last search had a reduced budget, and the full one of the job's policy is available
    now."""
    now, full = phase.search.policy.max_slowdown, policy.max_slowdown
    if policy.deadline_s is not None:
        full = max(now, MIN_DEADLINE_BUDGET)
    was_reduced = policy.objective == "energy" and phase.searched_max_slowdown < MIN_BUDGET_SHARE * full
    return was_reduced and now >= full


def _limit_phase_power(policy: Policy, phase: Phase) -> Policy:
    """The policy with its cap as a share of the default's power now, by the last reading: a reading under
    other limits tells the default's power through the curve."""
    readings = [*phase.readings.default_readings, *phase.readings.other_readings]
    last = max(readings, key=lambda reading: reading.at_s)
    expected = phase.predict_settings(last.settings)
    is_default = last.settings == Settings()
    share = 1.0 if is_default else compute_power_share(expected.slowdown, expected.saving)
    default_w = last.watts / max(float(share), 1e-3)
    return replace(policy, max_power_share=(policy.power_cap_w or 0.0) * (1 - CAP_RESERVE) / default_w)


def explain_missed_cap(phase: Phase) -> str | None:
    """A line where the choice of a phase draws more than the cap; None where it does not."""
    policy, expected = phase.search.policy, phase.predict_choice()
    ratio = compute_power_share(expected.slowdown, expected.saving)
    cap_ratio = (policy.max_power_share or 0.0) / (1 - CAP_RESERVE)
    if ratio <= cap_ratio or policy.power_cap_w is None:
        return None
    watts, settings = policy.power_cap_w * float(ratio) / cap_ratio, format_settings(phase.choice)
    return (
        f"the power cap of {policy.power_cap_w:.0f} W is missed: {watts:.0f} W at {settings}, "
        "the lowest settings within reach"
    )


def _limit_phase_slowdown(policy: Policy, elapsed_s: float, left_s: float) -> Policy:
    """The policy with the slowdown at which `left_s` seconds of work at the default end at the deadline."""
    time_s = ((policy.deadline_s or 0.0) - elapsed_s) * (1 - DEADLINE_RESERVE)
    slowdown = time_s / max(left_s, 1.0) - 1
    return replace(policy, max_slowdown=float(np.clip(slowdown, 0.0, MAX_DEADLINE_SLOWDOWN)))


def _estimate_left_s(
    policy: Policy, phase: Phase, step_count: float | None, elapsed_s: float, lost_s: float
) -> float | None:
    """Seconds of work at the default that are left, with a reserve; None where nothing tells: no steps were
    counted, or the job has run longer than the user expected."""
    if policy.steps_total is None:
        remaining_s = policy.remaining_s or 0.0
        left_s = remaining_s - (elapsed_s - lost_s)
        return left_s + DEADLINE_RESERVE * remaining_s if left_s > 0 else None
    rates = [r.pace.beats for r in phase.readings.default_readings if r.pace.beats > 0]
    if phase.progress.kind != "steps" or not rates or not step_count:
        return None
    # Evaluations count no steps, so the mean over the whole job may be lower than the last reading.
    per_step_s = max(1 / rates[-1], (elapsed_s - lost_s) / step_count)
    left = policy.steps_total - step_count
    return (left + DEADLINE_RESERVE * policy.steps_total) * per_step_s if left > 0 else None


def _explain_missed_deadline(policy: Policy, elapsed_s: float, left_s: float) -> str | None:
    """A line where the job ends after the deadline even at the default; None where it does not."""
    late_s = elapsed_s + left_s - (policy.deadline_s or 0.0)
    if late_s <= 0:
        return None
    return f"the deadline is missed by about {late_s:.0f} s even at the default, which is kept therefore"
