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
from ekc.governor.knob import Knob
from ekc.governor.landscape import SURE, Beliefs, Landscape, landscape, slower
from ekc.governor.ledger import Ledger
from ekc.governor.policy import Policy
from ekc.governor.samples import Values

NEAR = 0.02
"""Gears closer than this share of the clock are one point."""
FARTHEST = 2.2
"""How much farther from the default the next point may be than the farthest so far."""
MOST_POINTS = 6
"""Readings in a search; where progress is noisy, some are of one point."""
MOST_VAGUE = 3
"""The same where no reading of a minute knows its pace: what is watched under the choice then says more, and
costs less. Gears that lie far apart still have to be tried."""
TRUSTED = 1.3
"""The same for a choice."""
FIRST_SLOWDOWN = 0.6
"""Of a cycle's lengthening, expected of the first point without a model."""
UNBOUND_X = 0.2
"""First lengthening where no slowdown budget binds."""
GOLDEN = 0.381966
HOPE = 2.0
"""Standard deviations by which a gear not yet read may be better than believed."""


@dataclass(frozen=True)
class Search:
    """A search in one phase at one memory clock; all it knows is in the ledger."""

    policy: Policy
    knob: Knob
    gears: Values
    """Where the knob can be set, ascending."""
    beliefs: Beliefs
    memory_mhz: int | None = None
    foreseen: Beliefs | None = None
    """What a model expects: it picks the first point, and has no say once something was read. Even weighed by
    its error on other jobs it would pull what was read towards the mean of them."""

    def base(self, ledger: Ledger) -> float:
        """Where the default stands: no limit is felt above it. The top gear where the card does not tell."""
        return float(np.fmin(self.knob.base(ledger), self.gears[-1]))

    def landscape(self, ledger: Ledger) -> Landscape:
        """What is believed now."""
        beliefs = self.beliefs if len(self.tried(ledger)) else self.foreseen or self.beliefs
        return landscape(ledger, self.knob, self.gears, beliefs, self.base(ledger), self.memory_mhz)

    def chosen(self, ledger: Ledger) -> float | None:
        """The best gear that is known and near enough to what was read; None where the default is best."""
        now = self.landscape(ledger)
        return self._worth(ledger, now, max(now.choice(self.policy), self.reach(ledger, TRUSTED)))

    def advised(self, ledger: Ledger) -> float | None:
        """The best gear that is believed to keep its budget, however far from what was read; None where that
        is the default."""
        now = self.landscape(ledger)
        return self._worth(ledger, now, now.choice(self.policy))

    def _worth(self, ledger: Ledger, now: Landscape, place: int) -> float | None:
        """The gear there; None where the default is as good."""
        better = objective.score(self.policy, now.slowdown[place], now.saving[place]) < 1
        free = now.gears[place] >= self.base(ledger)
        if self.policy.objective != "speed" and (not better or free):
            return None
        return float(now.gears[place])

    def next(self, ledger: Ledger) -> int | None:
        """Place of the gear to read next; None where the search is over."""
        tried = self.tried(ledger)
        if len(tried) == 0:
            return self._first(ledger)
        if len(tried) >= self._most(ledger):
            return None
        now = self.landscape(ledger)
        place = max(now.choice(self.policy), self.reach(ledger, FARTHEST))
        near = np.abs(tried / self.gears[place] - 1) < NEAR
        if not near.any() and self.gears[place] < self.base(ledger):
            return place
        if (below := self._coarse(now, place, tried)) is not None:
            return below
        if now.sigma[place] > SURE and self.policy.objective == "energy":
            return place
        return self._bracket(ledger, now, place, tried)

    def _most(self, ledger: Ledger) -> int:
        fine = len(self.gears) > 1 and float(np.median(self.gears[1:] / self.gears[:-1])) < 1 + NEAR
        return MOST_VAGUE if fine and ledger.vague() else MOST_POINTS

    def _coarse(self, now: Landscape, place: int, tried: Values) -> int | None:
        """Where gears lie far apart, the next lower one not read yet, if it might be allowed and better."""
        lower = [p for p in range(place) if not (np.abs(tried / self.gears[p] - 1) < NEAR).any()]
        if not lower or self.gears[place] / self.gears[place - 1] - 1 < NEAR:
            return None
        below, here = lower[-1], now.saving[place]
        slowdown = now.slowdown[below] - HOPE * max(float(now.sigma[below]), SURE)
        saving = now.saving[below] + HOPE * max(float(now.saving_sigma[below]), SURE)
        if objective.violation(self.policy, slowdown, saving) > 0:
            return None
        hoped = objective.score(self.policy, slowdown, saving)
        return below if hoped < objective.score(self.policy, now.slowdown[place], here) else None

    def _bracket(self, ledger: Ledger, now: Landscape, place: int, tried: Values) -> int | None:
        """A least energy inside the budget needs a point on its low side; golden section says how far."""
        lowest = float(tried.min())
        inside = now.slowdown[place] + now.sigma[place] < 0.8 * self.policy.max_slowdown
        if self.policy.objective == "energy" and not inside:
            return None
        if lowest < self.gears[place] * (1 - NEAR) or place == 0:
            return None
        step = GOLDEN * (self.base(ledger) - self.gears[place])
        return max(
            0, int(np.searchsorted(self.gears, self.gears[place] - max(step, 2 * NEAR * self.gears[place])))
        )

    def reach(self, ledger: Ledger, times: float) -> int:
        """Place of the lowest gear near enough to what was read."""
        base = self.base(ledger)
        farthest = max(slower(self.tried(ledger), base).max(initial=0.0), 0.02)
        return int(np.searchsorted(self.gears, base / (1 + times * farthest)))

    def tried(self, ledger: Ledger) -> Values:
        """Gears read so far at this memory clock."""
        read = [r.settings for r in ledger.others if r.settings.memory_mhz == self.memory_mhz]
        return np.array([self.knob.of(s) for s in read if self.knob.of(s)], float)

    def _first(self, ledger: Ledger) -> int:
        base = self.base(ledger)
        if self.foreseen is not None:
            # To try is no choice: the likeliest best, without the distance that a choice keeps.
            now = self.landscape(ledger)
            likely = objective.best(self.policy, now.slowdown, now.saving)
            return len(self.gears) - 2 if likely is None else min(likely, len(self.gears) - 2)
        x = UNBOUND_X
        if self.policy.objective == "energy":
            x = self.policy.max_slowdown / (FIRST_SLOWDOWN * max(0.2, ledger.sm_util()))
        place = int(np.searchsorted(self.gears, base / (1 + min(max(x, 0.03), 0.35))))
        return min(place, max(0, len(self.gears) - 2))
