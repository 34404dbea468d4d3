"""What analysis says of genomes, for the models; remembered, for a search scores its favourites again.

Beliefs change from round to round; what is counted in a schedule does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import Peaks
from ekc.search.breeding import SearchSpace
from ekc.search.models import prior
from ekc.search.models.features import BALANCE_COLUMN, FEATURE_NAMES, build_features, count_issue_slots
from ekc.search.population import Population

Quantities = Mapping[str, NDArray[np.float64]]
"""Quantities of an analysis by name, one value a schedule."""

MAX_CACHED_GENOMES = 1 << 16
"""Genomes: all that the largest population breeds in a round."""
_CACHE_SLOTS = 1 << 20
"""Many more: with twice as many, a fifth of what is remembered would be hidden by what came later."""


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """What the models see of some schedules, row by row."""

    features: NDArray[np.float32]
    expected_latency_s: NDArray[np.float64]
    """What the prior expects, ..."""
    expected_power_w: NDArray[np.float64]
    """... and of board watts."""
    issue_slots: NDArray[np.float64]
    """What they take of their device (`features.slots`)."""
    fma_count: NDArray[np.float64]
    """Multiply-adds that their lanes carry out, those on padding among them."""

    def predict_standby_w(self, peaks: Peaks) -> NDArray[np.float64]:
        """Watts that the prior expects before any work is done."""
        return prior.predict_standby_w(self.features[:, BALANCE_COLUMN], peaks)

    def set_rows(self, rows: NDArray[np.intp], inputs: ModelInputs) -> None:
        """What is seen of some rows, into their places."""
        for f in fields(ModelInputs):
            getattr(self, f.name)[rows] = getattr(inputs, f.name)


def allocate_inputs(row_count: int) -> ModelInputs:
    """For so many rows, of which nothing is said yet."""
    return ModelInputs(
        np.empty((row_count, len(FEATURE_NAMES)), np.float32), *(np.empty(row_count) for _ in range(4))
    )


def make_model_inputs(quantities: Quantities, peaks: Peaks) -> ModelInputs:
    """Of the figures of an analysis."""
    return ModelInputs(
        build_features(quantities),
        prior.predict_latency_s(quantities, peaks),
        prior.predict_power_w(quantities, peaks),
        count_issue_slots(quantities),
        quantities["total_fma"],
    )


class ModelInputCache:
    """What the models see of genomes of a space; of those seen last, without analysing them again."""

    def __init__(self, space: SearchSpace, extract_inputs: Callable[[Population], ModelInputs]) -> None:
        """`see`: what they see of a population, such as `space.seen` for some peaks."""
        self.space, self.extract_inputs = space, extract_inputs
        self._keys = np.zeros(MAX_CACHED_GENOMES, dtype=np.int64)
        self._cached_inputs = allocate_inputs(MAX_CACHED_GENOMES)
        self._row_by_slot = np.zeros(_CACHE_SLOTS, dtype=np.int32)
        """Where a genome is kept, by the low bits of its key; of two with the same, the last."""
        self._next_row = 0

    def get_inputs(self, population: Population) -> ModelInputs:
        """Every genome, remembered or not."""
        keys = self.space.compute_keys(population)
        places = self._row_by_slot[keys & (_CACHE_SLOTS - 1)]
        new = np.flatnonzero(self._keys[places] != keys)
        if len(new) == len(keys):
            return self._extract_and_store(population, keys)
        found = ModelInputs(*(getattr(self._cached_inputs, f.name)[places] for f in fields(ModelInputs)))
        if len(new):
            found.set_rows(new, self._extract_and_store(population[new], keys[new]))
        return found

    def _extract_and_store(self, population: Population, keys: NDArray[np.int64]) -> ModelInputs:
        fresh = self.extract_inputs(population)
        self._store(keys, fresh)
        return fresh

    def _store(self, keys: NDArray[np.int64], inputs: ModelInputs) -> None:
        """In place of what was analysed longest ago."""
        keys = keys[-MAX_CACHED_GENOMES:]
        places = (self._next_row + np.arange(len(keys))) % MAX_CACHED_GENOMES
        self._next_row = (self._next_row + len(keys)) % MAX_CACHED_GENOMES
        self._keys[places], self._row_by_slot[keys & (_CACHE_SLOTS - 1)] = keys, places
        for f in fields(ModelInputs):
            getattr(self._cached_inputs, f.name)[places] = getattr(inputs, f.name)[-MAX_CACHED_GENOMES:]
