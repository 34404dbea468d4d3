"""What is believed of every SM gear after some readings: slowdown, how sure, and joules saved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.governor import objective
from ekc.governor.curve import POWER, TIME, Curve, Prior, fitted
from ekc.governor.ledger import Ledger
from ekc.governor.policy import Policy
from ekc.governor.samples import Values

WATTS_ERROR = 0.006
"""Standard error of a power ratio of periodic work, beyond that of its pace."""
AIM = 0.98
"""Share of the slowdown budget that is aimed at."""
CAUTION = 0.5
"""How many standard deviations a choice keeps from the budget."""


@dataclass(frozen=True)
class Beliefs:
    """What is expected before any reading of a phase: by a roofline, or by a model."""

    time: Prior = TIME
    power: Prior = POWER


@dataclass(frozen=True)
class Landscape:
    """Arrays over the gears, ascending by clock."""

    clock_mhz: Values
    slowdown: Values
    sigma: Values
    saving: Values

    def choice(self, policy: Policy, caution: float) -> int:
        """Place of the best gear that keeps its budget; the top one where none does."""
        careful = self.slowdown + caution * self.sigma
        aimed = (
            np.where(self.slowdown > 0, careful / AIM, 0.0) if policy.objective == "energy" else self.slowdown
        )
        allowed = objective.violation(policy, aimed, self.saving) <= 0
        scores = objective.score(policy, self.slowdown, self.saving)
        return int(np.where(allowed, scores, np.inf).argmin()) if allowed.any() else len(scores) - 1


def landscape(ledger: Ledger, gears: Values, beliefs: Beliefs, memory_mhz: int | None = None) -> Landscape:
    """Beliefs and readings at one memory clock, joined."""
    base = ledger.clock_mhz()
    points = [
        r for r in ledger.others if r.settings.memory_mhz == memory_mhz and r.settings.sm_mhz is not None
    ]
    outcomes = [ledger.outcome(r) for r in points]
    at = np.array([float(r.settings.sm_mhz or base) for r in points])
    time, power = _curves(at, base, outcomes_arrays(outcomes), beliefs)
    # Kernels can take no longer than all of them following the clock: a bound that no noise can break.
    bound = ledger.sm_util() * slower(gears, base)
    told = not outcomes or any(np.isfinite(o.slowdown) for o in outcomes)
    slowdown = np.clip(time.at(slower(gears, base)), 0.0, bound) if told else bound
    sigma = time.sigma(slower(gears, base)) if told else np.zeros_like(bound)
    watts = np.clip(1 + power.at(lower(gears, base)), 0.05, 1.2)
    return Landscape(gears, slowdown, sigma, 1 - watts * (1 + slowdown))


def slower(clock_mhz: Values, base: float) -> Values:
    """How much longer a cycle takes than at the base clock; 0 above it."""
    return np.asarray(np.maximum(0.0, base / np.asarray(clock_mhz, float) - 1))


def lower(clock_mhz: Values, base: float) -> Values:
    """By what share a clock is below the base; 0 above it."""
    return np.asarray(np.maximum(0.0, 1 - np.asarray(clock_mhz, float) / base))


def outcomes_arrays(outcomes: list) -> tuple[Values, Values, Values]:  # type: ignore[type-arg]
    """Slowdown, its error, power over default's: arrays over outcomes."""
    return (
        np.array([o.slowdown for o in outcomes]),
        np.array([o.error for o in outcomes]),
        np.array([o.power for o in outcomes]),
    )


def _curves(
    at: Values, base: float, told: tuple[Values, Values, Values], beliefs: Beliefs
) -> tuple[Curve, Curve]:
    slowdown, error, power = told
    known = np.isfinite(slowdown)
    time = fitted(slower(at[known], base), slowdown[known], error[known], beliefs.time)
    # Where work comes in no beat, what it draws varies as its pace does.
    off = np.hypot(WATTS_ERROR, 0.5 * np.where(known, error, 0.0))
    return time, fitted(lower(at, base), power - 1, off, beliefs.power)
