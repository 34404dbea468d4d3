"""What a job has lost so far, and what of its slowdown budget that leaves.

A slowdown that was believed and turns out larger, or a change of the job that was found late, has cost time
that no later choice within the budget gives back. What was lost is reckoned anew whenever the default has
been measured again, and what was lost beyond the budget is saved in what is expected to remain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ekc.governor.landscape import add_uncertainty_margin
from ekc.governor.phase import Phase, predict_settings
from ekc.governor.policy import Policy


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
