"""What is better: scores of settings relative to the default, and which of them are allowed."""

from __future__ import annotations

import numpy as np

from ekc.governor.policy import Policy
from ekc.governor.samples import Values

Share = Values | float


def score(policy: Policy, slowdown: Share, saving: Share) -> Values:
    """Lower is better; the default has 1. Arrays of one shape: share of time lost, share of joules saved."""
    time, energy = 1 + np.asarray(slowdown), 1 - np.asarray(saving)
    if policy.objective == "speed":
        return np.asarray(time)
    return np.asarray(energy * time ** {"energy": 0, "edp": 1, "ed2p": 2}[policy.objective])


def violation(policy: Policy, slowdown: Share, saving: Share) -> Values:
    """How far outside the budget, as a share; 0 or less is within."""
    if policy.objective == "energy":
        return np.asarray(slowdown) - policy.max_slowdown
    if policy.objective == "speed":
        return policy.min_saving - np.asarray(saving)
    return np.full(np.shape(slowdown), -1.0)


def best(policy: Policy, slowdown: Values, saving: Values) -> int | None:
    """Place of the best among those within the budget; None where none is."""
    allowed = violation(policy, slowdown, saving) <= 0
    if not allowed.any():
        return None
    return int(np.where(allowed, score(policy, slowdown, saving), np.inf).argmin())
