"""Inputs of the models: the features of schedules (`feature_table.py`), and the figures of the prior.

`ModelInputCache` keeps the inputs of the models for the genomes analysed last. Predictions change from round
to round, but the counts of a schedule do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import PriorFunction, Quantities
from ekc.search.cost_model.boosted_prior import BoostedPrior
from ekc.search.cost_model.feature_table import FEATURE_NAMES, FEATURES, Feature, Scale
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import FEATURE_CACHE
from ekc.search.data.population import Population, SearchSpace

Array = NDArray[np.float64]

THREADS_COLUMN, REGISTERS_COLUMN = FEATURE_NAMES.index("threads"), FEATURE_NAMES.index("registers")
"""Columns of threads per block and of estimated registers per thread, as log2(1 + count)."""
_AS_IS = [i for i, f in enumerate(FEATURES) if f.scale is Scale.AS_IS]
_FIRST_AS_IS, _LAST_AS_IS = _AS_IS[0], _AS_IS[-1]
"""Columns of the features that are not logarithms: they are neighbours."""


def compute_features(quantities: Quantities) -> NDArray[np.float64]:
    """[`FEATURES`, schedules]: the values of the features of analysed schedules, in their units."""
    return np.stack([_compute_feature(f, quantities) for f in FEATURES])


def _compute_feature(feature: Feature, quantities: Quantities) -> NDArray[np.float64]:
    values = quantities[feature.quantity]
    return values / np.maximum(quantities[feature.divisor], 1.0) if feature.divisor else values


def build_features(quantities: Quantities) -> NDArray[np.float32]:
    """[schedules, `FEATURES`]: the features of analysed schedules, as the models see them."""
    table = compute_features(quantities)
    for scaled in (table[:_FIRST_AS_IS], table[_LAST_AS_IS + 1 :]):
        np.log2(np.add(scaled, 1.0, out=scaled), out=scaled)
    return np.ascontiguousarray(table.T, dtype=np.float32)


def decode_features(rows: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
    """Feature -> its values in its unit, from `rows[schedules, FEATURES]` as the models see them."""
    values = rows.astype(np.float64).T
    for scaled in (values[:_FIRST_AS_IS], values[_LAST_AS_IS + 1 :]):
        scaled[:] = np.exp2(scaled) - 1.0
    return dict(zip(FEATURE_NAMES, values, strict=True))


def scale_power(power_w: Array, log_latency: Array, standby_w: Array) -> Array:
    """Power of the same work in exp(`log_latency`) times the latency; `standby_w` stays."""
    return np.asarray(standby_w + (power_w - standby_w) * np.exp(-log_latency))


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """Inputs of the models for some schedules. Arrays have one row per schedule."""

    features: NDArray[np.float32]
    """[rows, `FEATURE_NAMES`]."""
    expected_latency_s: NDArray[np.float64]
    """Latency by the prior of the device, in seconds."""
    expected_power_w: NDArray[np.float64]
    """Board power by the prior of the device, in watts."""
    standby_w: NDArray[np.float64]
    """Part of that power, in watts, that stays the same if the work takes longer."""
    fma_count: NDArray[np.float64]
    """Multiply-adds of all lanes, including those on padding."""
    latency_correction: NDArray[np.float64]
    """Natural log of latency over its prior by the boosted model; 0 where the prior is not corrected."""
    energy_correction: NDArray[np.float64]
    """Natural log of energy over the prior's at the same latency, by the boosted model, at the measured
    latency or at the one that the boosted model predicts; 0 where the prior is not corrected."""

    def expect_latency_s(self, is_corrected: bool) -> Array:
        """Latency in seconds by the prior, or by the prior as the boosted model corrects it."""
        return self.expected_latency_s * np.exp(self.latency_correction if is_corrected else 0.0)

    def expect_power_w(self, log_latency_s: Array, is_corrected: bool) -> Array:
        """Watts at these latencies by the prior, or by the prior as the boosted model corrects it."""
        log_latency = log_latency_s - np.log(self.expected_latency_s)
        watts = scale_power(self.expected_power_w, log_latency, self.standby_w)
        return watts * np.exp(self.energy_correction if is_corrected else 0.0)

    def set_rows(self, rows: NDArray[np.intp], inputs: ModelInputs) -> None:
        """Copy inputs into these rows."""
        for f in fields(ModelInputs):
            getattr(self, f.name)[rows] = getattr(inputs, f.name)

    def __getitem__(self, rows: NDArray[np.int32] | slice) -> ModelInputs:
        return ModelInputs(*(getattr(self, f.name)[rows] for f in fields(ModelInputs)))


InputFunction = Callable[[Quantities], ModelInputs]
"""Makes the inputs of the models for analysed schedules."""


def allocate_inputs(row_count: int) -> ModelInputs:
    """Allocate the inputs of so many rows, with undefined values."""
    return ModelInputs(
        np.empty((row_count, len(FEATURE_NAMES)), np.float32), *(np.empty(row_count) for _ in range(6))
    )


def collect_inputs(timed: Sequence[Candidate], booster: BoostedPrior | None) -> ModelInputs:
    """Collect the inputs of timed candidates, of which there is at least one."""
    columns = [(c.expected_latency_s, c.expected_power_w, c.standby_w) for c in timed]
    latency_s, power_w, standby_w = np.array(columns).T
    figures = np.stack([c.features for c in timed]), latency_s, power_w, standby_w, np.zeros(len(timed))
    if booster is None or not len(timed[0].booster_inputs):
        return ModelInputs(*figures, *np.zeros((2, len(timed))))
    rows = np.stack([c.booster_inputs for c in timed])
    log_latency = np.log([c.latency_s for c in timed]) - np.log(latency_s)
    return ModelInputs(*figures, booster.predict_latency(rows), booster.predict_energy(rows, log_latency))


def make_model_inputs(
    quantities: Quantities, predict_prior: PriorFunction, booster: BoostedPrior | None = None
) -> ModelInputs:
    """Make the inputs of the models from an analysis, by the prior of a device. Without a booster the
    corrections are 0."""
    prior, features = predict_prior(quantities), build_features(quantities)
    figures = prior.latency_s, prior.power_w, prior.standby_w, quantities["total_fma"]
    if booster is None or not prior.resource_times_s:
        return ModelInputs(features, *figures, *np.zeros((2, len(features))))
    rows = booster.make_inputs(features, prior)
    log_latency = booster.predict_latency(rows)
    return ModelInputs(features, *figures, log_latency, booster.predict_energy(rows, log_latency))


class ModelInputCache:
    """Inputs of the models for genomes of a space; those analysed last are kept."""

    def __init__(self, space: SearchSpace, extract_inputs: Callable[[Population], ModelInputs]) -> None:
        """`extract_inputs`: analyses a population, such as `space.extract_inputs` for some prior."""
        self.space, self.extract_inputs = space, extract_inputs
        self._rows: _CachedRows | None = None

    def clear(self) -> None:
        """Free the inputs, some 17 MB; they are analysed again when needed."""
        self._rows = None

    def get_inputs(self, population: Population) -> ModelInputs:
        """The inputs of every genome, from the cache or analysed now."""
        if self._rows is None:
            self._rows = _CachedRows()
        keys = self.space.compute_keys(population)
        rows, new = self._rows.find(keys)
        if len(new) == len(keys):
            return self._extract_and_store(self._rows, population, keys)
        found = self._rows.get_inputs(rows)
        if len(new):
            found.set_rows(new, self._extract_and_store(self._rows, population[new], keys[new]))
        return found

    def _extract_and_store(
        self, cached: _CachedRows, population: Population, keys: NDArray[np.int64]
    ) -> ModelInputs:
        fresh = self.extract_inputs(population)
        cached.store(keys, fresh)
        return fresh


class _CachedRows:
    """The memory of a cache, allocated at its first use: memory that is freed and allocated again may count
    as used before anything is written to it."""

    def __init__(self) -> None:
        self._keys = np.zeros(FEATURE_CACHE.max_genomes, dtype=np.int64)
        self._inputs = allocate_inputs(FEATURE_CACHE.max_genomes)
        self._row_by_slot = np.zeros(FEATURE_CACHE.slots, dtype=np.int32)
        """Row of a genome by the low bits of its key; for two genomes with the same bits, of the last one."""
        self._next_row = 0

    def find(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
        """(row of each key, indices of the keys that are missing)."""
        rows = self._row_by_slot[keys & (FEATURE_CACHE.slots - 1)]
        return rows, np.flatnonzero(self._keys[rows] != keys)

    def get_inputs(self, rows: NDArray[np.int32]) -> ModelInputs:
        """Copies of the inputs of these rows."""
        return self._inputs[rows]

    def store(self, keys: NDArray[np.int64], inputs: ModelInputs) -> None:
        """Replace the rows that were analysed longest ago."""
        size = FEATURE_CACHE.max_genomes
        keys = keys[-size:]
        rows = (self._next_row + np.arange(len(keys))) % size
        self._next_row = (self._next_row + len(keys)) % size
        self._keys[rows], self._row_by_slot[keys & (FEATURE_CACHE.slots - 1)] = keys, rows
        for f in fields(ModelInputs):
            getattr(self._inputs, f.name)[rows] = getattr(inputs, f.name)[-size:]
