"""What physics alone expects: a latency and a power from counted work and the device's ceilings.

A few lines with round constants of our own: the learned models start from these and learn what they miss,
and where a model is not faithful these rule. `benchmarks/cost_model/analytic.py` holds them against recordings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import Peaks
from ekc.ir.hardware.memory import BANKS, SECTOR_BYTES

LAUNCH_LATENCY_S = 2e-6
"""Start of an empty kernel, roughly, on any recent GPU."""
STATIC_POWER_SHARE = 1 / 3
"""Of the board's power cap: what it draws while all SMs have blocks, whatever these do."""
SLEEP_POWER_SHARE = 1 / 10
"""Of the cap: what it would draw less if none of them had, much of their clock stopped. A guess, which no
recording of ours can test; the simulated devices, which guess so too, flatter it."""
FLOAT_PJ, INTEGER_PJ = 15.0, 11.0
"""Of one lane; these and the next as others fitted them on a GTX 1080 Ti. Newer processes take less, which
is for the line over the prior to learn. The simulated devices started from the same source: they flatter
this."""
TENSOR_PRODUCT_FLOPS = 4096.0
"""Operations of float16 that take tensor cores as long as any product of a warp: those of narrower and wider
types are deeper and shallower."""
TENSOR_PRODUCT_PJ = TENSOR_PRODUCT_FLOPS * FLOAT_PJ / 2 / 10
"""A tenth of what as many operations of float32 take (estimate)."""
SHARED_PJ, L2_PJ, DRAM_PJ = 6.0, 54.0, 51.0
"""Of one byte."""
L1_PJ = 30.0
"""Of a byte of a sector, whether L1 has it or L2 must send it. Round, and what suits recorded kernels best
that read the same from global memory again and again (a100_gemm_clocks; `benchmarks/cost_model/analytic.py`)."""
WAVEFRONT_BYTES = 4.0 * BANKS
"""What one pass through the banks of L1 and shared memory, which are the same, gives."""
_REQUEST_KINDS = (("global", "load"), ("global", "store"), ("shared", "load"), ("shared", "store"))
_SHARPNESS = 4.0
_SCHEDULERS_PER_SM = 4.0
_WARPS_TO_HIDE = 16.0
"""Warp instructions in flight per SM that keep the arithmetic pipes busy: 4 schedulers x 4 cycles."""


def predict_latency_s(quantities: Mapping[str, NDArray[np.float64]], peaks: Peaks) -> NDArray[np.float64]:
    """Expected seconds per call."""
    parts = _predict_resource_times_s(quantities, peaks)
    work = sum(p**_SHARPNESS for p in parts.values()) ** (1 / _SHARPNESS)
    return np.asarray(work + LAUNCH_LATENCY_S * quantities["launches"])


def predict_power_w(quantities: Mapping[str, NDArray[np.float64]], peaks: Peaks) -> NDArray[np.float64]:
    """Expected board watts, cap or no cap: those on standby, and the energy of what is counted."""
    return np.asarray(
        predict_standby_w(quantities["balance"], peaks)
        + _predict_work_energy_j(quantities) / predict_latency_s(quantities, peaks)
    )


def predict_standby_w(balance: NDArray[Any], peaks: Peaks) -> NDArray[np.float64]:
    """Watts that the board draws before any work is done. `balance`: share of the time of its SMs in which
    they have blocks, if each has one at a time."""
    return (
        STATIC_POWER_SHARE - SLEEP_POWER_SHARE * (1.0 - np.asarray(balance, np.float64))
    ) * peaks.board_power_w


def scale_power(
    power_w: NDArray[np.float64], log_latency_residual: NDArray[np.float64], standby_w: NDArray[np.float64]
) -> NDArray[np.float64]:
    """`power`, where the latency is exp(pace) times the expected one: the same work in another time.
    `standby_w`: watts that no work costs."""
    return np.asarray(standby_w + (power_w - standby_w) * np.exp(-log_latency_residual))


def _predict_work_energy_j(quantities: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Energy of the counted work of one call."""
    requests = sum(quantities[f"total_{scope}_{way}_requests"] for scope, way in _REQUEST_KINDS)
    steps = (
        quantities["total_guards"] + 3 * quantities["total_loop_steps"] + 8 * quantities["total_conversions"]
    )
    sectors = quantities["total_global_load_sectors"] + quantities["total_global_store_sectors"]
    waves = quantities["total_shared_load_wavefronts"] + quantities["total_shared_store_wavefronts"]
    lanes = FLOAT_PJ * quantities["total_operations"] + INTEGER_PJ * (requests + steps)
    products = TENSOR_PRODUCT_PJ * (quantities["total_tensor_products"] + quantities["total_group_products"])
    moved = SHARED_PJ * WAVEFRONT_BYTES * waves + L1_PJ * SECTOR_BYTES * sectors
    moved = moved + L2_PJ * quantities["l2_bytes"] + DRAM_PJ * quantities["dram_bytes"]
    return np.asarray(1e-12 * (32 * lanes + products + moved))


def _predict_resource_times_s(
    quantities: Mapping[str, NDArray[np.float64]], peaks: Peaks
) -> dict[str, NDArray[np.float64]]:
    """Seconds that each resource needs alone."""
    lanes = peaks.fp32_flops / 2
    # A conversion runs at a quarter of the rate of arithmetic.
    extra = (
        quantities["total_guards"] + 3 * quantities["total_loop_steps"] + 8 * quantities["total_conversions"]
    )
    memory = quantities["total_shared_load_requests"] + quantities["total_global_load_requests"]
    instructions = (quantities["total_operations"] + 0.5 * extra + 0.5 * memory) * 32
    warps = quantities["active_warps"]
    issuing = np.minimum(warps / _SCHEDULERS_PER_SM, 1.0)
    hidden = np.minimum(warps * np.minimum(quantities["accumulators"], 8.0) / _WARPS_TO_HIDE, 1.0) ** 0.5
    use = quantities["balance"] * issuing * hidden
    bytes_in_flight = np.minimum(quantities["balance"] * warps / _WARPS_TO_HIDE, 1.0)
    asked = quantities["total_global_load_requests"] + quantities["total_global_store_requests"]
    sectors = quantities["total_global_load_sectors"] + quantities["total_global_store_sectors"]
    waves = quantities["total_shared_load_wavefronts"] + quantities["total_shared_store_wavefronts"]
    # However few bytes a request asks for, it takes a pass.
    passes = waves + np.maximum(asked, sectors * SECTOR_BYTES / WAVEFRONT_BYTES)
    products = quantities["total_tensor_products"] / peaks.mma_share + quantities["total_group_products"]
    return {
        "arithmetic": instructions / lanes / use,
        "tensor": products * TENSOR_PRODUCT_FLOPS / peaks.flops_by_type["float16"] / use,
        "l1": WAVEFRONT_BYTES * passes / (lanes * 2) / use,
        "l2": quantities["l2_bytes"] / (3 * peaks.dram_bytes_per_s) / use**0.5,
        "dram": quantities["dram_bytes"] / peaks.dram_bytes_per_s / np.maximum(bytes_in_flight, 0.05),
    }
