"""Board power: constant, static (voltage, temperature) and dynamic (energy per event x rate).

Energies are for TSMC 7 nm at the flat part of the voltage curve; `BoardPower.process` scales them to
another node. They start from the per-event energies fitted on a GTX 1080 Ti (16 nm: fp32 15 pJ per
lane, int 11 pJ, shared 6 pJ/B, L2 54 pJ/B, DRAM 51 pJ/B), about halved for 7 nm, then set so that a
128x128 SGEMM on A100 draws what the best CLBlast tile was recorded to draw at 330 to 1410 MHz
(a100_gemm_clocks; 458 pJ per warp-FMA at the knee, all in), and so that a bf16 GEMM on H200 falls
among the recorded ones (h200_gemm_power: median 522 W at 300 to 500 TFLOP/s).
"""

from __future__ import annotations

from dataclasses import dataclass

from ekc.devices.events import Events
from ekc.devices.latency import MMA_FLOPS
from ekc.devices.occupancy import WARP
from ekc.devices.specs import Spec

FMA_PJ = 7.6
"""One lane; random data. The same for those below, unless they say otherwise."""
FP32_PJ = 4.7
FP16_PJ = 4.0
INT_PJ = 4.0
SFU_PJ = 12.0
CONVERT_PJ = 6.0
SHUFFLE_PJ = 5.0
TENSOR_PJ_PER_FLOP = 0.36
ISSUE_PJ = 25.0
"""Fetch, decode and scheduling of one warp instruction."""
SHARED_PJ_PER_WAVEFRONT = 256.0
SHARED_PJ_PER_LANE_BYTE = 1.0
L1_PJ_PER_SECTOR = 80.0
L2_PJ_PER_BYTE = 24.0
REFERENCE_C = 45.0
LEAKAGE_PER_K = 0.026
"""Growth of static power: 0.45 W/K on a 97 W load (a4000_gemm_noise)."""


@dataclass(frozen=True)
class DynamicEnergy:
    """Joules of one launch beyond idle, at relative voltage 1."""

    core_j: float
    """Follows the square of the core voltage."""
    memory_j: float
    """DRAM: has a supply of its own."""

    def at(self, voltage: float) -> float:
        """Joules at a relative core voltage."""
        return self.core_j * voltage**2 + self.memory_j


def dynamic_energy(spec: Spec, events: Events) -> DynamicEnergy:
    """Energy of one launch from its events."""
    picojoules = _lane_pj(events) + _warp_pj(events) + _memory_pj(events)
    return DynamicEnergy(
        core_j=picojoules * spec.power.process * 1e-12,
        memory_j=events.traffic.dram_bytes * spec.power.memory_pj_per_byte * 1e-12,
    )


def _lane_pj(events: Events) -> float:
    return events.lanes * (
        events.fma32 * FMA_PJ
        + events.fp32 * FP32_PJ
        + events.fp16 * FP16_PJ
        + events.int_ops * INT_PJ
        + events.sfu * SFU_PJ
        + events.convert * CONVERT_PJ
        + events.shuffle * SHUFFLE_PJ
    )


def _warp_pj(events: Events) -> float:
    return events.issued * ISSUE_PJ + events.tensor * MMA_FLOPS * TENSOR_PJ_PER_FLOP


def _memory_pj(events: Events) -> float:
    shared = events.shared_wavefronts * SHARED_PJ_PER_WAVEFRONT
    shared += events.shared_lane_bytes * events.lanes / WARP * SHARED_PJ_PER_LANE_BYTE
    moved = events.traffic
    return shared + moved.sectors * L1_PJ_PER_SECTOR + moved.l2_bytes * L2_PJ_PER_BYTE


def idle_power(spec: Spec, clock_mhz: float, temperature_c: float) -> float:
    """Watts of the board with no kernel running and the clock held."""
    voltage = spec.voltage.at(clock_mhz)
    leakage = 1.0 + LEAKAGE_PER_K * (temperature_c - REFERENCE_C)
    static = spec.power.static_w * voltage * max(0.2, leakage)
    clock_tree = spec.power.idle_clock_w_per_ghz * clock_mhz / 1000.0 * voltage**2
    return spec.power.constant_w + static + clock_tree


def active_clock_power(spec: Spec, clock_mhz: float, busy: float) -> float:
    """Watts that the clock tree takes more while a share `busy` of the SMs has work."""
    voltage = spec.voltage.at(clock_mhz)
    return busy * spec.power.active_clock_w_per_ghz * clock_mhz / 1000.0 * voltage**2
