"""The analytic prior: expected latency and power from counted work and the peaks of a device.

Simulated devices, recordings, and GPUs of which no data sheet is known here offer it as their prior.
`benchmarks/cost_model/analytic.py` compares it with recordings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import Peaks, Prior, Quantities
from ekc.ir.hardware.memory import BANKS, SECTOR_BYTES

Array = NDArray[np.float64]

TENSOR_PRODUCT_FLOPS = 4096.0
"""Floating-point operations of one `mma` in float16. An `mma` of another type takes as long: narrower types
are deeper, wider types less deep."""
WAVEFRONT_BYTES = 4.0 * BANKS
"""Bytes of one wavefront, that is one pass through the banks of L1 and shared memory."""
_REQUEST_KINDS = (("global", "load"), ("global", "store"), ("shared", "load"), ("shared", "store"))
_SCHEDULERS_PER_SM = 4.0


@dataclass(frozen=True)
class AnalyticSettings:
    """Constants of the analytic prior."""

    launch_latency_s: float = 2e-6
    """Latency of an empty kernel in seconds, about the same on all recent GPUs."""
    overlap_norm: float = 4.0
    """Exponent of the p-norm over all resources' times: 1 adds, large values take the longest."""
    warps_to_hide: float = 16.0
    """Warp instructions in flight per SM that keep arithmetic pipes busy: 4 schedulers times 4 cycles."""
    static_power_share: float = 1 / 3
    """Standby power of a board with blocks on all SMs, as a share of its power cap."""
    sleep_power_share: float = 1 / 10
    """Reduction of the standby power where no multiprocessor has blocks, as a share of the power cap. A guess
    that no recording of ours can test. The simulated devices use a similar guess and so flatter it."""
    float_pj: float = 15.0
    """Energy in picojoules of a float32 operation of one lane. These energies were fitted by others on a GTX
    1080 Ti. Newer processes need less, which the line over the prior learns. The simulated devices started
    from the same source and so flatter them."""
    integer_pj: float = 11.0
    """Energy in picojoules of an integer operation of one lane. Source: as `float_pj`."""
    tensor_energy_ratio: float = 10.0
    """Energy of float32 operations on lanes over that of as many in tensor cores. An estimate."""
    shared_pj: float = 6.0
    """Energy in picojoules of a byte from shared memory. Source: as `float_pj`."""
    l1_pj: float = 30.0
    """Energy in picojoules of a byte of a sector that L1 has or L2 must send. A round value that fits
    recorded kernels which read the same global memory repeatedly (a100_gemm_clocks;
    `benchmarks/cost_model/analytic.py`)."""
    l2_pj: float = 54.0
    """Energy in picojoules of a byte from L2. Source: as `float_pj`."""
    dram_pj: float = 51.0
    """Energy in picojoules of a byte from DRAM. Source: as `float_pj`."""


ANALYTIC = AnalyticSettings()


def predict_prior(quantities: Quantities, peaks: Peaks) -> Prior:
    """The analytic prior of schedules for a device with these peaks."""
    times_s = _predict_resource_times_s(quantities, peaks)
    latency_s = _combine_times(times_s, quantities)
    standby_w = _predict_standby_w(quantities["balance"], peaks)
    power_w = standby_w + _predict_work_energy_j(quantities) / latency_s
    return Prior(latency_s, np.asarray(power_w), standby_w, times_s)


def predict_latency_s(quantities: Quantities, peaks: Peaks) -> Array:
    """Expected seconds of a call: the p-norm of the times that each resource needs, and the launch."""
    return _combine_times(_predict_resource_times_s(quantities, peaks), quantities)


def _combine_times(times_s: dict[str, Array], quantities: Quantities) -> Array:
    norm = ANALYTIC.overlap_norm
    work = sum(p**norm for p in times_s.values()) ** (1 / norm)
    return np.asarray(work + ANALYTIC.launch_latency_s * quantities["launches"])


def _predict_standby_w(balance: Array, peaks: Peaks) -> Array:
    """Watts without work. `balance`: share of their time in which the SMs have a block each."""
    share = ANALYTIC.static_power_share - ANALYTIC.sleep_power_share * (1.0 - balance)
    return np.asarray(share * peaks.board_power_w)


def _predict_work_energy_j(quantities: Quantities) -> Array:
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


def _predict_resource_times_s(quantities: Quantities, peaks: Peaks) -> dict[str, Array]:
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
