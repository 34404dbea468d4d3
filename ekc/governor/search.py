"""Search over the gears of a limit: which gear to measure next, and which one is best.

GPOEO brackets by steps of a tenth of the gears and closes in by golden section. Here a curve is fitted to
the readings after each of them; it says where the budget ends and where energy is least, and a bracket
around that gear confirms it. That takes two or three readings instead of seven to nine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.governor import objective
from ekc.governor.policy import Policy
from ekc.governor.readings import PhaseReadings
from ekc.governor.response_curve import (
    CONFIDENT_SIGMA,
    ControlVariable,
    ResponseCurve,
    ResponsePrior,
    compute_lengthening,
    fit_response_curve,
)
from ekc.governor.samples import Values

SAME_POINT_SHARE = 0.02
"""Relative distance below which two gears count as one point."""
MAX_STEP_FACTOR = 2.2
"""Largest lengthening of the next point, as a multiple of the largest one measured so far."""
MAX_POINTS = 6
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
GOLDEN_SECTION = 0.381966
OPTIMISM_SIGMAS = 2.0
"""Standard deviations by which a gear not yet measured may be better than expected."""


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
        lowest = self.find_lowest_reachable(readings, MAX_CHOICE_FACTOR)
        return self._get_gear_if_better(readings, response, max(response.choose_index(self.policy), lowest))

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

    def propose_next(self, readings: PhaseReadings) -> int | None:
        """Place of the gear to measure next; None where the search is over."""
        if self.is_default_within_cap():
            return None
        tried = self.list_tried_gears(readings)
        if len(tried) == 0:
            return self._propose_first(readings)
        if len(tried) >= self._get_max_points(readings):
            return None
        response = self.fit_response(readings)
        lowest = self.find_lowest_reachable(readings, MAX_STEP_FACTOR)
        place = max(response.choose_index(self.policy), lowest)
        near = np.abs(tried / self.gears[place] - 1) < SAME_POINT_SHARE
        if not near.any() and self.gears[place] < self.get_default_limit(readings):
            return place
        if (below := self._propose_lower_gear(response, place, tried)) is not None:
            return below
        if response.slowdown_std[place] > CONFIDENT_SIGMA and self.policy.objective == "energy":
            return place
        return self._propose_bracket(readings, response, place, tried)

    def _get_max_points(self, readings: PhaseReadings) -> int:
        is_fine = (
            len(self.gears) > 1 and float(np.median(self.gears[1:] / self.gears[:-1])) < 1 + SAME_POINT_SHARE
        )
        return MAX_UNCERTAIN_POINTS if is_fine and readings.has_uncertain_progress() else MAX_POINTS

    def _propose_lower_gear(self, response: ResponseCurve, place: int, tried: Values) -> int | None:
        """For coarse gears, the next lower one not yet measured, if it may be in budget and better."""
        lower = [p for p in range(place) if not (np.abs(tried / self.gears[p] - 1) < SAME_POINT_SHARE).any()]
        if not lower or self.gears[place] / self.gears[place - 1] - 1 < SAME_POINT_SHARE:
            return None
        below, score = lower[-1], objective.compute_score
        slowdown_std = max(float(response.slowdown_std[below]), CONFIDENT_SIGMA)
        saving_std = max(float(response.saving_std[below]), CONFIDENT_SIGMA)
        slowdown = response.slowdown[below] - OPTIMISM_SIGMAS * slowdown_std
        saving = response.saving[below] + OPTIMISM_SIGMAS * saving_std
        if objective.compute_violation(self.policy, slowdown, saving) > 0:
            return None
        here = score(self.policy, response.slowdown[place], response.saving[place])
        return below if score(self.policy, slowdown, saving) < here else None

    def _propose_bracket(
        self, readings: PhaseReadings, response: ResponseCurve, place: int, tried: Values
    ) -> int | None:
        """The next point below an energy minimum inside the budget, at golden section; None if not needed."""
        lowest = float(tried.min())
        inside = response.slowdown[place] + response.slowdown_std[place] < 0.8 * self.policy.max_slowdown
        if self.policy.objective == "energy" and not inside:
            return None
        if lowest < self.gears[place] * (1 - SAME_POINT_SHARE) or place == 0:
            return None
        step = GOLDEN_SECTION * (self.get_default_limit(readings) - self.gears[place])
        limit = self.gears[place] - max(step, 2 * SAME_POINT_SHARE * self.gears[place])
        return max(0, int(np.searchsorted(self.gears, limit)))

    def find_lowest_reachable(self, readings: PhaseReadings, factor: float) -> int:
        """Place of the lowest gear whose lengthening is at most `factor` times the largest one measured."""
        base = self.get_default_limit(readings)
        farthest = max(compute_lengthening(self.list_tried_gears(readings), base).max(initial=0.0), 0.02)
        return int(np.searchsorted(self.gears, base / (1 + factor * farthest)))

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
