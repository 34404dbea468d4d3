"""Figures of each GPU that can be simulated, each with its source.

Sources are NVIDIA's architecture whitepapers and data sheets, as `GpuSpec.sources` names them. "CUDA" below
is the CUDA C++ Programming Guide, table of compute capabilities; "GA102" the Ampere GA102 whitepaper. Figures
marked *fit* come from recordings, named in `GpuSpec.sources`; figures marked *estimate* are our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ekc.devices.device import (
    DATA_CENTER_RATES,
    GEFORCE_RATES,
    GEFORCE_TURING_RATES,
    HOPPER_MMA_SHARE,
    MMA_SHARE,
    Peaks,
)
from ekc.ir.hardware.target import Limits, find_capabilities, restrict_to_arch

KIB = 1024
MIB = 1024 * 1024
GIB = 1024 * MIB


@dataclass(frozen=True)
class Capability:
    """Per-SM limits of one compute capability (source: CUDA)."""

    arch: str
    warps_per_sm: int
    blocks_per_sm: int
    shared_bytes_per_sm: int
    reserved_shared_bytes_per_block: int
    """Shared memory that the driver reserves for every block."""
    l1_bytes_per_sm: int
    """L1 and shared memory together."""
    shared_granularity_bytes: int
    registers_per_sm: int = 65536
    register_granularity: int = 256
    """Registers are allocated per warp, in pieces of this many."""
    warp_granularity: int = 4
    l1_bytes_per_clock: int = 128
    """Bytes per clock from shared memory and L1 to one SM's registers (source: GA102, also for Turing)."""
    load_store_units: int = 32
    """Lanes of one SM whose addresses are made each clock (source: the SM diagrams of the whitepapers)."""

    @property
    def shared_bytes_per_block(self) -> int:
        """Shared memory that a launch can request; 48 KiB of it may be static."""
        return find_capabilities(self.arch).shared_bytes


SM_75 = Capability("sm_75", 32, 16, 64 * KIB, 0, 96 * KIB, 256, l1_bytes_per_clock=64, load_store_units=16)
SM_80 = Capability("sm_80", 64, 32, 164 * KIB, KIB, 192 * KIB, 128)
SM_86 = Capability("sm_86", 48, 16, 100 * KIB, KIB, 128 * KIB, 128, load_store_units=16)
SM_89 = Capability("sm_89", 48, 24, 100 * KIB, KIB, 128 * KIB, 128, load_store_units=16)
SM_90 = Capability("sm_90a", 64, 32, 228 * KIB, KIB, 256 * KIB, 128)


@dataclass(frozen=True)
class VoltageCurve:
    """Core voltage over clock, relative to the flat part below the knee."""

    knee_mhz: float
    slope_per_ghz: float

    def at_clock(self, clock_mhz: float) -> float:
        """Relative voltage, 1.0 below the knee."""
        return 1.0 + self.slope_per_ghz * max(0.0, clock_mhz - self.knee_mhz) / 1000.0


@dataclass(frozen=True)
class BoardPower:
    """Power of the board that no event explains, and its cooling."""

    tdp_w: float
    constant_w: float
    """Watts of memory standby, regulators and fans, which do not depend on the core voltage."""
    static_w: float
    """Watts of core leakage at relative voltage 1 and 45 C."""
    idle_clock_w_per_ghz: float
    """Watts per GHz of the clock tree of an idle core at relative voltage 1."""
    active_clock_w_per_ghz: float
    """Additional watts per GHz of the clock tree while all SMs have work, at relative voltage 1."""
    process_energy_scale: float
    """Energy per event relative to TSMC 7 nm."""
    memory_pj_per_byte: float
    """Picojoules to move one byte between DRAM and its interface."""
    ambient_c: float = 30.0
    kelvin_per_w: float = 0.16


