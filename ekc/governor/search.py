"""Search over the gears of a limit: which gear to measure next, and which one is best.

GPOEO brackets by steps of a tenth of the gears and closes in by golden section. Here a curve is fitted to
the readings after each of them (`response_curve`). The next reading is the one that is expected to gain most:
of a gear that may be better than the best one so far, or again of a gear or of the default, where a smaller
error would allow a lower gear. The search ends where no reading is expected to gain enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, pi, sqrt

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
MAX_POINTS = 24
"""Most readings in a search, those of the default after the first included."""
MIN_DEFAULTS = 2
"""Readings of the default after which a search may end: how far they differ shows their error."""
MAX_CHOICE_FACTOR = 1.3
"""Largest lengthening of a choice, as a multiple of the largest one measured so far."""
FIRST_POINT_SLOWDOWN = 0.6
"""Slowdown over lengthening that is assumed for the first point without a model."""
UNBOUNDED_FIRST_X = 0.2
"""Lengthening of the first point where no slowdown budget applies."""
READING_COST = 0.045
"""Share of the default's energy that a reading may waste, as its settings may not be the best."""
MIN_REMAINING_S = 60.0
"""Expected seconds of the rest of the job, at least: less would end a search before its second reading."""
REPEATS = (1, 2, 4)
"""Numbers of readings whose gain is estimated: several may be needed to change the choice."""


