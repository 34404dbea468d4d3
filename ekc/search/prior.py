"""What physics alone expects: a latency and a power from counted work and the device's ceilings.

A few lines with round constants of our own, fitted to nothing: the learned models start from these and
learn what they miss, and where a model is not faithful these rule.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ekc.devices.base import Peaks

LAUNCH_S = 2e-6
"""Start of an empty kernel, roughly, on any recent GPU."""
_SHARPNESS = 4.0
_SCHEDULERS = 4.0
_WARPS_TO_HIDE = 16.0
"""Warp instructions in flight per SM that keep the arithmetic pipes busy: 4 schedulers x 4 cycles."""


def latency(figures: Mapping[str, NDArray[np.float64]], peaks: Peaks) -> NDArray[np.float64]:
    """Expected seconds per call."""
    parts = _parts(figures, peaks)
    work = sum(p**_SHARPNESS for p in parts.values()) ** (1 / _SHARPNESS)
    return np.asarray(work + LAUNCH_S * figures["launches"])


def power(figures: Mapping[str, NDArray[np.float64]], peaks: Peaks) -> NDArray[np.float64]:
    """Expected board watts: a third always, the rest by how busy arithmetic and memory are."""
    parts, total = _parts(figures, peaks), latency(figures, peaks)
    busy = 0.5 * parts["arithmetic"] / total + 0.3 * parts["dram"] / total + 0.2 * parts["shared"] / total
    return np.asarray(peaks.board_power_w * np.minimum(0.33 + 0.67 * busy, 1.0))


def _parts(figures: Mapping[str, NDArray[np.float64]], peaks: Peaks) -> dict[str, NDArray[np.float64]]:
    """Seconds that each resource needs alone."""
    lanes = peaks.fp32_flops / 2
    # A conversion runs at a quarter of the rate of arithmetic.
    extra = figures["total_guards"] + 3 * figures["total_loop_steps"] + 8 * figures["total_conversions"]
    memory = figures["total_shared_load_requests"] + figures["total_global_load_requests"]
    instructions = (figures["total_operations"] + 0.5 * extra + 0.5 * memory) * 32
    warps = figures["active_warps"]
    issuing = np.minimum(warps / _SCHEDULERS, 1.0)
    hidden = np.minimum(warps * np.minimum(figures["accumulators"], 8.0) / _WARPS_TO_HIDE, 1.0) ** 0.5
    use = figures["balance"] * issuing * hidden
    bytes_in_flight = np.minimum(figures["balance"] * warps / _WARPS_TO_HIDE, 1.0)
    sectors = 32 * (figures["total_global_load_sectors"] + figures["total_global_store_sectors"])
    waves = figures["total_shared_load_wavefronts"] + figures["total_shared_store_wavefronts"]
    return {
        "arithmetic": instructions / lanes / use,
        "shared": waves * 128 / (lanes * 2) / use,
        "l2": sectors / (3 * peaks.dram_bytes_per_s) / use**0.5,
        "dram": figures["dram_bytes"] / peaks.dram_bytes_per_s / np.maximum(bytes_in_flight, 0.05),
    }