@dataclass(frozen=True)
class GpuSpec:
    """Figures of one GPU."""

    name: str
    capability: Capability
    sms: int
    boost_mhz: int
    base_mhz: int
    fixed_mhz: int
    """The clock of the "fixed" regime: below the power cap for most kernels (our choice)."""
    clock_step_mhz: int
    min_mhz: int
    fp32_lanes_per_sm: int
    int_lanes_per_sm: int
    tensor_fp16_flops_per_sm_clock: int
    """Dense operations, fp16 in, fp32 accumulate."""
    tensor_rates: Mapping[str, float]
    """Rates of the tensor cores relative to fp16, by element type; other types are left out."""
    mma_share: float
    """Share of those rates that `mma.sync` can sustain."""
    published_fp32_flops: float
    published_tensor_flops: float
    """Dense fp16 operations per second at `tensor_boost_mhz`."""
    tensor_boost_mhz: int
    """Clock of the published tensor figure; on Hopper lower than the boost."""
    memory_bytes: int
    """Bytes of memory; data sheets count GB of 2**30 bytes."""
    memory_bytes_per_s: float
    l2_bytes: int
    l2_bytes_per_clock: float
    """Bytes per clock of the whole L2."""
    voltage: VoltageCurve
    power: BoardPower
    sources: Mapping[str, str]

    @property
    def arch(self) -> str:
        """The compile target, e.g. "sm_80"."""
        return self.capability.arch

    def list_clocks_mhz(self) -> tuple[int, ...]:
        """SM clocks in MHz that can be set, ascending."""
        return tuple(sorted(range(self.boost_mhz, self.min_mhz - 1, -self.clock_step_mhz)))

    def peaks(self, clock_mhz: float) -> Peaks:
        """Ceilings of the roofline at a clock."""
        hertz = clock_mhz * 1e6
        fp32 = self.sms * self.fp32_lanes_per_sm * 2 * hertz
        tensor = self.sms * self.tensor_fp16_flops_per_sm_clock * hertz
        # Types without a tensor core rate are widened to float, or multiplied as int.
        plain = dict.fromkeys(("float32", "tf32", "float16", "bfloat16"), fp32)
        plain |= dict.fromkeys(("int8", "int32"), self.sms * self.int_lanes_per_sm * 2 * hertz)
        return Peaks(
            fp32_flops=fp32,
            flops_by_type=plain | {name: rate * tensor for name, rate in self.tensor_rates.items()},
            dram_bytes_per_s=self.memory_bytes_per_s,
            board_power_w=self.power.tdp_w,
            mma_share=self.mma_share / MMA_SHARE,
            source=self.sources[CEILINGS_SOURCE],
        )

    def limits(self) -> Limits:
        """Limits that a schedule must keep on this GPU."""
        c = self.capability
        own = Limits(
            registers_per_sm=c.registers_per_sm,
            shared_bytes_per_block=c.shared_bytes_per_block,
            shared_bytes_per_sm=c.shared_bytes_per_sm,
            threads_per_sm=c.warps_per_sm * 32,
            blocks_per_sm=c.blocks_per_sm,
            sms=self.sms,
        )
        return restrict_to_arch(own, c.arch)


CEILINGS_SOURCE = "counts, clocks, memory"
"""Name of the source of the ceilings."""


def _make_sources(ceilings: str, voltage: str, power: str, l2: str) -> Mapping[str, str]:
    return MappingProxyType(
        {
            CEILINGS_SOURCE: ceilings,
            "per-SM limits": "CUDA C++ Programming Guide, compute capabilities",
            "l2_bytes_per_clock": l2,
            "voltage": voltage,
            "power": power,
            "fixed_mhz": "our choice: highest clock at which most GEMMs stay under the cap (estimate)",
        }
    )


_A100_FIT = "fit: KernelTuner fp32_power_vs_clock, A100-PCIE-40GB, 10 clocks, rms error 0.8 %"
_A4000_FIT = "fit: KernelTuner fp32_power_vs_clock, RTX A4000 (GA104), slope 0.83/GHz; knee estimate"
_H200_FIT = "fit: aiconfigurator h200_gemm_power (floor 126-140 W, power by TFLOP/s); split estimate"

