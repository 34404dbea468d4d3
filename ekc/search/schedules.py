"""What a tuning run needs of the schedules it searches: the design space, or those of a recording."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekc.ir.operator import Operator
from ekc.ir.schedule import Schedule
from ekc.search.breeding import Genetics
from ekc.search.population import Population


class Schedules(Genetics, Protocol):
    """Genomes that stand for schedules of one operator."""

    op: Operator

    def schedule(self, population: Population, row: int) -> Schedule:
        """One genome as a Schedule."""

    def structure_name(self, population: Population, row: int) -> str:
        """Which structure it has, in words."""

    def analyses(
        self, population: Population
    ) -> Iterator[tuple[NDArray[np.intp], dict[str, NDArray[np.float64]]]]:
        """The analysis of genomes as it comes: which rows, in no order, and every quantity of these."""
