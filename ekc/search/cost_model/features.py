"""What the models see of a schedule: readable quantities of the analysis, scaled by log2(1 + x).

Nothing here comes from a compiled kernel or from a device's own model of itself; the same features
describe a candidate that was never compiled.

What analysis says of genomes, for the models; remembered, for a search scores its favourites again.

Beliefs change from round to round; what is counted in a schedule does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import Peaks
from ekc.search.cost_model import analytic
from ekc.search.data.population import Population, SearchSpace
from ekc.search.data.selection import count_issue_slots

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
BALANCE_COLUMN = FEATURE_NAMES.index("balance")
"""The column of the share of their time in which SMs have blocks; shares stand there as they are."""
THREADS_COLUMN, REGISTERS_COLUMN = FEATURE_NAMES.index("threads"), FEATURE_NAMES.index("registers")
"""The columns of threads a block and of registers a thread, counted; `log2(1 + x)` as all that is counted."""


def build_features(quantities: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float32]:
    """One row per schedule, one column per name in `NAMES`."""
    counts = [quantities[name] for name in COUNT_FEATURES]
    rates = [quantities[a] / np.maximum(quantities[b], 1.0) for _, a, b in RATIO_FEATURES]
    table = np.stack([*counts, *(quantities[name] for name in SHARE_FEATURES), *rates])
    for scaled in (table[: len(counts)], table[-len(rates) :]):
        np.log2(np.add(scaled, 1.0, out=scaled), out=scaled)
    return np.ascontiguousarray(table.T, dtype=np.float32)


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
        return analytic.predict_standby_w(self.features[:, BALANCE_COLUMN], peaks)

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
        analytic.predict_latency_s(quantities, peaks),
        analytic.predict_power_w(quantities, peaks),
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
