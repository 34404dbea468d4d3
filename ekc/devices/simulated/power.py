"""Board power: constant, static (voltage, temperature) and dynamic (energy per event x rate).

`UNIT_ENERGIES` has the energy of one event of each kind for TSMC 7 nm at the flat part of the voltage curve.
`BoardPower.process_energy_scale` scales them to another node, and `BoardPower.energy_factors` to a GPU whose
kernels were metered. Each is within a factor of two of a published figure, named beside it, or of an estimate
where none is published. Within these bounds they are fitted to the clock at which an A100 ran CLBlast GEMMs
under its 250 W cap (`benchmarks/simulator/energy.py`), and the factors of Hopper to kernels of ours on an
H100 (`benchmarks/simulator/own.py`); docs/explanation/simulated-devices.md has the fits and their errors.

Published energies of an A100 were measured at its boost clock, where the square of the core voltage is 1.65
times that of the flat part; those of the core are divided by it here. Those of Delestrac et al. and Antepara
et al. are taken from notes of others that quote their tables; the papers were not at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from ekc.devices.simulated.events import Events
from ekc.devices.simulated.specs import GpuSpec

REFERENCE_TEMPERATURE_C = 45.0
LEAKAGE_PER_K = 0.026
"""Relative growth of static power per kelvin: 0.45 W/K on a 97 W load (a4000_gemm_noise)."""
LEAKAGE_VOLTAGE_EXPONENT = 2.0
"""Exponent of static power over the core voltage: the current grows about with the voltage too (estimate;
the idle power of an A100 over clocks fits exponents of 1 to 5 alike)."""
BOUND_FACTOR = 2.0
"""An energy per event may be this many times its published figure, or this part of it."""


@dataclass(frozen=True)
class UnitEnergy:
    """Energy of one event of a kind, at 7 nm and relative voltage 1."""

    pj: float
    """Picojoules; of one lane, where `unit` is "lane instr."."""
    unit: str
    published_pj: float
    """Picojoules by the literature."""
    source: str

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and most picojoules that the literature allows."""
        return self.published_pj / BOUND_FACTOR, self.published_pj * BOUND_FACTOR


LANES, WARPS = "lane instr.", "warp instr."
_ARITHMETIC = "Jouppi et al., ISCA 2021, table 2 (7 nm)"
_OPERANDS = "operands 1.2 pJ each: Keckler et al., IEEE Micro 2011, table 1 (10 nm)"
_DELESTRAC = "Delestrac et al., ASAP 2024 (A100)"
_ANTEPARA = "Antepara et al., SC 2025, table 3 (A100)"
_NONE = "no published figure: estimate"

UNIT_ENERGIES: Mapping[str, UnitEnergy] = MappingProxyType(
    {
        "multiply-add": UnitEnergy(3.25, LANES, 6.5, f"1.31 + 0.38 pJ: {_ARITHMETIC}; 4 {_OPERANDS}"),
        "other float32": UnitEnergy(2.25, LANES, 4.5, f"0.38 to 1.31 pJ: {_ARITHMETIC}; 3 {_OPERANDS}"),
        "float16": UnitEnergy(2.9, LANES, 5.8, f"two of 0.34 + 0.16 pJ: {_ARITHMETIC}; 4 {_OPERANDS}"),
        "integer": UnitEnergy(2.15, LANES, 4.3, f"0.03 to 1.48 pJ: {_ARITHMETIC}; 3 {_OPERANDS}"),
        "special function": UnitEnergy(6.0, LANES, 12.0, _NONE),
        "conversion": UnitEnergy(3.0, LANES, 6.0, _NONE),
        "shuffle": UnitEnergy(4.88, LANES, 2.5, "4 B of shared data: the same crossbar"),
        "tensor core": UnitEnergy(0.36, "flops of float16", 0.42, f"0.70 pJ: {_ANTEPARA}"),
        "instruction issue": UnitEnergy(
            127.5,
            WARPS,
            255.0,
            "30 pJ a lane at 45 nm for fetch, decode and operands: Dally, Hot Chips 2023; scaled as SRAM, "
            f"less 4 {_OPERANDS}",
        ),
        "shared request": UnitEnergy(
            188.0,
            WARPS,
            243.0,
            f"geometric mean of that of L1 below and 328 pJ per 128 B: {_DELESTRAC}, less the data",
        ),
        "global request": UnitEnergy(
            410.0, WARPS, 530.0, f"1.59 pJ a bit of L1 at 128 B: {_ANTEPARA}, less the data and the issue"
        ),
        "shared wavefront": UnitEnergy(
            30.0, "wavefronts", 60.0, f"half of the banks, 7.5 pJ per 64 bits of SRAM: {_ARITHMETIC}"
        ),
        "shared data": UnitEnergy(1.21, "B", 0.62, f"82.1 pJ per 32 B: {_DELESTRAC}, less the wavefront"),
        "global data": UnitEnergy(1.21, "B", 0.62, "as shared data: one crossbar brings both"),
        "L1 sector": UnitEnergy(22.5, "sectors", 45.0, f"107 pJ: {_DELESTRAC}, less 32 B of global data"),
        "L2 data": UnitEnergy(4.95, "B", 7.0, f"368 pJ per 32 B: {_DELESTRAC}"),
    }
)


DRAM = "DRAM data"


