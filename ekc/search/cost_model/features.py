"""Features of schedules for the models: quantities of the analysis, scaled by log2(1 + x).

No feature comes from a compiled kernel or from the model of a simulated device: a schedule has the same
features before it is compiled.

`ModelInputCache` keeps the inputs of the models for the genomes analysed last. Predictions change from round
to round, but the counts of a schedule do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import PriorFunction, Quantities
from ekc.search.data.defaults import FEATURE_CACHE
from ekc.search.data.population import Population, SearchSpace

COUNT_FEATURES = (
    "total_operations",
    "total_loop_steps",
    "total_barriers",
    "total_shuffles",
    "total_conversions",
    "total_guards",
    "total_global_load_requests",
    "total_global_load_sectors",
    "total_global_store_requests",
    "total_global_store_sectors",
    "total_shared_load_requests",
    "total_shared_load_wavefronts",
    "total_shared_store_requests",
    "total_shared_store_wavefronts",
    "total_global_load_bytes",
    "total_shared_load_bytes",
    "l2_bytes",
    "dram_bytes",
    "block_bytes",
    "shared_bytes",
    "threads",
    "blocks",
    "registers",
    "prefetched",
    "accumulators",
    "statements",
    "waves",
    "resident_blocks",
    "active_warps",
)
SHARE_FEATURES = ("occupancy", "wave_use", "balance", "lane_use", "useful_share", "pipeline")
RATIO_FEATURES = (
    ("operations_per_shared_load", "total_operations", "total_shared_load_requests"),
    ("operations_per_global_load", "total_operations", "total_global_load_requests"),
    ("sectors_per_global_load", "total_global_load_sectors", "total_global_load_requests"),
    ("wavefronts_per_shared_load", "total_shared_load_wavefronts", "total_shared_load_requests"),
    ("wavefronts_per_shared_store", "total_shared_store_wavefronts", "total_shared_store_requests"),
    ("operations_per_barrier", "total_operations", "total_barriers"),
)
FEATURE_NAMES = (*COUNT_FEATURES, *SHARE_FEATURES, *(name for name, _, _ in RATIO_FEATURES))
THREADS_COLUMN, REGISTERS_COLUMN = FEATURE_NAMES.index("threads"), FEATURE_NAMES.index("registers")
"""Columns of threads per block and of estimated registers per thread, as log2(1 + count)."""


def build_features(quantities: Quantities) -> NDArray[np.float32]:
    """[schedules, `FEATURE_NAMES`]: the features of analysed schedules."""
    counts = [quantities[name] for name in COUNT_FEATURES]
    rates = [quantities[a] / np.maximum(quantities[b], 1.0) for _, a, b in RATIO_FEATURES]
    table = np.stack([*counts, *(quantities[name] for name in SHARE_FEATURES), *rates])
    for scaled in (table[: len(counts)], table[-len(rates) :]):
        np.log2(np.add(scaled, 1.0, out=scaled), out=scaled)
    return np.ascontiguousarray(table.T, dtype=np.float32)


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
    """Part of the expected power, in watts, that stays the same if the work takes longer."""
    fma_count: NDArray[np.float64]
    """Multiply-adds of all lanes, including those on padding."""

    def set_rows(self, rows: NDArray[np.intp], inputs: ModelInputs) -> None:
        """Copy inputs into these rows."""
        for f in fields(ModelInputs):
            getattr(self, f.name)[rows] = getattr(inputs, f.name)


def allocate_inputs(row_count: int) -> ModelInputs:
    """Allocate the inputs of so many rows, with undefined values."""
    return ModelInputs(
        np.empty((row_count, len(FEATURE_NAMES)), np.float32), *(np.empty(row_count) for _ in range(4))
    )


def make_model_inputs(quantities: Quantities, predict_prior: PriorFunction) -> ModelInputs:
    """Make the inputs of the models from an analysis, by the prior of a device."""
    prior = predict_prior(quantities)
    return ModelInputs(
        build_features(quantities),
        prior.latency_s,
        prior.power_w,
        prior.standby_w,
        quantities["total_fma"],
    )


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
        return ModelInputs(*(getattr(self._inputs, f.name)[rows] for f in fields(ModelInputs)))

    def store(self, keys: NDArray[np.int64], inputs: ModelInputs) -> None:
        """Replace the rows that were analysed longest ago."""
        size = FEATURE_CACHE.max_genomes
        keys = keys[-size:]
        rows = (self._next_row + np.arange(len(keys))) % size
        self._next_row = (self._next_row + len(keys)) % size
        self._keys[rows], self._row_by_slot[keys & (FEATURE_CACHE.slots - 1)] = keys, rows
        for f in fields(ModelInputs):
            getattr(self._inputs, f.name)[rows] = getattr(inputs, f.name)[-size:]
