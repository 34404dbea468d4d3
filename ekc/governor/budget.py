"""What a job has lost so far, and what of its slowdown budget that leaves.

A slowdown that was believed and turns out larger, or a change of the job that was found late, has cost time
that no later choice within the budget gives back. What was lost is reckoned anew whenever the default has
been measured again, and what was lost beyond the budget is saved in what is expected to remain.

Whether a search is worth its price: what remains of the job against what searching costs.
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
    """Seconds that a job took longer than at its default so far, and the error of that."""

    seconds: float
    error: float


def estimate_time_loss(phases: Iterable[Phase]) -> TimeLoss:
    """By what is believed now of every setting that was in force, and for how long it was."""
    lost = error = 0.0
    for phase in phases:
        for settings, seconds in phase.seconds_by_settings.items():
            told = predict_settings(phase, settings)
            lost += seconds * told.slowdown / (1 + told.slowdown)
            # Readings of one phase are held against the same defaults: their errors do not average out.
            error += seconds * told.slowdown_error
    return TimeLoss(lost, error)


def compute_affordable_slowdown(
    policy: Policy, elapsed_s: float, remaining_s: float, loss: TimeLoss
) -> float:
    """The slowdown that what remains of a job may have, so that the whole of it keeps the budget.

    Never more than the budget itself: it is promised of every step, and quick ones buy no slow ones.
    """
    share = add_uncertainty_margin(loss.seconds / elapsed_s, loss.error / elapsed_s) if elapsed_s > 0 else 0.0
    done = elapsed_s - loss.seconds
    spare = policy.max_slowdown * (done + remaining_s) - float(share) * elapsed_s
    return float(np.clip(spare / max(remaining_s, 1.0), 0.0, policy.max_slowdown))


EXPECTED_SAVING = 0.07
"""Share of the watts, expected before anything is known of a job (mean of simulated jobs: 0.06 to 0.1)."""
SEARCH_COST = 0.03
"""Share of the watts that a search wastes while it runs: clocks that are not the best."""
MIN_REMAINING_S = 900.0
"""Where nobody says how long a job runs, as long as it has run is expected again, at least so long."""


@dataclass(frozen=True)
class SearchPayoff:
    """The estimate."""

    remaining_s: float
    search_s: float
    saving_w: float
    waste_w: float

    @property
    def is_worthwhile(self) -> bool:
        """Whether more is saved after the search than it wastes."""
        return max(0.0, self.remaining_s - self.search_s) * self.saving_w > self.search_s * self.waste_w


def estimate_payoff(
    policy: Policy, elapsed_s: float, window_s: float, watts: float, saving: float = EXPECTED_SAVING
) -> SearchPayoff:
    """`elapsed_s`: since the governor began; `window_s`: of one reading; `watts`: at the default."""
    search = 5 * (window_s + 2.0)
    return SearchPayoff(estimate_remaining_s(policy, elapsed_s), search, saving * watts, SEARCH_COST * watts)


def estimate_remaining_s(policy: Policy, elapsed_s: float) -> float:
    """Seconds that a job is expected to go on for."""
    told = policy.remaining_s
    return max(elapsed_s, MIN_REMAINING_S) if told is None else max(0.0, told - elapsed_s)