@dataclass(frozen=True)
class EnergyGroup:
    """Kinds of events whose energies the recordings cannot separate: one factor fits them all."""

    kinds: tuple[str, ...]
    log_std: float
    """Standard deviation of the log of that factor. Fit, by resampling kernels
    (benchmarks/simulator/energy.py), unless said otherwise. Those of requests, on-chip data and DRAM are of
    an earlier count of events, and wider than the present fit (0.05, 0.07, 0.06)."""


ENERGY_GROUPS: Mapping[str, EnergyGroup] = MappingProxyType(
    {
        # The fit holds this group at its bound, where resampling kernels shows no spread: estimate.
        "instructions": EnergyGroup(
            (
                *("multiply-add", "other float32", "float16", "integer", "special function", "conversion"),
                "instruction issue",
            ),
            0.10,
        ),
        "requests": EnergyGroup(("shared request", "global request"), 0.08),
        "SRAM accesses": EnergyGroup(("shared wavefront", "L1 sector"), 0.04),
        "on-chip data": EnergyGroup(("shared data", "global data", "shuffle"), 0.13),
        "L2 data": EnergyGroup(("L2 data",), 0.13),
        DRAM: EnergyGroup((DRAM,), 0.08),
        # No recording has kernels of ours on tensor cores: estimate.
        "tensor core": EnergyGroup(("tensor core",), 0.20),
    }
)
"""Kinds that the recorded kernels do not have take the factor of those that are most like them."""


@dataclass(frozen=True)
class DynamicEnergy:
    """Joules of one launch above idle, at relative voltage 1; arrays for several."""

    core_j: Any
    """Joules that grow with the square of the core voltage."""
    memory_j: Any
    """Joules of DRAM, which has a supply of its own."""

    def at_voltage(self, voltage: Any) -> Any:
        """Joules at a relative core voltage."""
        return self.core_j * voltage**2 + self.memory_j


@dataclass(frozen=True)
class EventEnergy:
    """Joules of one kind of event at relative voltage 1, and the number of events."""

    kind: str
    count: float
    """Number of events, in `unit`: of lanes, where that is "lane instr."."""
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
    moved, process = events.traffic, spec.power.process_energy_scale
    counts = {
        "multiply-add": events.fma32,
        "other float32": events.fp32,
        "float16": events.fp16,
        "integer": events.int_ops + events.integer_products,
        "special function": events.sfu,
        "conversion": events.convert,
        "shuffle": events.shuffle,
        "tensor core": events.tensor_energy_equivalent_flops,
        "instruction issue": events.issued_instructions,
        "shared request": events.shared_requests,
        "global request": moved.requests + events.local_requests,
        "shared wavefront": events.shared_wavefronts,
        "shared data": events.shared_bytes,
        "global data": events.global_lane_bytes,
        "L1 sector": moved.sectors,
        "L2 data": moved.l2_bytes,
    }
    parts = []
    for kind, one in UNIT_ENERGIES.items():
        lanes = events.active_lanes if one.unit == LANES else 1.0
        count = lanes * counts[kind]
        pj = one.pj * process * spec.power.energy_factors.get(kind, 1.0)
        parts.append(EventEnergy(kind, count, one.unit, count * pj * 1e-12))
    dram = moved.drifting_dram_bytes * spec.power.memory_pj_per_byte * 1e-12
    return (*parts, EventEnergy(DRAM, moved.drifting_dram_bytes, "B", dram, is_core=False))


@dataclass(frozen=True)
class IdlePower:
    """Power of a board at one clock, or at each of several, with no kernel running."""

    fixed_w: float
    """Watts that follow neither the clock nor the temperature."""
    leakage_w: Any
    """Watts of leakage at the reference temperature."""
    clock_tree_w: Any

    def compute_static(self, temperature_c: Any) -> Any:
        """Watts of leakage at a temperature."""
        share = 1.0 + LEAKAGE_PER_K * (temperature_c - REFERENCE_TEMPERATURE_C)
        return self.leakage_w * (max(0.2, share) if isinstance(share, float) else np.maximum(0.2, share))

    def compute_total(self, temperature_c: Any) -> Any:
        """Watts of the board at a temperature."""
        return self.fixed_w + self.compute_static(temperature_c) + self.clock_tree_w


def compute_idle_parts(spec: GpuSpec, clock_mhz: Any) -> IdlePower:
    """The power of the board with the clock held, at any temperature."""
    voltage = spec.voltage.at_clock(clock_mhz)
    leakage_w = spec.power.static_w * voltage**LEAKAGE_VOLTAGE_EXPONENT
    clock_tree_w = spec.power.idle_clock_w_per_ghz * clock_mhz / 1000.0 * voltage**2
    if not np.ndim(voltage):
        leakage_w, clock_tree_w = float(leakage_w), float(clock_tree_w)
    return IdlePower(spec.power.constant_w, leakage_w, clock_tree_w)


def compute_idle_power(spec: GpuSpec, clock_mhz: Any, temperature_c: Any) -> Any:
    """Watts of the board with no kernel running and the clock held."""
    return compute_idle_parts(spec, clock_mhz).compute_total(temperature_c)


def compute_active_clock_power(spec: GpuSpec, clock_mhz: Any, busy_sm_share: Any) -> Any:
    """Watts that the clock tree takes in addition while a share of the SMs has work."""
    voltage = spec.voltage.at_clock(clock_mhz)
    return busy_sm_share * spec.power.active_clock_w_per_ghz * clock_mhz / 1000.0 * voltage**2
