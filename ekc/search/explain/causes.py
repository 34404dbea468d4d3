"""The figures that the models see, by what they are about.

A larger tile changes a dozen counts at once. Which of those that always move together does the work,
no model can know; which group does, it can.
"""

from __future__ import annotations

FEATURE_GROUPS: dict[str, tuple[str, ...]] = {
    "arithmetic": (
        "total_operations",
        "total_tensor_products",
        "total_group_products",
        "total_conversions",
        "useful_share",
    ),
    "loops and guards": ("total_loop_steps", "total_guards", "statements"),
    "global memory": (
        "total_global_load_requests",
        "total_global_load_sectors",
        "total_global_load_bytes",
        "total_global_store_requests",
        "total_global_store_sectors",
        "l2_bytes",
        "dram_bytes",
        "block_bytes",
    ),
    "shared memory": (
        "total_shared_load_requests",
        "total_shared_load_wavefronts",
        "total_shared_load_bytes",
        "total_shared_store_requests",
        "total_shared_store_wavefronts",
    ),
    "registers": ("registers", "accumulators", "prefetched"),
    "occupancy and waves": (
        "threads",
        "blocks",
        "shared_bytes",
        "resident_blocks",
        "active_warps",
        "occupancy",
        "waves",
        "wave_use",
        "balance",
        "lane_use",
    ),
    "synchronisation": ("total_barriers", "total_shuffles", "pipeline", "launches"),
}
"""Every figure that a feature or the prior is made of, once. Bytes of shared memory that a block owns stand
with the occupancy that they cost."""


def format_figure_name(figure: str) -> str:
    """A figure's name as it is printed."""
    return figure.removeprefix("total_").replace("_", " ")