@dataclass(frozen=True)
class LimitSearch:
    """A search in one phase at one memory clock; its state is in the readings."""

    policy: Policy
    control: ControlVariable
    gears: Values
    """Values of the limit, ascending."""
    prior: ResponsePrior
    memory_mhz: int | None = None
    is_checked: bool = False
    """Whether a check of the running job has confirmed a choice: later ones need less margin."""
    remaining_s: float = 900.0
    """Expected seconds of the rest of the job, which gains from what a reading shows."""
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
        return self._get_gear_if_better(
            readings, response, max(response.choose_index(self.policy, self.is_checked), lowest)
        )

    def advise_gear(self, readings: PhaseReadings) -> float | None:
        """The best gear within the budget, however far from the readings; None where the default is best. The
        margin is that of a checked choice, since this one is not set."""
        response = self.fit_response(readings)
        best = response.choose_index(self.policy, is_checked=True)
        return self._get_gear_if_better(readings, response, best)

    def _get_gear_if_better(
        self, readings: PhaseReadings, response: ResponseCurve, place: int
    ) -> float | None:
        """The gear at a place; None where the default is as good."""
        if self.is_default_within_cap():
            return None
        if response.gears[place] >= self.get_default_limit(readings):
            return None
        is_better = objective.compute_score(self.policy, response.slowdown[place], response.saving[place]) < 1
        if self.policy.objective != "speed" and not is_better:
            return None
        return float(response.gears[place])

    def propose_next(self, readings: PhaseReadings) -> int | None:
        """Place of the gear to measure next; None where the search is over. A gear that is not below the
        default limit means the default, to be measured again."""
        if self.is_default_within_cap():
            return None
        tried = self.list_tried_gears(readings)
        if len(tried) == 0:
            return self._propose_first(readings)
        if self._count_readings(readings) >= MAX_POINTS:
            return None
        response = self.fit_response(readings)
        best = response.choose_index(self.policy, self.is_checked)
        lowest = self.find_lowest_reachable(readings, MAX_STEP_FACTOR)
        can_read = self.gears < self.get_default_limit(readings)
        can_read[:lowest] = False
        choice = max(best, self.find_lowest_reachable(readings, MAX_CHOICE_FACTOR))
        gains = np.where(can_read, self._estimate_gains(response, choice, of_default=False), 0.0)
        by_default = np.where(can_read, self._estimate_gains(response, choice, of_default=True), 0.0).max()
        place = int(gains.argmax())
        cost = READING_COST * readings.other_readings[-1].seconds / max(self.remaining_s, MIN_REMAINING_S)
        if max(gains[place], by_default) > cost:
            return place if gains[place] >= by_default else len(self.gears) - 1
        place = max(best, lowest)
        if can_read[place] and not (np.abs(tried / self.gears[place] - 1) < SAME_POINT_SHARE).any():
            return place
        return len(self.gears) - 1 if len(readings.default_readings) < MIN_DEFAULTS else None

    def _count_readings(self, readings: PhaseReadings) -> int:
        return len(readings.default_readings) - 1 + len(readings.other_readings)

    def _estimate_gains(self, response: ResponseCurve, choice: int, of_default: bool) -> Values:
        """For each gear, the expected fall of the score if one more reading makes it the choice.

        The reading is of that gear or of the default. It moves the mean at the gear, and its standard
        deviation gets smaller. The gear becomes the choice where it is then within the budget with its
        margin.
        """
        policy = self.policy
        score = objective.compute_score(policy, response.slowdown, response.saving)
        advantage = min(float(score[choice]), 1.0) - score
        room = -objective.compute_violation(policy, response.slowdown, response.saving)
        most = np.ones(len(self.gears))
        if policy.objective == "energy":
            # No lower gear is faster.
            likely = _compute_normal_share(room / np.maximum(response.slowdown_std, 1e-6))
            most = np.minimum.accumulate(likely[::-1])[::-1]
        best = np.zeros(len(self.gears))
        for count in REPEATS:
            if of_default:
                time = response.time.predict_shift_by_default(response.time_error / sqrt(count))
                power = np.zeros(len(time))
            else:
                time = response.time.predict_shift(response.time_error / sqrt(count))
                power = response.power.predict_shift(response.power_error / sqrt(count))
            time = np.clip(time, 1e-6, np.maximum(response.slowdown_std, 1e-6))
            spread = np.hypot(time, power)
            if policy.objective == "energy":
                after = np.sqrt(np.maximum(response.slowdown_std**2 - time**2, 0.0))
                allowed = _compute_normal_share(
                    (room - add_uncertainty_margin(0.0, after, self.is_checked)) / time
                )
            else:
                allowed = _compute_normal_share(room / spread)
            ratio = advantage / spread
            density = np.exp(-(ratio**2) / 2) / sqrt(2 * pi)
            gain = advantage * _compute_normal_share(ratio) + spread * density
            best = np.maximum(best, np.minimum(allowed, most) * gain / count)
        best[choice] = 0.0
        return best

    def find_lowest_reachable(self, readings: PhaseReadings, factor: float) -> int:
        """Place of the lowest gear whose lengthening is at most `factor` times the largest one measured, or
        of the next gear below those measured."""
        base, tried = self.get_default_limit(readings), self.list_tried_gears(readings)
        farthest = max(compute_lengthening(tried, base).max(initial=0.0), 0.02)
        below = int(np.searchsorted(self.gears, tried.min(initial=base))) - 1
        return max(0, min(below, int(np.searchsorted(self.gears, base / (1 + factor * farthest)))))

    def list_tried_gears(self, readings: PhaseReadings) -> Values:
        """Gears measured so far at this memory clock."""
        points = self.control.select_readings(readings, self.memory_mhz)
        return np.array([self.control.get_value(r.settings) for r in points], float)

    def _propose_first(self, readings: PhaseReadings) -> int | None:
        """The first gear to measure; None where no gear is below the default."""
        base = self.get_default_limit(readings)
        highest = int(np.searchsorted(self.gears, base)) - 1
        if highest < 0:
            return None
        if self.predicted_prior is not None:
            # The best expected gear, without the margin of a choice: it is only tried.
            response = self.fit_response(readings)
            best = objective.find_best(self.policy, response.slowdown, response.saving)
            return highest if best is None else min(best, highest)
        x = UNBOUNDED_FIRST_X
        if self.policy.objective == "energy":
            x = self.policy.max_slowdown / (FIRST_POINT_SLOWDOWN * max(0.2, readings.get_default_sm_util()))
        place = int(np.searchsorted(self.gears, base / (1 + min(max(x, 0.03), 0.35))))
        return min(place, highest)


def _compute_normal_share(x: Values) -> Values:
    """Cumulative normal distribution."""
    return np.array([0.5 * (1 + erf(v / sqrt(2))) for v in np.clip(x, -40, 40)])
