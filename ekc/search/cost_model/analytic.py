"""The analytic prior: expected latency and power from counted work and the peaks of a device.

The learned models start from this prior and learn its error. Where a learned model is in quarantine, the
prior alone is used. `benchmarks/cost_model/analytic.py` compares it with recordings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import Peaks
from ekc.ir.hardware.memory import BANKS, SECTOR_BYTES
from ekc.search.data.defaults import ANALYTIC

TENSOR_PRODUCT_FLOPS = 4096.0
"""Floating-point operations of one `mma` in float16. An `mma` of another type takes as long: narrower types
are deeper, wider types less deep."""
WAVEFRONT_BYTES = 4.0 * BANKS
"""Bytes of one wavefront, that is one pass through the banks of L1 and shared memory."""
_REQUEST_KINDS = (("global", "load"), ("global", "store"), ("shared", "load"), ("shared", "store"))
_SCHEDULERS_PER_SM = 4.0


def predict_latency_s(quantities: Mapping[str, NDArray[np.float64]], peaks: Peaks) -> NDArray[np.float64]:
    """Expected seconds of a call: the p-norm of the times that each resource needs, and the launch."""
    parts = _predict_resource_times_s(quantities, peaks)
    norm = ANALYTIC.overlap_norm
    work = sum(p**norm for p in parts.values()) ** (1 / norm)
    return np.asarray(work + ANALYTIC.launch_latency_s * quantities["launches"])


def predict_power_w(quantities: Mapping[str, NDArray[np.float64]], peaks: Peaks) -> NDArray[np.float64]:
    """Expected board power in watts, not limited by the power cap: standby power, and the energy of the
    counted work over the expected latency."""
    return np.asarray(
        predict_standby_w(quantities["balance"], peaks)
        + _predict_work_energy_j(quantities) / predict_latency_s(quantities, peaks)
    )


def predict_standby_w(balance: NDArray[Any], peaks: Peaks) -> NDArray[np.float64]:
    """Watts without work. `balance`: share of their time in which the SMs have a block each."""
    idle = 1.0 - np.asarray(balance, np.float64)
    return (ANALYTIC.static_power_share - ANALYTIC.sleep_power_share * idle) * peaks.board_power_w


def scale_power(
    power_w: NDArray[np.float64], log_latency_residual: NDArray[np.float64], standby_w: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Power of the same work in exp(`log_latency_residual`) times the latency; `standby_w` stays."""
    return np.asarray(standby_w + (power_w - standby_w) * np.exp(-log_latency_residual))


def _predict_work_energy_j(quantities: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Energy in joules of the counted work of one call."""
    requests = sum(quantities[f"total_{scope}_{way}_requests"] for scope, way in _REQUEST_KINDS)
    steps = (
        quantities["total_guards"] + 3 * quantities["total_loop_steps"] + 8 * quantities["total_conversions"]
    )
    sectors = quantities["total_global_load_sectors"] + quantities["total_global_store_sectors"]
    waves = quantities["total_shared_load_wavefronts"] + quantities["total_shared_store_wavefronts"]
    lanes = ANALYTIC.float_pj * quantities["total_operations"] + ANALYTIC.integer_pj * (requests + steps)
    product_pj = TENSOR_PRODUCT_FLOPS * ANALYTIC.float_pj / 2 / ANALYTIC.tensor_energy_ratio
    products = product_pj * (quantities["total_tensor_products"] + quantities["total_group_products"])
    moved = ANALYTIC.shared_pj * WAVEFRONT_BYTES * waves + ANALYTIC.l1_pj * SECTOR_BYTES * sectors
    moved = moved + ANALYTIC.l2_pj * quantities["l2_bytes"] + ANALYTIC.dram_pj * quantities["dram_bytes"]
    return np.asarray(1e-12 * (32 * lanes + products + moved))


def _predict_resource_times_s(
    quantities: Mapping[str, NDArray[np.float64]], peaks: Peaks
) -> dict[str, NDArray[np.float64]]:
    """Resource -> seconds that it needs for the work if it is the only limit."""
    lanes = peaks.fp32_flops / 2
    # A conversion runs at a quarter of the rate of arithmetic.
    extra = (
        quantities["total_guards"] + 3 * quantities["total_loop_steps"] + 8 * quantities["total_conversions"]
    )
    memory = quantities["total_shared_load_requests"] + quantities["total_global_load_requests"]
    instructions = (quantities["total_operations"] + 0.5 * extra + 0.5 * memory) * 32
    warps = quantities["active_warps"]
    issuing = np.minimum(warps / _SCHEDULERS_PER_SM, 1.0)
    in_flight = warps * np.minimum(quantities["accumulators"], 8.0)
    hidden = np.minimum(in_flight / ANALYTIC.warps_to_hide, 1.0) ** 0.5
    use = quantities["balance"] * issuing * hidden
    bytes_in_flight = np.minimum(quantities["balance"] * warps / ANALYTIC.warps_to_hide, 1.0)
    requests = quantities["total_global_load_requests"] + quantities["total_global_store_requests"]
    sectors = quantities["total_global_load_sectors"] + quantities["total_global_store_sectors"]
    waves = quantities["total_shared_load_wavefronts"] + quantities["total_shared_store_wavefronts"]
    # A request takes at least one wavefront, however few bytes it needs.
    passes = waves + np.maximum(requests, sectors * SECTOR_BYTES / WAVEFRONT_BYTES)
    products = quantities["total_tensor_products"] / peaks.mma_share + quantities["total_group_products"]
    return {
        "arithmetic": instructions / lanes / use,
        "tensor": products * TENSOR_PRODUCT_FLOPS / peaks.flops_by_type["float16"] / use,
        "l1": WAVEFRONT_BYTES * passes / (lanes * 2) / use,
        "l2": quantities["l2_bytes"] / (3 * peaks.dram_bytes_per_s) / use**0.5,
        "dram": quantities["dram_bytes"] / peaks.dram_bytes_per_s / np.maximum(bytes_in_flight, 0.05),
    }
