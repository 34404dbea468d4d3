"""Slowdown budget of a job: time lost so far, slowdown that the rest may have, and whether a search pays.

A slowdown larger than expected, or a change of the job that was found late, costs time beyond the budget.
The lost time is estimated again after each measurement of the default; the rest of the job has to make up
for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ekc.governor.phase import Phase, predict_settings
from ekc.governor.policy import Policy
from ekc.governor.response_curve import add_uncertainty_margin


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
            expected = predict_settings(phase, settings)
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


def estimate_payoff(
    policy: Policy, elapsed_s: float, window_s: float, watts: float, saving: float = EXPECTED_SAVING
) -> SearchPayoff:
    """Estimate a search; `window_s`: seconds of one reading, `watts`: power at the default."""
    search_s = MIN_READINGS * (window_s + 2.0)
    return SearchPayoff(
        estimate_remaining_s(policy, elapsed_s), search_s, saving * watts, SEARCH_COST * watts
    )


def estimate_remaining_s(policy: Policy, elapsed_s: float) -> float:
    """Expected remaining seconds: those that the user gave, else as long again as the job has run."""
    total_s = policy.remaining_s
    return max(elapsed_s, MIN_REMAINING_S) if total_s is None else max(0.0, total_s - elapsed_s)
