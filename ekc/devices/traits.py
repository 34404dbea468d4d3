"""What a launch is like: numbers whose distance says how alike two launches are.

They say what a warp does, in which proportions, and how many of them share an SM; not how much there is to
do, so that a kernel keeps most of its traits from one problem size to another.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ekc.devices.events import Events
from ekc.devices.occupancy import Occupancy

RARE_SHARE = 1e-3
"""Of a thousand instructions one: less often than that hardly counts."""


def compute_traits(events: Events, occupancy: Occupancy) -> NDArray[np.float64]:
    """`[24]`, in octaves: one apart means about twice as often, as many, or as large."""
    moved, warps = events.traffic, events.warps
    counted = (
        events.fma32,
        events.fp32,
        events.fp16,
        events.tensor,
        events.sfu,
        events.int_ops,
        events.convert,
        events.shuffle,
        events.branch + events.other,
        events.shared_requests,
        events.shared_wavefronts,
        events.local_requests,
        events.lsu_cycles,
        moved.requests,
        moved.sectors,
        moved.l2_bytes,
        moved.dram_bytes,
        events.barriers * warps,
        events.load_rounds * warps,
        events.tile_waits * warps,
    )
    shares = np.array(counted) / max(events.issued_instructions, 1.0)
    sizes = np.array((events.registers, events.warps_per_block, occupancy.blocks, events.tiles_ahead))
    return np.concatenate([np.log2(1.0 + shares / RARE_SHARE), np.log2(1.0 + sizes)])
