"""How many bytes of a tensor cross from DRAM into L2 (or back) in one launch.

Blocks run in waves: consecutive block numbers, as many as are resident at a time. Within a wave,
blocks walk in step, so a panel that several of them need is fetched once. Between waves a panel
survives if everything touched before its next use fits L2. Each launch begins with a cold L2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ekc.codegen.compiled import Footprint

USABLE_L2_SHARE = 0.8
"""Share of L2 that data really gets: the rest is lost to hashing and other tensors (estimate)."""
EVICTION_EXPONENT = 2.0
"""How sharply hits fall once the data outgrow L2; a strict LRU would drop to none (estimate)."""


@dataclass(frozen=True)
class _TouchedBytes:
    wave_bytes: float
    """Distinct bytes that one wave touches."""
    launch_bytes: float
    """Distinct bytes that the whole launch touches."""

    @property
    def reuse_distance_waves(self) -> float:
        """Waves until the same bytes come round again."""
        return max(1.0, self.launch_bytes / self.wave_bytes) if self.wave_bytes > 0 else 1.0


def compute_dram_bytes(
    footprints: Sequence[Footprint], wave_blocks: float, l2_bytes: float
) -> tuple[float, ...]:
    """DRAM bytes per footprint, in order, for waves of `wave_blocks` resident blocks."""
    touched = [_count_touched_bytes(footprint, wave_blocks) for footprint in footprints]
    return tuple(
        _compute_fetched_bytes(
            own, _count_waves(footprint, wave_blocks), _estimate_hit_share(own, touched, l2_bytes)
        )
        for footprint, own in zip(footprints, touched, strict=True)
    )


def compute_compulsory_bytes(footprint: Footprint) -> float:
    """Distinct bytes of the tensor that the launch touches at all."""
    return _count_touched_bytes(footprint, _count_blocks(footprint)).launch_bytes


def _count_touched_bytes(footprint: Footprint, wave_blocks: float) -> _TouchedBytes:
    panels_wave = panels_launch = stride = 1.0
    for extent, depends in footprint.block_loops:
        if depends:
            panels_wave *= min(max(wave_blocks / stride, 1.0), float(extent))
            panels_launch *= extent
        stride *= extent
    size = float(footprint.tensor_bytes)
    return _TouchedBytes(
        min(panels_wave * footprint.block_bytes, size), min(panels_launch * footprint.block_bytes, size)
    )


def _count_blocks(footprint: Footprint) -> float:
    blocks = 1.0
    for extent, _ in footprint.block_loops:
        blocks *= extent
    return blocks


def _count_waves(footprint: Footprint, wave_blocks: float) -> float:
    return max(1.0, _count_blocks(footprint) / wave_blocks)


def _estimate_hit_share(own: _TouchedBytes, touched: Sequence[_TouchedBytes], l2_bytes: float) -> float:
    """Share of the tensor still in L2 when its turn comes again."""
    between = sum(min(other.launch_bytes, own.reuse_distance_waves * other.wave_bytes) for other in touched)
    if between <= 0:
        return 1.0
    return float(min(1.0, (USABLE_L2_SHARE * l2_bytes / between) ** EVICTION_EXPONENT))


def _compute_fetched_bytes(own: _TouchedBytes, waves: float, hit_share: float) -> float:
    return own.launch_bytes + (1.0 - hit_share) * max(0.0, waves * own.wave_bytes - own.launch_bytes)
