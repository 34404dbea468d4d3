"""Whether a search is worth its price: what remains of the job against what searching costs."""

from __future__ import annotations

from dataclasses import dataclass

from ekc.governor.policy import Policy

EXPECTED_SAVING = 0.07
"""Share of the watts, expected before anything is known of a job (mean of simulated jobs: 0.06 to 0.1)."""
SEARCH_COST = 0.03
"""Share of the watts that a search wastes while it runs: clocks that are not the best."""
MIN_REMAINING_S = 900.0
"""Where nobody says how long a job runs, as long as it has run is expected again, at least so long."""


@dataclass(frozen=True)
class SearchPayoff:
    """The estimate."""

    remaining_s: float
    search_s: float
    saving_w: float
    waste_w: float

    @property
    def is_worthwhile(self) -> bool:
        """Whether more is saved after the search than it wastes."""
        return max(0.0, self.remaining_s - self.search_s) * self.saving_w > self.search_s * self.waste_w


def estimate_payoff(
    policy: Policy, elapsed_s: float, window_s: float, watts: float, saving: float = EXPECTED_SAVING
) -> SearchPayoff:
    """`elapsed_s`: since the governor began; `window_s`: of one reading; `watts`: at the default."""
    search = 5 * (window_s + 2.0)
    return SearchPayoff(estimate_remaining_s(policy, elapsed_s), search, saving * watts, SEARCH_COST * watts)


def estimate_remaining_s(policy: Policy, elapsed_s: float) -> float:
    """Seconds that a job is expected to go on for."""
    told = policy.remaining_s
    return max(elapsed_s, MIN_REMAINING_S) if told is None else max(0.0, told - elapsed_s)
