"""Search over the gears of a limit: which gear to measure next, and which one is best.

GPOEO brackets by steps of a tenth of the gears and closes in by golden section. Here a curve is fitted to
the readings after each of them; it says where the budget ends and where energy is least, and a bracket
around that gear confirms it. That takes two or three readings instead of seven to nine.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erf
from typing import Literal

import numpy as np

from ekc.governor import objective
from ekc.governor.policy import Policy
from ekc.governor.readings import PhaseReadings
from ekc.governor.response_curve import (
    ControlVariable,
    ResponseCurve,
    ResponsePrior,
    add_uncertainty_margin,
    compute_lengthening,
    fit_response_curve,
)
from ekc.governor.samples import Values

SAME_POINT_SHARE = 0.02
"""Relative distance below which two gears count as one point."""
MAX_STEP_FACTOR = 2.2
"""Largest lengthening of the next point, as a multiple of the largest one measured so far."""
MAX_POINTS = 12
"""Most readings in a search; where progress is noisy, several are of one point."""
MAX_UNCERTAIN_POINTS = 3
"""Most readings where a reading of a minute has a large error: long readings under the choice are then more
exact, and cost nothing. Not for coarse gears, each of which has to be tried."""
MAX_CHOICE_FACTOR = 1.3
"""Largest lengthening of a choice, as a multiple of the largest one measured so far."""
FIRST_POINT_SLOWDOWN = 0.6
"""Slowdown over lengthening that is assumed for the first point without a model."""
UNBOUNDED_FIRST_X = 0.2
"""Lengthening of the first point where no slowdown budget applies."""
READING_COST = 0.004
"""Least expected gain of a reading, as a share of the energy."""
MIN_DEFAULTS = 3
MORE_DEFAULTS = 5

Proposal = int | Literal["default"] | None


@dataclass(frozen=True)
class LimitSearch:
    """A search in one phase at one memory clock; its state is in the readings."""

    policy: Policy
    control: ControlVariable
    gears: Values
    """Values of the limit, ascending."""
    prior: ResponsePrior
    memory_mhz: int | None = None
    predicted_prior: ResponsePrior | None = None
    """A model's prediction. It picks the first point, and is not used after the first reading: even weighted
    by its error on other jobs it would pull the curve towards their mean."""

    def get_default_limit(self, readings: PhaseReadings) -> float:
        """Value of the limit above which it does not bind; the top gear where that was not measured."""
        return float(np.fmin(self.control.get_default_value(readings), self.gears[-1]))

    def fit_response(self, readings: PhaseReadings) -> ResponseCurve:
        """The curve after the readings so far."""
        prior = self.prior if len(self.list_tried_gears(readings)) else self.predicted_prior or self.prior
        return fit_response_curve(
            readings, self.control, self.gears, prior, self.get_default_limit(readings), self.memory_mhz
        )

    def is_default_within_cap(self) -> bool:
        """Whether the fastest settings, the default, keep the power cap; False without a cap."""
        return self.policy.max_power_share is not None and self.policy.max_power_share >= 1

    def choose_gear(self, readings: PhaseReadings) -> float | None:
        """The best gear near enough to the readings; None where the default is best."""
        response = self.fit_response(readings)
        return self._get_gear_if_better(readings, response, response.choose_index(self.policy))

    def advise_gear(self, readings: PhaseReadings) -> float | None:
        """The best gear within the budget, however far from the readings; None where the default is best."""
        response = self.fit_response(readings)
        return self._get_gear_if_better(readings, response, response.choose_index(self.policy))

    def _get_gear_if_better(
        self, readings: PhaseReadings, response: ResponseCurve, place: int
    ) -> float | None:
        """The gear at a place; None where the default is as good."""
        if self.is_default_within_cap():
            return None
        is_better = objective.compute_score(self.policy, response.slowdown[place], response.saving[place]) < 1
        is_free = response.gears[place] >= self.get_default_limit(readings)
        if self.policy.objective != "speed" and (not is_better or is_free):
            return None
        return float(response.gears[place])

    def propose_next(self, readings: PhaseReadings) -> Proposal:
        """What to measure next: the place of a gear, or the default again; None where the search is over."""
        if self.is_default_within_cap():
            return None
        tried = self.list_tried_gears(readings)
        if len(tried) == 0:
            return self._propose_first(readings)
        defaults = len(readings.default_readings)
        is_surprised = readings.estimate_error_factor("beats") > 1
        if defaults < min(MORE_DEFAULTS if is_surprised else MIN_DEFAULTS, 1 + len(tried)):
            return "default"
        if len(tried) >= self._get_max_points(readings) or defaults >= MAX_POINTS:
            return None
        response = self.fit_response(readings)
        choice = response.choose_index(self.policy)
        is_limiting = self.gears < self.get_default_limit(readings)
        is_limiting[: self.find_lowest_reachable(tried, readings)] = False
        worth = np.where(is_limiting, self._estimate_worth(response, choice, of_default=False), 0.0)
        of_default = np.where(is_limiting, self._estimate_worth(response, choice, of_default=True), 0.0).max()
        place = int(worth.argmax())
        if max(worth[place], of_default) > READING_COST:
            return place if worth[place] >= of_default else "default"
        is_read = (np.abs(tried / self.gears[choice] - 1) < SAME_POINT_SHARE).any()
        is_free = self.gears[choice] >= self.get_default_limit(readings)
        return None if is_free or is_read else choice

    def _estimate_worth(self, response: ResponseCurve, choice: int, of_default: bool) -> Values:
        """Expected gain in score, for each reading, by reading each gear (or the default) once or more, if
        that moved the choice there."""
        score = objective.compute_score(self.policy, response.slowdown, response.saving)
        gap = min(float(score[choice]), 1.0) - score
        violation = objective.compute_violation(self.policy, response.slowdown, response.saving)
        worth = np.zeros(len(self.gears))
        for count in (1, 2, 4):
            if of_default:
                time = response.time.compute_zero_spread(response.time_error / count**0.5)
                power = np.zeros(len(time))
            else:
                time = response.time.compute_gear_spread(response.time_error / count**0.5)
                power = response.power.compute_gear_spread(response.power_error / count**0.5)
            time = np.clip(time, 1e-6, np.maximum(response.slowdown_std, 1e-6))
            after = np.sqrt(np.maximum(response.slowdown_std**2 - time**2, 0.0))
            spread = np.hypot(time, power)
            room = -violation - (
                add_uncertainty_margin(0.0, after) if self.policy.objective == "energy" else 0
            )
            allowed = _compute_normal_share(room / (time if self.policy.objective == "energy" else spread))
            ratio = gap / spread
            density = np.exp(-(ratio**2) / 2) / np.sqrt(2 * np.pi)
            gain = gap * _compute_normal_share(ratio) + spread * density
            worth = np.maximum(worth, allowed * gain / count)
        worth[choice] = 0.0
        return worth

    def _get_max_points(self, readings: PhaseReadings) -> int:
        is_fine = (
            len(self.gears) > 1 and float(np.median(self.gears[1:] / self.gears[:-1])) < 1 + SAME_POINT_SHARE
        )
        return MAX_UNCERTAIN_POINTS if is_fine and readings.has_uncertain_progress() else MAX_POINTS

    def find_lowest_reachable(self, tried: Values, readings: PhaseReadings) -> int:
        """Place of the lowest gear that may be measured next: the next one below those measured, or farther
        where its lengthening is at most `MAX_STEP_FACTOR` times the largest one measured."""
        base = self.get_default_limit(readings)
        farthest = max(compute_lengthening(tried, base).max(initial=0.0), 0.02)
        below = int(np.searchsorted(self.gears, tried.min())) - 1
        return max(0, min(below, int(np.searchsorted(self.gears, base / (1 + MAX_STEP_FACTOR * farthest)))))

    def list_tried_gears(self, readings: PhaseReadings) -> Values:
        """Gears measured so far at this memory clock."""
        points = self.control.select_readings(readings, self.memory_mhz)
        return np.array([self.control.get_value(r.settings) for r in points], float)

    def _propose_first(self, readings: PhaseReadings) -> int:
        base = self.get_default_limit(readings)
        if self.predicted_prior is not None:
            # The best expected gear, without the margin of a choice: it is only tried.
            response = self.fit_response(readings)
            best = objective.find_best(self.policy, response.slowdown, response.saving)
            return len(self.gears) - 2 if best is None else min(best, len(self.gears) - 2)
        x = UNBOUNDED_FIRST_X
        if self.policy.objective == "energy":
            x = self.policy.max_slowdown / (FIRST_POINT_SLOWDOWN * max(0.2, readings.get_default_sm_util()))
        place = int(np.searchsorted(self.gears, base / (1 + min(max(x, 0.03), 0.35))))
        return min(place, max(0, len(self.gears) - 2))


def _compute_normal_share(x: Values) -> Values:
    """Cumulative normal distribution."""
    return np.asarray([0.5 * (1 + erf(v / 2**0.5)) for v in np.clip(x, -40, 40)])
