"""What is believed of every gear of a knob after some readings: slowdown, how sure, and joules saved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.governor import objective
from ekc.governor.curve import Curve, Prior, fitted
from ekc.governor.knob import Knob
from ekc.governor.ledger import Ledger
from ekc.governor.policy import Policy
from ekc.governor.samples import Values

STRAY = 1.5
"""Standard deviations from the curve beyond which a reading loses weight."""

SURE = 0.007
"""Standard deviation of a slowdown up to which it counts as known."""
CAUTION = 0.5
"""Of what it is beyond that, added to the slowdown."""


@dataclass(frozen=True)
class Beliefs:
    """What is expected before any reading of a phase: by the knob, or by a model."""

    time: Prior
    power: Prior


@dataclass(frozen=True)
class Landscape:
    """Arrays over the gears, ascending."""

    gears: Values
    slowdown: Values
    sigma: Values
    saving: Values
    saving_sigma: Values

    def choice(self, policy: Policy) -> int:
        """Place of the best gear that is believed to keep its budget; the top one where none does.

        What is known well is taken at its word; where progress is hard to tell, a choice keeps its distance.
        """
        best = objective.best(policy, careful(self.slowdown, self.sigma), self.saving)
        return len(self.gears) - 1 if best is None else best


def careful(slowdown: Values | float, sigma: Values | float) -> Values:
    """The slowdown that is reckoned with: what is not known well is taken for more."""
    return np.asarray(slowdown + CAUTION * np.maximum(0.0, np.asarray(sigma) - SURE))


def landscape(
    ledger: Ledger, knob: Knob, gears: Values, beliefs: Beliefs, base: float, memory_mhz: int | None
) -> Landscape:
    """Beliefs and readings at one memory clock, joined; `base` is the default on the knob's scale."""
    points = [r for r in ledger.others if r.settings.memory_mhz == memory_mhz and knob.of(r.settings)]
    outcomes = [ledger.outcome(r) for r in points]
    at = np.array([knob.of(r.settings) for r in points], float)
    told = np.array([np.isfinite(o.slowdown) for o in outcomes], bool)
    slowdown = np.array([o.slowdown for o in outcomes])[told]
    error = np.array([o.error for o in outcomes])[told]
    shared = float(np.median([o.shared for o in outcomes if np.isfinite(o.slowdown)] or [0.0]))
    time = _robust(slower(at[told], base), slowdown, error, beliefs.time, shared)
    power_error = np.array([o.power_error for o in outcomes])
    power = _robust(
        lower(at, base), np.array([o.power for o in outcomes]) - 1, power_error, beliefs.power, 0.0
    )
    # Kernels can take no longer than all of them following the clock: a bound that no noise can break.
    x = slower(gears, base)
    bound = ledger.sm_util() * x if knob.bounded else 3 * x
    expected = np.minimum(_rising(time.at(x)), bound) if told.any() or not len(told) else bound
    sigma = np.minimum(time.sigma(x), 0.5 * bound)
    watts = np.clip(1 + power.at(lower(gears, base)), 0.05, 1.2)
    unsure = np.hypot(sigma, power.sigma(lower(gears, base)))
    return Landscape(gears, expected, sigma, 1 - watts * (1 + expected), unsure)


def _rising(over_falling_clock: Values) -> Values:
    """A lower clock is never faster; gears ascend."""
    return np.asarray(np.maximum.accumulate(np.maximum(0.0, over_falling_clock[::-1]))[::-1])


def _robust(x: Values, y: Values, error: Values, prior: Prior, shared: float) -> Curve:
    """A curve that a stray reading (an evaluation, a pause) moves little: what lies far off counts for
    less."""
    curve = fitted(x, y, error, prior, shared)
    if len(x) < 3:
        return curve
    for _ in range(2):
        far = np.abs(y - curve.at(x)) / np.sqrt(error**2 + shared**2 + curve.sigma(x) ** 2)
        curve = fitted(x, y, error * np.maximum(1.0, far / STRAY), prior, shared)
    return curve


def slower(limit: Values, base: float) -> Values:
    """Default over limit, less 1: how much longer a cycle takes; 0 where the limit does not bind."""
    return np.asarray(np.maximum(0.0, base / np.asarray(limit, float) - 1))


def lower(limit: Values, base: float) -> Values:
    """By what share a limit is below the default; 0 where it does not bind."""
    return np.asarray(np.maximum(0.0, 1 - np.asarray(limit, float) / base))