A100 = GpuSpec(
    name="a100",
    capability=SM_80,
    sms=108,
    boost_mhz=1410,
    base_mhz=765,
    fixed_mhz=1275,
    clock_step_mhz=15,
    min_mhz=210,
    fp32_lanes_per_sm=64,
    int_lanes_per_sm=64,
    tensor_fp16_flops_per_sm_clock=2048,
    tensor_rates=DATA_CENTER_RATES,
    mma_share=MMA_SHARE,
    published_fp32_flops=19.5e12,
    published_tensor_flops=312e12,
    tensor_boost_mhz=1410,
    memory_bytes=40 * GIB,
    memory_bytes_per_s=1555e9,
    l2_bytes=40 * MIB,
    l2_bytes_per_clock=5120.0,
    voltage=VoltageCurve(knee_mhz=1075.0, slope_per_ghz=1.126),
    power=BoardPower(
        tdp_w=250.0,
        constant_w=18.0,
        static_w=14.0,
        idle_clock_w_per_ghz=4.0,
        active_clock_w_per_ghz=8.0,
        process_energy_scale=1.0,
        memory_pj_per_byte=45.0,
    ),
    sources=_make_sources(
        ceilings="NVIDIA A100 architecture whitepaper and PCIe 40 GB data sheet",
        voltage=_A100_FIT,
        power="fit: the same, and CLBlast GEMM a100_gemm_clocks (4 tiles, 7 clocks)",
        l2="NVIDIA A100 architecture whitepaper",
    ),
)
H100 = GpuSpec(
    name="h100",
    capability=SM_90,
    sms=132,
    boost_mhz=1980,
    base_mhz=1590,
    fixed_mhz=1590,
    clock_step_mhz=15,
    min_mhz=345,
    fp32_lanes_per_sm=128,
    int_lanes_per_sm=64,
    tensor_fp16_flops_per_sm_clock=4096,
    tensor_rates=DATA_CENTER_RATES,
    mma_share=HOPPER_MMA_SHARE,
    published_fp32_flops=66.9e12,
    published_tensor_flops=989.4e12,
    tensor_boost_mhz=1830,
    memory_bytes=80 * GIB,
    memory_bytes_per_s=3352e9,
    l2_bytes=50 * MIB,
    l2_bytes_per_clock=6600.0,
    voltage=VoltageCurve(knee_mhz=1250.0, slope_per_ghz=0.55),
    power=BoardPower(
        tdp_w=700.0,
        constant_w=60.0,
        static_w=30.0,
        idle_clock_w_per_ghz=8.0,
        active_clock_w_per_ghz=16.0,
        process_energy_scale=0.72,
        memory_pj_per_byte=40.0,
        kelvin_per_w=0.06,
    ),
    sources=_make_sources(
        ceilings="NVIDIA H100 architecture whitepaper, SXM5",
        voltage="estimate: knee and slope as on A100, stretched to the higher boost",
        power=_H200_FIT,
        l2="estimate: fast.cu's kernel 6 (H100 SXM, bfloat16 8192^3, 192 x 192 tiles, no multicast) does "
        "777.5 TFLOP/s, so L2 gives 8.1 TB/s: 4,620 B a clock at 1,755 MHz, over the share of the best",
    ),
)
H200 = GpuSpec(
    name="h200",
    capability=SM_90,
    sms=132,
    boost_mhz=1980,
    base_mhz=1590,
    fixed_mhz=1590,
    clock_step_mhz=15,
    min_mhz=345,
    fp32_lanes_per_sm=128,
    int_lanes_per_sm=64,
    tensor_fp16_flops_per_sm_clock=4096,
    tensor_rates=DATA_CENTER_RATES,
    mma_share=HOPPER_MMA_SHARE,
    published_fp32_flops=66.9e12,
    published_tensor_flops=989.4e12,
    tensor_boost_mhz=1830,
    memory_bytes=141 * GIB,
    memory_bytes_per_s=4800e9,
    l2_bytes=50 * MIB,
    l2_bytes_per_clock=6600.0,
    voltage=VoltageCurve(knee_mhz=1250.0, slope_per_ghz=0.55),
    power=BoardPower(
        tdp_w=700.0,
        constant_w=72.0,
        static_w=34.0,
        idle_clock_w_per_ghz=8.0,
        active_clock_w_per_ghz=16.0,
        process_energy_scale=0.72,
        memory_pj_per_byte=40.0,
        kelvin_per_w=0.06,
    ),
    sources=_make_sources(
        ceilings="NVIDIA H200 data sheet, SXM; the chip is an H100's",
        voltage="estimate: as h100",
        power=_H200_FIT,
        l2="estimate: as h100",
    ),
)
RTX4090 = GpuSpec(
    name="rtx4090",
    capability=SM_89,
    sms=128,
    boost_mhz=2520,
    base_mhz=2235,
    fixed_mhz=2235,
    clock_step_mhz=15,
    min_mhz=210,
    fp32_lanes_per_sm=128,
    int_lanes_per_sm=64,
    tensor_fp16_flops_per_sm_clock=512,
    tensor_rates=GEFORCE_RATES,
    mma_share=MMA_SHARE,
    published_fp32_flops=82.6e12,
    published_tensor_flops=165.2e12,
    tensor_boost_mhz=2520,
    memory_bytes=24 * GIB,
    memory_bytes_per_s=1008e9,
    l2_bytes=72 * MIB,
    l2_bytes_per_clock=2560.0,
    voltage=VoltageCurve(knee_mhz=1800.0, slope_per_ghz=0.50),
    power=BoardPower(
        tdp_w=450.0,
        constant_w=38.0,
        static_w=20.0,
        idle_clock_w_per_ghz=5.0,
        active_clock_w_per_ghz=11.0,
        process_energy_scale=0.62,
        memory_pj_per_byte=80.0,
        kelvin_per_w=0.09,
    ),
    sources=_make_sources(
        ceilings="NVIDIA Ada architecture whitepaper, RTX 4090",
        voltage="estimate",
        power="estimate: A100 energies by process node; GDDR6X per byte",
        l2="estimate",
    ),
)
RTX3090 = GpuSpec(
    name="rtx3090",
    capability=SM_86,
    sms=82,
    boost_mhz=1695,
    base_mhz=1395,
    fixed_mhz=1560,
    clock_step_mhz=15,
    min_mhz=210,
    fp32_lanes_per_sm=128,
    int_lanes_per_sm=64,
    tensor_fp16_flops_per_sm_clock=512,
    tensor_rates=GEFORCE_RATES,
    mma_share=MMA_SHARE,
    published_fp32_flops=35.6e12,
    published_tensor_flops=71e12,
    tensor_boost_mhz=1695,
    memory_bytes=24 * GIB,
    memory_bytes_per_s=936e9,
    l2_bytes=6 * MIB,
    l2_bytes_per_clock=1792.0,
    voltage=VoltageCurve(knee_mhz=1375.0, slope_per_ghz=0.83),
    power=BoardPower(
        tdp_w=350.0,
        constant_w=36.0,
        static_w=22.0,
        idle_clock_w_per_ghz=5.0,
        active_clock_w_per_ghz=11.0,
        process_energy_scale=1.15,
        memory_pj_per_byte=90.0,
        kelvin_per_w=0.12,
    ),
    sources=_make_sources(
        ceilings="NVIDIA Ampere GA102 architecture whitepaper, RTX 3090",
        voltage=_A4000_FIT,
        power="estimate: A100 energies by process node; GDDR6X per byte",
        l2="estimate",
    ),
)
RTX2080TI = GpuSpec(
    name="rtx2080ti",
    capability=SM_75,
    sms=68,
    boost_mhz=1545,
    base_mhz=1350,
    fixed_mhz=1440,
    clock_step_mhz=15,
    min_mhz=300,
    fp32_lanes_per_sm=64,
    int_lanes_per_sm=64,
    tensor_fp16_flops_per_sm_clock=512,
    tensor_rates=GEFORCE_TURING_RATES,
    mma_share=MMA_SHARE,
    published_fp32_flops=13.45e12,
    published_tensor_flops=53.8e12,
    tensor_boost_mhz=1545,
    memory_bytes=11 * GIB,
    memory_bytes_per_s=616e9,
    l2_bytes=5632 * KIB,
    l2_bytes_per_clock=1760.0,
    voltage=VoltageCurve(knee_mhz=1300.0, slope_per_ghz=0.75),
    power=BoardPower(
        tdp_w=250.0,
        constant_w=28.0,
        static_w=20.0,
        idle_clock_w_per_ghz=5.0,
        active_clock_w_per_ghz=9.0,
        process_energy_scale=1.6,
        memory_pj_per_byte=90.0,
        kelvin_per_w=0.16,
    ),
    sources=_make_sources(
        ceilings="NVIDIA Turing architecture whitepaper, RTX 2080 Ti reference card",
        voltage="estimate",
        power="estimate: A100 energies by process node; GDDR6 per byte",
        l2="estimate",
    ),
)

_SPECS_BY_NAME: Mapping[str, GpuSpec] = MappingProxyType(
    {spec.name: spec for spec in (A100, H100, H200, RTX4090, RTX3090, RTX2080TI)}
)


def list_names() -> tuple[str, ...]:
    """Names of all GPUs that can be simulated."""
    return tuple(_SPECS_BY_NAME)


def find_spec(name: str) -> GpuSpec | None:
    """Figures of a GPU by name; None for an unknown name."""
    return _SPECS_BY_NAME.get(name)
