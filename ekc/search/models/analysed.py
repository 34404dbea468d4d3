"""What analysis says of genomes, for the models; remembered, for a search scores its favourites again.

Beliefs change from round to round; what is counted in a schedule does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ekc.devices.base import Peaks
from ekc.search.breeding import Genetics
from ekc.search.models import prior
from ekc.search.models.features import BALANCE, NAMES, features, slots
from ekc.search.population import Population

Figures = Mapping[str, NDArray[np.float64]]
"""Quantities of an analysis by name, one value a schedule."""

REMEMBERED = 1 << 16
"""Genomes: all that the largest population breeds in a round."""
_SLOTS = 1 << 20
"""Many more: with twice as many, a fifth of what is remembered would be hidden by what came later."""


@dataclass(frozen=True, eq=False)
class Analysed:
    """What the models see of some schedules, row by row."""

    features: NDArray[np.float32]
    latency_s: NDArray[np.float64]
    """What the prior expects, ..."""
    power_w: NDArray[np.float64]
    """... and of board watts."""
    slots: NDArray[np.float64]
    """What they take of their device (`features.slots`)."""
    fma: NDArray[np.float64]
    """Multiply-adds that their lanes carry out, those on padding among them."""

    def standby_w(self, peaks: Peaks) -> NDArray[np.float64]:
        """Watts that the prior expects before any work is done."""
        return prior.standby(self.features[:, BALANCE], peaks)

    def put(self, rows: NDArray[np.intp], own: Analysed) -> None:
        """What is seen of some rows, into their places."""
        for f in fields(Analysed):
            getattr(self, f.name)[rows] = getattr(own, f.name)


def room(rows: int) -> Analysed:
    """For so many rows, of which nothing is said yet."""
    return Analysed(np.empty((rows, len(NAMES)), np.float32), *(np.empty(rows) for _ in range(4)))


def analysed(figures: Figures, peaks: Peaks) -> Analysed:
    """Of the figures of an analysis."""
    return Analysed(
        features(figures),
        prior.latency(figures, peaks),
        prior.power(figures, peaks),
        slots(figures),
        figures["total_fma"],
    )


class Memory:
    """What the models see of genomes of a space; of those seen last, without analysing them again."""

    def __init__(self, space: Genetics, see: Callable[[Population], Analysed]) -> None:
        """`see`: what they see of a population, such as `space.seen` for some peaks."""
        self.space, self.see = space, see
        self._keys = np.zeros(REMEMBERED, dtype=np.int64)
        self._known = room(REMEMBERED)
        self._places = np.zeros(_SLOTS, dtype=np.int32)
        """Where a genome is kept, by the low bits of its key; of two with the same, the last."""
        self._next = 0

    def of(self, population: Population) -> Analysed:
        """Every genome, remembered or not."""
        keys = self.space.keys(population)
        places = self._places[keys & (_SLOTS - 1)]
        new = np.flatnonzero(self._keys[places] != keys)
        if len(new) == len(keys):
            return self._analysed(population, keys)
        found = Analysed(*(getattr(self._known, f.name)[places] for f in fields(Analysed)))
        if len(new):
            found.put(new, self._analysed(population[new], keys[new]))
        return found

    def _analysed(self, population: Population, keys: NDArray[np.int64]) -> Analysed:
        fresh = self.see(population)
        self._keep(keys, fresh)
        return fresh

    def _keep(self, keys: NDArray[np.int64], fresh: Analysed) -> None:
        """In place of what was analysed longest ago."""
        keys = keys[-REMEMBERED:]
        places = (self._next + np.arange(len(keys))) % REMEMBERED
        self._next = (self._next + len(keys)) % REMEMBERED
        self._keys[places], self._places[keys & (_SLOTS - 1)] = keys, places
        for f in fields(Analysed):
            getattr(self._known, f.name)[places] = getattr(fresh, f.name)[-REMEMBERED:]
