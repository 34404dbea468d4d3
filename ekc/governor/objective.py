"""Score and budget violation of settings relative to the default, by the objective of a policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ekc.governor.policy import Policy
from ekc.governor.samples import Values

Shares = Values | float


def compute_score(policy: Policy, slowdown: Shares, saving: Shares) -> Values:
    """Score of settings, lower is better; slowdown and saving are shares of the default, which has 1."""
    time, energy = 1 + np.asarray(slowdown), 1 - np.asarray(saving)
    if policy.objective == "speed":
        return np.asarray(time)
    return np.asarray(energy * time ** {"energy": 0, "edp": 1, "ed2p": 2}[policy.objective])


def compute_violation(policy: Policy, slowdown: Shares, saving: Shares) -> Values:
    """Distance beyond the budget, as a share; 0 or less is within the budget."""
    if policy.max_power_share is not None:
        return compute_power_share(slowdown, saving) - policy.max_power_share
    if policy.objective == "energy":
        return np.asarray(slowdown) - policy.max_slowdown
    if policy.objective == "speed":
        return policy.min_saving - np.asarray(saving)
    return np.full(np.shape(slowdown), -1.0)


def compute_power_share(slowdown: Shares, saving: Shares) -> Values:
    """Power as a share of the default's."""
    return np.asarray((1 - np.asarray(saving)) / (1 + np.asarray(slowdown)))


def find_static(
    policy: Policy, slowdown: Values, saving: Values, default_j: float, default_s: float
) -> int | None:
    """Place of the best limit for a whole job that takes `default_j` in `default_s` at the default; None
    where the default is as good, or nothing is within the budget."""
    if policy.power_cap_w is not None:
        policy = replace(policy, max_power_share=policy.power_cap_w * default_s / default_j)
    if policy.deadline_s is not None:
        policy = replace(policy, max_slowdown=float(np.clip(policy.deadline_s / default_s - 1, 0, 1)))
    # The default itself, with neither loss nor gain, is one of the choices.
    slowdown, saving = np.append(slowdown, 0.0), np.append(saving, 0.0)
    place = find_best(policy, slowdown, saving)
    return None if place == len(slowdown) - 1 else place


def find_best(policy: Policy, slowdown: Values, saving: Values) -> int | None:
    """Place of the best score within the budget; None where nothing is within the budget."""
    allowed = compute_violation(policy, slowdown, saving) <= 0
    if not allowed.any():
        return None
    return int(np.where(allowed, compute_score(policy, slowdown, saving), np.inf).argmin())
