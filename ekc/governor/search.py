"""The search over the gears of a knob: feasibility first, then the best that a smooth curve through the
readings promises.

Where GPOEO brackets by steps of a tenth of the gears and closes in by golden section, a curve that is fitted
anew after each reading says where the budget ends and where the least energy lies; a bracket around that
point is then confirmed. Two or three readings do instead of seven to nine.
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
"""Gears closer than this share of the clock are one point."""
MAX_STEP_FACTOR = 2.2
"""How much farther from the default the next point may be than the farthest so far."""
MAX_POINTS = 6
"""Readings in a search; where progress is noisy, some are of one point."""
MAX_UNCERTAIN_POINTS = 3
"""The same where no reading of a minute knows its pace: what is watched under the choice then says more, and
costs less. Gears that lie far apart still have to be tried."""
MAX_CHOICE_FACTOR = 1.3
"""The same for a choice."""
FIRST_POINT_SLOWDOWN = 0.6
"""Of a cycle's lengthening, expected of the first point without a model."""
UNBOUNDED_FIRST_X = 0.2
"""First lengthening where no slowdown budget binds."""
GOLDEN_SECTION = 0.381966
OPTIMISM_SIGMAS = 2.0
"""Standard deviations by which a gear not yet read may be better than believed."""


@dataclass(frozen=True)
class LimitSearch:
    """A search in one phase at one memory clock; all it knows is in the ledger."""

    policy: Policy
    control: ControlVariable
    gears: Values
    """Where the knob can be set, ascending."""
    prior: ResponsePrior
    memory_mhz: int | None = None
    predicted_prior: ResponsePrior | None = None
    """What a model expects: it picks the first point, and has no say once something was read. Even weighed by
    its error on other jobs it would pull what was read towards the mean of them."""

    def get_default_limit(self, readings: PhaseReadings) -> float:
        """Where the default stands: no limit is felt above it. The top gear where the card does not tell."""
        return float(np.fmin(self.control.get_default_value(readings), self.gears[-1]))

    def fit_response(self, readings: PhaseReadings) -> ResponseCurve:
        """What is believed now."""
        beliefs = self.prior if len(self.list_tried_gears(readings)) else self.predicted_prior or self.prior
        return fit_response_curve(
            readings, self.control, self.gears, beliefs, self.get_default_limit(readings), self.memory_mhz
        )

    def choose_gear(self, readings: PhaseReadings) -> float | None:
        """The best gear that is known and near enough to what was read; None where the default is best."""
        now = self.fit_response(readings)
        return self._get_gear_if_better(
            readings,
            now,
            max(now.choose_index(self.policy), self.find_lowest_reachable(readings, MAX_CHOICE_FACTOR)),
        )

    def advise_gear(self, readings: PhaseReadings) -> float | None:
        """The best gear that is believed to keep its budget, however far from what was read; None where that
        is the default."""
        now = self.fit_response(readings)
        return self._get_gear_if_better(readings, now, now.choose_index(self.policy))

    def _get_gear_if_better(
        self, readings: PhaseReadings, response: ResponseCurve, place: int
    ) -> float | None:
        """The gear there; None where the default is as good."""
        better = objective.compute_score(self.policy, response.slowdown[place], response.saving[place]) < 1
        free = response.gears[place] >= self.get_default_limit(readings)
        if self.policy.objective != "speed" and (not better or free):
            return None
        return float(response.gears[place])

    def propose_next(self, readings: PhaseReadings) -> int | None:
        """Place of the gear to read next; None where the search is over."""
        tried = self.list_tried_gears(readings)
        if len(tried) == 0:
            return self._propose_first(readings)
        if len(tried) >= self._get_max_points(readings):
            return None
        now = self.fit_response(readings)
        place = max(now.choose_index(self.policy), self.find_lowest_reachable(readings, MAX_STEP_FACTOR))
        near = np.abs(tried / self.gears[place] - 1) < SAME_POINT_SHARE
        if not near.any() and self.gears[place] < self.get_default_limit(readings):
            return place
        if (below := self._propose_lower_gear(now, place, tried)) is not None:
            return below
        if now.slowdown_std[place] > CONFIDENT_SIGMA and self.policy.objective == "energy":
            return place
        return self._propose_bracket(readings, now, place, tried)

    def _get_max_points(self, readings: PhaseReadings) -> int:
        fine = (
            len(self.gears) > 1 and float(np.median(self.gears[1:] / self.gears[:-1])) < 1 + SAME_POINT_SHARE
        )
        return MAX_UNCERTAIN_POINTS if fine and readings.has_uncertain_progress() else MAX_POINTS

    def _propose_lower_gear(self, response: ResponseCurve, place: int, tried: Values) -> int | None:
        """Where gears lie far apart, the next lower one not read yet, if it might be allowed and better."""
        lower = [p for p in range(place) if not (np.abs(tried / self.gears[p] - 1) < SAME_POINT_SHARE).any()]
        if not lower or self.gears[place] / self.gears[place - 1] - 1 < SAME_POINT_SHARE:
            return None
        below, here = lower[-1], response.saving[place]
        slowdown = response.slowdown[below] - OPTIMISM_SIGMAS * max(
            float(response.slowdown_std[below]), CONFIDENT_SIGMA
        )
        saving = response.saving[below] + OPTIMISM_SIGMAS * max(
            float(response.saving_std[below]), CONFIDENT_SIGMA
        )
        if objective.compute_violation(self.policy, slowdown, saving) > 0:
            return None
        hoped = objective.compute_score(self.policy, slowdown, saving)
        return below if hoped < objective.compute_score(self.policy, response.slowdown[place], here) else None

    def _propose_bracket(
        self, readings: PhaseReadings, response: ResponseCurve, place: int, tried: Values
    ) -> int | None:
        """A least energy inside the budget needs a point on its low side; golden section says how far."""
        lowest = float(tried.min())
        inside = response.slowdown[place] + response.slowdown_std[place] < 0.8 * self.policy.max_slowdown
        if self.policy.objective == "energy" and not inside:
            return None
        if lowest < self.gears[place] * (1 - SAME_POINT_SHARE) or place == 0:
            return None
        step = GOLDEN_SECTION * (self.get_default_limit(readings) - self.gears[place])
        return max(
            0,
            int(
                np.searchsorted(
                    self.gears, self.gears[place] - max(step, 2 * SAME_POINT_SHARE * self.gears[place])
                )
            ),
        )

    def find_lowest_reachable(self, readings: PhaseReadings, factor: float) -> int:
        """Place of the lowest gear near enough to what was read."""
        base = self.get_default_limit(readings)
        farthest = max(compute_lengthening(self.list_tried_gears(readings), base).max(initial=0.0), 0.02)
        return int(np.searchsorted(self.gears, base / (1 + factor * farthest)))

    def list_tried_gears(self, readings: PhaseReadings) -> Values:
        """Gears read so far at this memory clock."""
        read = [r.settings for r in readings.other_readings if r.settings.memory_mhz == self.memory_mhz]
        return np.array([self.control.get_value(s) for s in read if self.control.get_value(s)], float)

    def _propose_first(self, readings: PhaseReadings) -> int:
        base = self.get_default_limit(readings)
        if self.predicted_prior is not None:
            # To try is no choice: the likeliest best, without the distance that a choice keeps.
            now = self.fit_response(readings)
            likely = objective.find_best(self.policy, now.slowdown, now.saving)
            return len(self.gears) - 2 if likely is None else min(likely, len(self.gears) - 2)
        x = UNBOUNDED_FIRST_X
        if self.policy.objective == "energy":
            x = self.policy.max_slowdown / (FIRST_POINT_SLOWDOWN * max(0.2, readings.get_default_sm_util()))
        place = int(np.searchsorted(self.gears, base / (1 + min(max(x, 0.03), 0.35))))
        return min(place, max(0, len(self.gears) - 2))
