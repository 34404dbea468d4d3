"""What analysis says of genomes, for the models; remembered, for a search scores its favourites again.

Beliefs change from round to round; what is counted in a schedule does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ekc.devices.base import Peaks
from ekc.search import prior
from ekc.search.features import NAMES, features
from ekc.search.population import Population
from ekc.search.schedules import Schedules

REMEMBERED = 1 << 16
"""Genomes: all that the largest population breeds in a round."""
_SLOTS = 1 << 17


@dataclass(frozen=True, eq=False)
class Analysed:
    """What the models see of some schedules, row by row."""

    features: NDArray[np.float32]
    latency_s: NDArray[np.float64]
    """What the prior expects, ..."""
    power_w: NDArray[np.float64]
    """... and of board watts."""


def analysed(figures: Mapping[str, NDArray[np.float64]], peaks: Peaks) -> Analysed:
    """Of the figures of an analysis."""
    return Analysed(features(figures), prior.latency(figures, peaks), prior.power(figures, peaks))


class Memory:
    """The analysis of genomes of a space; of those analysed last, without doing it again."""

    def __init__(self, space: Schedules, peaks: Peaks) -> None:
        self.space, self.peaks = space, peaks
        self._keys = np.zeros(REMEMBERED, dtype=np.int64)
        self._known = Analysed(
            np.empty((REMEMBERED, len(NAMES)), np.float32), np.empty(REMEMBERED), np.empty(REMEMBERED)
        )
        self._places = np.zeros(_SLOTS, dtype=np.int64)
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
            fresh = self._analysed(population[new], keys[new])
            for f in fields(Analysed):
                getattr(found, f.name)[new] = getattr(fresh, f.name)
        return found

    def _analysed(self, population: Population, keys: NDArray[np.int64]) -> Analysed:
        fresh = analysed(self.space.figures(population), self.peaks)
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
