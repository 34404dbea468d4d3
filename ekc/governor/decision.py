"""The governor's decision: which settings to measure next, and which ones to set.

Settings are judged by two figures relative to the default, slowdown and saving: the objective of the policy
gives their score, its limits give the budget. Both figures are read from the curves that are fitted to all
readings after each of them (`response_curve`). The slowdown counts with a margin for its uncertainty.

The next reading is the one that is expected to gain most: of a clock that may be better than the best one so
far, of a clock again, or of the default again, where a smaller error would allow a lower clock. The search
ends where no reading is expected to gain enough. (GPOEO brackets by steps of a tenth of the clocks, and
closes in by golden section.)

`ekc.governor.loop` says when a decision is made, `ekc.governor.phase` takes the readings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from ekc.gaussian_process import log_expected_improvement, normal_cdf
from ekc.governor.protocols import Settings
from ekc.governor.readings import DefaultComparison, PhaseReadings
from ekc.governor.request import Policy
from ekc.governor.response_curve import (
    ControlVariable,
    ResponseCurve,
    compute_lengthening,
    fit_response_curve,
)
from ekc.governor.samples import Values

SAME_POINT_SHARE = 0.02
"""Relative distance below which two values count as one point."""
MAX_STEP_FACTOR = 2.2
"""Largest lengthening of the next point, as a multiple of the largest one measured so far."""
MAX_POINTS = 24
"""Most readings in a search, those of the default after the first included."""
MIN_DEFAULTS = 2
"""Readings of the default after which a search may end: how far they differ shows their error."""
MAX_CHOICE_FACTOR = 1.3
"""Largest lengthening of a choice, as a multiple of the largest one measured so far."""
FIRST_POINT_SLOWDOWN = 0.6
"""Slowdown over lengthening that is assumed for the first point."""
UNBOUNDED_FIRST_X = 0.2
"""Lengthening of the first point where no slowdown budget applies."""
READING_COST = 0.045
"""Share of the default's energy that a reading may waste, as its settings may not be the best."""
MIN_REMAINING_S = 60.0
"""Expected seconds of the rest of the job, at least: less would end a search before its second reading."""
REPEATS = (1, 2, 4)
"""Numbers of readings whose gain is estimated: several may be needed to change the choice."""
CONFIDENT_SIGMA = 0.007
"""Standard deviation of a slowdown up to which the governor uses it without margin, once a check agreed."""
CAUTION_FACTOR = 0.5
"""Margin added to a slowdown, as a multiple of its standard deviation beyond `CONFIDENT_SIGMA`. It is small,
since checks go on and time that was lost is saved again."""
FIRST_CONFIDENT_SIGMA, FIRST_CAUTION_FACTOR = 0.003, 2.0
"""The same for the choice of a search, which no check has confirmed. On recorded sweeps, with 1.5 % of noise
on each reading, 1 % of the choices are then more than a tenth beyond a budget of 5 %."""

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


