"""What the models see of a schedule: readable quantities of the analysis, scaled by log2(1 + x).

Nothing here comes from a compiled kernel or from a device's own model of itself; the same features
describe a candidate that was never compiled.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

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
PREFETCH_DISCOUNT, MAX_DISCOUNTED_STAGES = 1 / 300, 3.0
"""Of its slots, what each tile on its way is worth to a schedule, and how many are: who copies ahead further
can wait longer for memory. All in all a percent, no more than what counting is right to. Ours."""
_ISSUE_SLOT_QUANTITIES = tuple(
    f"total_{what}"
    for what in (
        *("operations", "loop_steps", "barriers", "shuffles", "conversions", "guards"),
        *(f"{scope}_{way}_requests" for scope in ("global", "shared") for way in ("load", "store")),
        *("shared_load_wavefronts", "shared_store_wavefronts"),
    )
)


def build_features(quantities: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float32]:
    """One row per schedule, one column per name in `NAMES`."""
    counts = [quantities[name] for name in COUNT_FEATURES]
    rates = [quantities[a] / np.maximum(quantities[b], 1.0) for _, a, b in RATIO_FEATURES]
    table = np.stack([*counts, *(quantities[name] for name in SHARE_FEATURES), *rates])
    for scaled in (table[: len(counts)], table[-len(rates) :]):
        np.log2(np.add(scaled, 1.0, out=scaled), out=scaled)
    return np.ascontiguousarray(table.T, dtype=np.float32)


def count_issue_slots(quantities: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Warp instructions that the analysis of each schedule counts, one for each loop step, and passes through
    the banks of shared memory; less a little for each tile that is copied ahead (`AHEAD`)."""
    counted = sum((quantities[name] for name in _ISSUE_SLOT_QUANTITIES), -quantities["total_async_copies"])
    return np.asarray(
        counted * (1 - PREFETCH_DISCOUNT * np.minimum(quantities["pipeline"] - 1, MAX_DISCOUNTED_STAGES))
    )
