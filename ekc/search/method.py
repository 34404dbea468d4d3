"""How a run searches. `Method()` is what `ekc.tune` does; the others exist to be compared with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ekc.errors import InvalidInput
from ekc.search.breeding import Breeder, ScoreFunction, SearchSpace
from ekc.search.population import Population


@dataclass(frozen=True)
class SearchMethod:
    """What a run does at the three places where it learns or breeds."""

    proposals: Literal["bred", "mutated", "drawn"] = "bred"
    """Crossed and mutated, never crossed, or every schedule drawn at random."""
    metered_share: float | None = None
    """Share of the timed kernels that is metered; 1 meters all, None adapts it to the energy model."""
    power_source: Literal["learned", "constant"] = "learned"
    """Where the energies come from that nobody metered: the model, or latency x the median power."""

    def __post_init__(self) -> None:
        if self.metered_share is not None and not 0 < self.metered_share <= 1:
            raise InvalidInput(f"metered: {self.metered_share} is outside 0 to 1; 1 meters every kernel")

    def make_breeder(self, space: SearchSpace, random: np.random.Generator, population_size: int) -> Breeder:
        """What proposes the schedules to try."""
        if self.proposals == "drawn":
            return RandomSampler(space, random, population_size)
        return Breeder(space, random, population_size, has_crossover=self.proposals == "bred")


DEFAULT_METHOD = SearchMethod()


class RandomSampler(Breeder):
    """Random search behind the face of a breeder: legal draws, in the order they were drawn."""

    def evolve(
        self, parents: Population | None, score: ScoreFunction
    ) -> tuple[Population, NDArray[np.float64]]:
        """Fresh draws; neither parents nor score matter."""
        drawn = self.sample(self.population_size)
        return drawn, np.zeros(len(drawn))