def choose_static(
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


def add_uncertainty_margin(slowdown: Shares, sigma: Shares, is_checked: bool) -> Values:
    """Slowdown plus a margin for its standard deviation, larger before a check has agreed."""
    factor, confident = CAUTION_FACTOR, CONFIDENT_SIGMA
    if not is_checked:
        factor, confident = FIRST_CAUTION_FACTOR, FIRST_CONFIDENT_SIGMA
    return np.asarray(slowdown + factor * np.maximum(0.0, np.asarray(sigma) - confident))


@dataclass(frozen=True)
class LimitSearch:
    """A search in one phase at one memory clock; its state is in the readings."""

    policy: Policy
    control: ControlVariable
    values: Values
    """Values of the limit, ascending."""
    memory_mhz: int | None = None
    is_checked: bool = False
    """Whether a check of the running job has confirmed a choice: later ones need less margin."""
    remaining_s: float = 900.0
    """Expected seconds of the rest of the job, which gains from what a reading shows."""
    first_value: float | None = None
    """Value to measure first, as a model expects it to be the best; None to begin by the budget."""

    def get_default_limit(self, readings: PhaseReadings) -> float:
        """Value of the limit above which it does not bind; the top value where that was not measured."""
        return float(np.fmin(self.control.get_default_value(readings), self.values[-1]))

    def fit_response(self, readings: PhaseReadings) -> ResponseCurve:
        """The curve after the readings so far."""
        return fit_response_curve(
            readings, self.control, self.values, self.get_default_limit(readings), self.memory_mhz
        )

    def is_default_within_cap(self) -> bool:
        """Whether the fastest settings, the default, keep the power cap; False without a cap."""
        return self.policy.max_power_share is not None and self.policy.max_power_share >= 1

    def choose_value(self, readings: PhaseReadings, only_advise: bool = False) -> float | None:
        """The best value near enough to the readings; None where the default is best. Advice may be far from
        the readings, and has the margin of a checked choice, since it is not set."""
        response = self.fit_response(readings)
        place = self._find_best_place(response, self.is_checked or only_advise)
        if not only_advise:
            place = max(place, self.compute_lowest_reachable(readings, MAX_CHOICE_FACTOR))
        if self.is_default_within_cap() or response.values[place] >= self.get_default_limit(readings):
            return None
        is_better = compute_score(self.policy, response.slowdown[place], response.saving[place]) < 1
        if self.policy.objective != "speed" and not is_better:
            return None
        return float(response.values[place])

    def choose_settings(self, readings: PhaseReadings, present: Settings) -> Settings:
        """The best settings at the memory clock of the search, near enough to the readings; the default where
        nothing is better. `present`: the choice so far."""
        value = self.choose_value(readings)
        if value is not None:
            return self.control.make_settings(value, self.memory_mhz)
        memory_only = Settings(memory_mhz=self.memory_mhz)
        expected = self.predict_settings(readings, memory_only)
        is_within = compute_violation(self.policy, expected.slowdown, expected.saving) <= 0
        # Only if it is the choice already: no curve predicts the cost of the memory clock alone.
        return memory_only if memory_only == present and is_within else Settings()

    def predict_settings(self, readings: PhaseReadings, settings: Settings) -> DefaultComparison:
        """Expected outcome of some settings, at the memory clock of the search."""
        value = self.control.get_value(settings)
        if value is None:
            # The default, or a memory clock alone: there is no curve.
            outcomes = readings.compare_settings(settings)
            return outcomes[-1] if outcomes else DefaultComparison(0.0, 0.0, 0.0, 1.0, 0.0)
        response = self.fit_response(readings)
        place = int(np.searchsorted(response.values, value))
        slowdown, saving = float(response.slowdown[place]), float(response.saving[place])
        error = float(response.slowdown_std[place])
        return DefaultComparison(slowdown, error, 0.0, (1 - saving) / (1 + slowdown), 0.0)

    def _find_best_place(self, response: ResponseCurve, is_checked: bool) -> int:
        """Place of the best value whose slowdown, with a margin for its uncertainty, is within the budget;
        the top one where none is, or the lowest where power is above its cap."""
        if self.policy.max_power_share is not None:
            return find_best(self.policy, response.slowdown, response.saving) or 0
        slowdown = add_uncertainty_margin(response.slowdown, response.slowdown_std, is_checked)
        best = find_best(self.policy, slowdown, response.saving)
        return len(response.values) - 1 if best is None else best

    def propose_next(self, readings: PhaseReadings) -> int | None:
        """Place of the value to measure next; None where the search is over. A value that is not below the
        default limit means the default, to be measured again."""
        if self.is_default_within_cap():
            return None
        tried = self.list_tried_values(readings)
        if len(tried) == 0:
            return self._propose_first(readings)
        if len(readings.default_readings) - 1 + len(readings.other_readings) >= MAX_POINTS:
            return None
        response = self.fit_response(readings)
        best = self._find_best_place(response, self.is_checked)
        lowest = self.compute_lowest_reachable(readings, MAX_STEP_FACTOR)
        can_read = self.values < self.get_default_limit(readings)
        can_read[:lowest] = False
        choice = max(best, self.compute_lowest_reachable(readings, MAX_CHOICE_FACTOR))
        gains = np.where(can_read, self._estimate_gains(response, choice, of_default=False), 0.0)
        by_default = np.where(can_read, self._estimate_gains(response, choice, of_default=True), 0.0).max()
        place = int(gains.argmax())
        cost = READING_COST * readings.other_readings[-1].seconds / max(self.remaining_s, MIN_REMAINING_S)
        if max(gains[place], by_default) > cost:
            return place if gains[place] >= by_default else len(self.values) - 1
        place = max(best, lowest)
        if can_read[place] and not (np.abs(tried / self.values[place] - 1) < SAME_POINT_SHARE).any():
            return place
        return len(self.values) - 1 if len(readings.default_readings) < MIN_DEFAULTS else None

    def _estimate_gains(self, response: ResponseCurve, choice: int, of_default: bool) -> Values:
        """For each value, the expected fall of the score if one more reading makes it the choice.

        The reading is of that value or of the default. It moves the mean at the value, and its standard
        deviation gets smaller. The value becomes the choice where it is then within the budget with its
        margin.
        """
        policy = self.policy
        score = compute_score(policy, response.slowdown, response.saving)
        best_score = min(float(score[choice]), 1.0)
        room = -compute_violation(policy, response.slowdown, response.saving)
        most = np.ones(len(self.values))
        if policy.objective == "energy":
            # No lower value is faster.
            likely = normal_cdf(room / np.maximum(response.slowdown_std, 1e-6))
            most = np.minimum.accumulate(likely[::-1])[::-1]
        best = np.zeros(len(self.values))
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
                allowed = normal_cdf((room - add_uncertainty_margin(0.0, after, self.is_checked)) / time)
            else:
                allowed = normal_cdf(room / spread)
            gain = np.exp(log_expected_improvement(score, spread, best_score))
            best = np.maximum(best, np.minimum(allowed, most) * gain / count)
        best[choice] = 0.0
        return best

    def compute_lowest_reachable(self, readings: PhaseReadings, factor: float) -> int:
        """Place of the lowest value whose lengthening is at most `factor` times the largest one measured, or
        of the next value below those measured."""
        base, tried = self.get_default_limit(readings), self.list_tried_values(readings)
        farthest = max(compute_lengthening(tried, base).max(initial=0.0), 0.02)
        below = int(np.searchsorted(self.values, tried.min(initial=base))) - 1
        return max(0, min(below, int(np.searchsorted(self.values, base / (1 + factor * farthest)))))

    def list_tried_values(self, readings: PhaseReadings) -> Values:
        """Values measured so far at this memory clock."""
        points = self.control.select_readings(readings, self.memory_mhz)
        return np.array([self.control.get_value(r.settings) for r in points], float)

    def _propose_first(self, readings: PhaseReadings) -> int | None:
        """The first value to measure; None where no value is below the default."""
        base = self.get_default_limit(readings)
        highest = int(np.searchsorted(self.values, base)) - 1
        if highest < 0:
            return None
        if self.first_value is not None:
            return min(int(np.searchsorted(self.values, self.first_value)), highest)
        x = UNBOUNDED_FIRST_X
        if self.policy.objective == "energy":
            x = self.policy.max_slowdown / (FIRST_POINT_SLOWDOWN * max(0.2, readings.get_default_sm_util()))
        place = int(np.searchsorted(self.values, base / (1 + min(max(x, 0.03), 0.35))))
        return min(place, highest)
