"""Limits of a whole job as limits of its present phase: a power cap as a share of the default's power, a
deadline as a slowdown of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ekc.governor import objective
from ekc.governor.budget import compute_affordable_slowdown, estimate_remaining_s, estimate_time_loss
from ekc.governor.event_records import Event, format_settings
from ekc.governor.phase import Phase, predict_settings
from ekc.governor.policy import Policy
from ekc.governor.protocols import Settings

CAP_RESERVE = 0.01
"""Share of a power cap that is kept free: two standard errors of a mean of watts."""
DEADLINE_RESERVE = 0.01
"""Share of the time to a deadline, and of the work of the whole job, that is kept free for errors."""
MAX_DEADLINE_SLOWDOWN = 1.0
"""Largest slowdown however far the deadline is: least energy never needs half the speed."""

MIN_BUDGET_SHARE = 0.8
"""Share of the policy's slowdown below which a search had a reduced budget. It then measured no gears that
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
    expected = predict_settings(phase, last.settings)
    is_default = last.settings == Settings()
    share = 1.0 if is_default else objective.compute_power_share(expected.slowdown, expected.saving)
    default_w = last.watts / max(float(share), 1e-3)
    return replace(policy, max_power_share=(policy.power_cap_w or 0.0) * (1 - CAP_RESERVE) / default_w)


def explain_missed_cap(phase: Phase) -> str | None:
    """A line where the choice of a phase draws more than the cap; None where it does not."""
    policy, expected = phase.search.policy, predict_settings(phase, phase.choice)
    ratio = objective.compute_power_share(expected.slowdown, expected.saving)
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
