"""What physics alone expects: a latency and a power from counted work and the device's ceilings.

A few lines with round constants of our own: the learned models start from these and learn what they miss,
and where a model is not faithful these rule. `benchmarks/prior_accuracy.py` holds them against recordings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.devices.base import Peaks
from ekc.ir.patterns.warp import BANKS, SECTOR_BYTES

LAUNCH_S = 2e-6
"""Start of an empty kernel, roughly, on any recent GPU."""
STATIC = 1 / 3
"""Of the board's power cap: what it draws while all SMs have blocks, whatever these do."""
SLEEP = 1 / 10
"""Of the cap: what it would draw less if none of them had, much of their clock stopped. A guess, which no
recording of ours can test; the simulated devices, which guess so too, flatter it."""
FLOAT_PJ, INTEGER_PJ = 15.0, 11.0
"""Of one lane; these and the next as others fitted them on a GTX 1080 Ti. Newer processes take less, which
is for the line over the prior to learn. The simulated devices started from the same source: they flatter
this."""
PRODUCT_FLOPS = 4096.0
"""Operations of float16 that take tensor cores as long as any product of a warp: those of narrower and wider
types are deeper and shallower."""
PRODUCT_PJ = PRODUCT_FLOPS * FLOAT_PJ / 2 / 10
"""A tenth of what as many operations of float32 take (estimate)."""
SHARED_PJ, L2_PJ, DRAM_PJ = 6.0, 54.0, 51.0
"""Of one byte."""
L1_PJ = 30.0
"""Of a byte of a sector, whether L1 has it or L2 must send it. Round, and what suits recorded kernels best
that read the same from global memory again and again (a100_gemm_clocks; `benchmarks/prior_accuracy.py`)."""
PASS_BYTES = 4.0 * BANKS
"""What one pass through the banks of L1 and shared memory, which are the same, gives."""
_WAYS = (("global", "load"), ("global", "store"), ("shared", "load"), ("shared", "store"))
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
    """Expected board watts, cap or no cap: those on standby, and the energy of what is counted."""
    return np.asarray(standby(figures["balance"], peaks) + _joules(figures) / latency(figures, peaks))


def standby(balance: NDArray[Any], peaks: Peaks) -> NDArray[np.float64]:
    """Watts that the board draws before any work is done. `balance`: share of the time of its SMs in which
    they have blocks, if each has one at a time."""
    return (STATIC - SLEEP * (1.0 - np.asarray(balance, np.float64))) * peaks.board_power_w


def paced(
    watts: NDArray[np.float64], pace: NDArray[np.float64], standby_w: NDArray[np.float64]
) -> NDArray[np.float64]:
    """`power`, where the latency is exp(pace) times the expected one: the same work in another time.
    `standby_w`: watts that no work costs."""
    return np.asarray(standby_w + (watts - standby_w) * np.exp(-pace))


def _joules(figures: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Energy of the counted work of one call."""
    requests = sum(figures[f"total_{scope}_{way}_requests"] for scope, way in _WAYS)
    steps = figures["total_guards"] + 3 * figures["total_loop_steps"] + 8 * figures["total_conversions"]
    sectors = figures["total_global_load_sectors"] + figures["total_global_store_sectors"]
    waves = figures["total_shared_load_wavefronts"] + figures["total_shared_store_wavefronts"]
    lanes = FLOAT_PJ * figures["total_operations"] + INTEGER_PJ * (requests + steps)
    products = PRODUCT_PJ * (figures["total_tensor_products"] + figures["total_group_products"])
    moved = SHARED_PJ * PASS_BYTES * waves + L1_PJ * SECTOR_BYTES * sectors
    moved = moved + L2_PJ * figures["l2_bytes"] + DRAM_PJ * figures["dram_bytes"]
    return np.asarray(1e-12 * (32 * lanes + products + moved))


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
    asked = figures["total_global_load_requests"] + figures["total_global_store_requests"]
    sectors = figures["total_global_load_sectors"] + figures["total_global_store_sectors"]
    waves = figures["total_shared_load_wavefronts"] + figures["total_shared_store_wavefronts"]
    # However few bytes a request asks for, it takes a pass.
    passes = waves + np.maximum(asked, sectors * SECTOR_BYTES / PASS_BYTES)
    products = figures["total_tensor_products"] / peaks.mma_share + figures["total_group_products"]
    return {
        "arithmetic": instructions / lanes / use,
        "tensor": products * PRODUCT_FLOPS / peaks.flops_by_type["float16"] / use,
        "l1": PASS_BYTES * passes / (lanes * 2) / use,
        "l2": figures["l2_bytes"] / (3 * peaks.dram_bytes_per_s) / use**0.5,
        "dram": figures["dram_bytes"] / peaks.dram_bytes_per_s / np.maximum(bytes_in_flight, 0.05),
    }
