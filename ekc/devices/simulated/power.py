"""Board power: constant, static (voltage, temperature) and dynamic (energy per event x rate).

Energies are for TSMC 7 nm at the flat part of the voltage curve; `BoardPower.process_energy_scale` scales
them to another node. They start from the per-event energies fitted on a GTX 1080 Ti (16 nm: fp32 15 pJ per
lane, int 11 pJ, shared 6 pJ/B, L2 54 pJ/B, DRAM 51 pJ/B), about halved for 7 nm. They are then set so that a
128x128 SGEMM on A100 has the recorded power of the best CLBlast tile at 330 to 1410 MHz (a100_gemm_clocks;
458 pJ per warp-FMA at the knee, all in), and so that the power of a bf16 GEMM on H200 is among the recorded
ones (h200_gemm_power: median 522 W at 300 to 500 TFLOP/s).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ekc.devices.simulated.events import Events
from ekc.devices.simulated.launch_counts import WARP_SIZE
from ekc.devices.simulated.specs import GpuSpec

FMA_PJ = 7.6
"""Picojoules of one lane, random data; likewise below, unless said otherwise."""
FP32_PJ = 4.7
FP16_PJ = 4.0
INT_PJ = 4.0
SFU_PJ = 12.0
CONVERT_PJ = 6.0
SHUFFLE_PJ = 5.0
TENSOR_PJ_PER_FLOP = 0.36
"""Picojoules per float16 operation; tf32 takes twice, int8 half as much: as with the rates of data centers,
the power of busy tensor cores is assumed to be that of float16 (estimate)."""
ISSUE_PJ = 25.0
"""Picojoules to fetch, decode and schedule one warp instruction."""
SHARED_PJ_PER_WAVEFRONT = 256.0
SHARED_PJ_PER_LANE_BYTE = 1.0
L1_PJ_PER_SECTOR = 80.0
L2_PJ_PER_BYTE = 24.0
REFERENCE_TEMPERATURE_C = 45.0
LEAKAGE_PER_K = 0.026
"""Relative growth of static power per kelvin: 0.45 W/K on a 97 W load (a4000_gemm_noise)."""


@dataclass(frozen=True)
class DynamicEnergy:
    """Joules of one launch above idle, at relative voltage 1."""

    core_j: float
    """Joules that grow with the square of the core voltage."""
    memory_j: float
    """Joules of DRAM, which has a supply of its own."""

    def at_voltage(self, voltage: Any) -> Any:
        """Joules at a relative core voltage."""
        return self.core_j * voltage**2 + self.memory_j


@dataclass(frozen=True)
class EventEnergy:
    """Joules of one kind of event at relative voltage 1, and the number of events."""

    kind: str
    count: float
    unit: str
    joules: float
    is_core: bool = True
    """Whether the joules grow with the square of the core voltage."""


def compute_dynamic_energy(spec: GpuSpec, events: Events) -> DynamicEnergy:
    """Energy of one launch from its events."""
    parts = compute_event_energies(spec, events)
    core_j, memory_j = (sum(x.joules for x in parts if x.is_core is core) for core in (True, False))
    return DynamicEnergy(core_j, memory_j)


def compute_event_energies(spec: GpuSpec, events: Events) -> tuple[EventEnergy, ...]:
    """Energy of one launch by kind of event; all kinds each time, in the same order."""
    lanes, moved, process = events.active_lanes, events.traffic, spec.power.process_energy_scale
    per_lane = (
        ("multiply-add", events.fma32, FMA_PJ),
        ("other float32", events.fp32, FP32_PJ),
        ("float16", events.fp16, FP16_PJ),
        ("integer", events.int_ops, INT_PJ),
        ("special function", events.sfu, SFU_PJ),
        ("conversion", events.convert, CONVERT_PJ),
        ("shuffle", events.shuffle, SHUFFLE_PJ),
    )
    others = (
        ("tensor core", events.tensor_energy_equivalent_flops, "flops of float16", TENSOR_PJ_PER_FLOP),
        ("instruction issue", events.issued_instructions, "warp instr.", ISSUE_PJ),
        ("shared wavefronts", events.shared_wavefronts, "wavefronts", SHARED_PJ_PER_WAVEFRONT),
        ("shared data", events.shared_lane_bytes * lanes / WARP_SIZE, "B", SHARED_PJ_PER_LANE_BYTE),
        ("L1 sectors", moved.sectors, "sectors", L1_PJ_PER_SECTOR),
        ("L2 data", moved.l2_bytes, "B", L2_PJ_PER_BYTE),
    )
    dram = moved.dram_bytes * spec.power.memory_pj_per_byte * 1e-12
    return (
        *(EventEnergy(kind, n, "warp instr.", lanes * n * pj * process * 1e-12) for kind, n, pj in per_lane),
        *(EventEnergy(kind, n, unit, n * pj * process * 1e-12) for kind, n, unit, pj in others),
        EventEnergy("DRAM data", moved.dram_bytes, "B", dram, is_core=False),
    )


def compute_idle_power(spec: GpuSpec, clock_mhz: Any, temperature_c: float) -> Any:
    """Watts of the board with no kernel running and the clock held."""
    clock_tree = spec.power.idle_clock_w_per_ghz * clock_mhz / 1000.0 * spec.voltage.at_clock(clock_mhz) ** 2
    return spec.power.constant_w + compute_static_power(spec, clock_mhz, temperature_c) + clock_tree


def compute_static_power(spec: GpuSpec, clock_mhz: Any, temperature_c: float) -> Any:
    """Watts of leakage."""
    leakage = 1.0 + LEAKAGE_PER_K * (temperature_c - REFERENCE_TEMPERATURE_C)
    return spec.power.static_w * spec.voltage.at_clock(clock_mhz) * max(0.2, leakage)


def compute_active_clock_power(spec: GpuSpec, clock_mhz: Any, busy_sm_share: Any) -> Any:
    """Watts that the clock tree takes in addition while a share of the SMs has work."""
    voltage = spec.voltage.at_clock(clock_mhz)
    return busy_sm_share * spec.power.active_clock_w_per_ghz * clock_mhz / 1000.0 * voltage**2
