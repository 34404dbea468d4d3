"""Figures of each GPU that can be simulated, each with its source, and the operations of an SM per clock by
compute capability, from which the ceilings of the roofline follow, also for real GPUs.

Sources are NVIDIA's architecture whitepapers and data sheets, as `GpuSpec.sources` names them. "CUDA" below
is the CUDA C++ Programming Guide, table of compute capabilities; "GA102" the Ampere GA102 whitepaper. Figures
marked *fit* come from recordings, named in `GpuSpec.sources`; figures marked *estimate* are our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from ekc.devices.device import Peaks
from ekc.ir.hardware.target import LaunchLimits, find_capabilities, parse_arch_number, restrict_to_arch

DATA_CENTER_RATES = MappingProxyType({"float16": 1.0, "bfloat16": 1.0, "tf32": 0.5, "int8": 2.0})
"""Rates of tensor cores relative to float16 (source: A100, H100: 312, 312, 156 and 624 TOP/s of A100)."""
HOPPER_RATES = MappingProxyType({**DATA_CENTER_RATES, "float8": 2.0})
"""Rates of `wgmma` (source: H100: 1,979 TFLOP/s of float8)."""
GEFORCE_RATES = MappingProxyType({**DATA_CENTER_RATES, "int8": 4.0})
"""Rates relative to float16 with fp32 sums, which run at half the rate of fp16 sums (source: GA102, Ada: 71,
71, 35.6 and 284 TOP/s of RTX 3090)."""
ADA_RATES = MappingProxyType({**GEFORCE_RATES, "float8": 2.0})
"""Rates of Ada (source: Ada: 330.3 TFLOP/s of float8 with fp32 sums, 165.2 of float16, on RTX 4090)."""
GEFORCE_TURING_RATES = MappingProxyType({"float16": 1.0, "int8": 4.0})
"""Rates of Turing, without bfloat16 and tf32 (source: Turing, 53.8 and 215.2 TOP/s of RTX 2080 Ti)."""

MMA_SHARE = 0.95
"""Share of the published rate that `mma.sync` reaches: operand fetches take the rest (estimate; cuBLAS and
CUTLASS reach a few percent less than the peak)."""
WGMMA_SHARE = MMA_SHARE
"""Share that `wgmma` reaches with operands in shared memory (estimate)."""
HOPPER_MMA_SHARE = 0.62
"""Share that `mma.sync` reaches on Hopper, 62 to 63 % of the published rate: only `wgmma` uses Hopper's
tensor cores in full (estimate after Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU
Architecture", 2024)."""


@dataclass(frozen=True)
class SmThroughput:
    """Operations of one SM per clock, by compute capability."""

    fp32_lanes: int
    int_lanes: int
    tensor_fp16: int
    """Dense operations, fp16 in, fp32 accumulate, of the data sheet."""
    tensor_rates: Mapping[str, float]
    """Rates of the tensor cores relative to fp16, by element type; other types are left out."""
    half_lanes: int
    """Lanes for float16 arithmetic, each of which computes a pair."""
    pack_lanes: int
    """Lanes that pack two results of 16 bits into a register (F2FP; F2F before sm_80)."""
    mma_share: float = MMA_SHARE
    """Share of those rates that `mma.sync` can sustain."""
    half_sum_rate: float = 1.0
    """Rate of products that are summed in float16, relative to those summed in fp32."""
    widened_float8: bool = False
    """Whether ptxas makes float16 of the float8 factors of `mma.sync`."""

    def compute_peaks(
        self, cycles_per_s: float, dram_bytes_per_s: float, board_power_w: float, source: str
    ) -> Peaks:
        """Ceilings of a GPU whose SMs together have so many cycles a second."""
        fp32, tensor = cycles_per_s * self.fp32_lanes * 2, cycles_per_s * self.tensor_fp16
        # Types without a tensor core rate are widened to float, or multiplied as int.
        plain = dict.fromkeys(("float32", "tf32", "bfloat16"), fp32)
        plain |= dict.fromkeys(("int8", "int32"), cycles_per_s * self.int_lanes * 2)
        return Peaks(
            fp32_flops=fp32,
            flops_by_type=plain | {name: rate * tensor for name, rate in self.tensor_rates.items()},
            dram_bytes_per_s=dram_bytes_per_s,
            board_power_w=board_power_w,
            mma_share=self.mma_share / MMA_SHARE,
            source=source,
        )


_SM_THROUGHPUT = {
    75: SmThroughput(64, 64, 512, GEFORCE_TURING_RATES, 64, 16, half_sum_rate=2.0),
    80: SmThroughput(64, 64, 2048, DATA_CENTER_RATES, 128, 64),
    86: SmThroughput(128, 64, 512, GEFORCE_RATES, 64, 64, half_sum_rate=2.0),
    89: SmThroughput(128, 64, 512, ADA_RATES, 64, 64, half_sum_rate=2.0),
    90: SmThroughput(128, 64, 4096, HOPPER_RATES, 128, 64, HOPPER_MMA_SHARE, widened_float8=True),
    100: SmThroughput(128, 64, 8192, HOPPER_RATES, 128, 64, HOPPER_MMA_SHARE),
    120: SmThroughput(128, 64, 512, ADA_RATES, 64, 64, half_sum_rate=2.0),
}
"""Lanes: CUDA C++ Programming Guide, throughput of native arithmetic. Tensor cores: the whitepapers that
`GpuSpec.sources` names; 10.0 from the B200 data sheet (2.25 PFLOP/s dense fp16), with Hopper's
share of `mma.sync` (estimate). Lanes of float16: its peak without tensor cores over that of float32 in the
whitepapers (78 and 19.5 TFLOP/s of A100, 133.8 and 66.9 of H100; equal on GA102 and Ada, twice on Turing).
8.6, 8.9 and 12.0 as on GeForce boards, where fp32 sums run at half rate.
These are ceilings of the roofline and of the analytic model; no measurement uses them."""


def find_throughput(capability: int) -> SmThroughput:
    """Throughput of a compute capability (80 is 8.0), or of the nearest lower one, the lowest if none is."""
    return _SM_THROUGHPUT[max((c for c in _SM_THROUGHPUT if c <= capability), default=min(_SM_THROUGHPUT))]


KIB = 1024
MIB = 1024 * 1024
GIB = 1024 * MIB
CLOCK_STEP_MHZ = 15


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
    clocks_per_word: float = 0.0
    """Clocks of an SM that a request takes at least for each word (4 bytes) of a lane, however few banks it
    needs (*fit*: CLBlast rows of the RTX 3090; those of the A100 and the RTX 2080 Ti show no such bound)."""

    @property
    def shared_bytes_per_block(self) -> int:
        """Shared memory that a launch can request; 48 KiB of it may be static."""
        return find_capabilities(self.arch).shared_bytes


SM_75 = Capability("sm_75", 32, 16, 64 * KIB, 0, 96 * KIB, 256, l1_bytes_per_clock=64, load_store_units=16)
SM_80 = Capability("sm_80", 64, 32, 164 * KIB, KIB, 192 * KIB, 128)
SM_86 = Capability("sm_86", 48, 16, 100 * KIB, KIB, 128 * KIB, 128, load_store_units=16, clocks_per_word=0.75)
SM_89 = replace(SM_86, arch="sm_89", blocks_per_sm=24)
SM_90 = Capability("sm_90a", 64, 32, 228 * KIB, KIB, 256 * KIB, 128)


VOLTAGE_EXPONENT = 1.5
"""Exponent of the rise of the core voltage above its knee. Fit: two A100 boards (EnergAIzer, arXiv
2604.20105: PCIe 40 GB and SXM 80 GB, 81 clocks each), both within 1 % of this form."""


@dataclass(frozen=True)
class VoltageCurve:
    """Core voltage over clock, relative to the flat part below the knee."""

    knee_mhz: float
    """Highest clock at which the voltage is still the lowest."""
    top_mhz: float
    """Clock at which the voltage has risen by `rise`."""
    rise: float

    def at_clock(self, clock_mhz: Any) -> Any:
        """Relative voltage at a clock or at each of several, 1.0 below the knee."""
        above = np.maximum(0.0, clock_mhz - self.knee_mhz) / (self.top_mhz - self.knee_mhz)
        return 1.0 + self.rise * above**VOLTAGE_EXPONENT


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
    """Picojoules to move one byte between DRAM and L2, memory controllers included."""
    memory_published_pj_per_byte: float
    """The same by the literature for this type of memory."""
    kelvin_per_w: float
    energy_factors: Mapping[str, float]
    """Energy of an event relative to that of `power.UNIT_ENERGIES`, beside the process, by kind of event; 1
    for a kind that is left out."""
    ambient_c: float = 30.0


@dataclass(frozen=True)
class GpuSpec:
    """Figures of one GPU."""

    name: str
    capability: Capability
    sms: int
    boost_mhz: int
    fixed_mhz: int
    """The clock of the "fixed" regime: below the power cap for most kernels (our choice)."""
    min_mhz: int
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
    l2_usable_share: float
    """Share of the L2 that distinct data can fill."""
    voltage: VoltageCurve
    power: BoardPower
    sources: Mapping[str, str]

    @property
    def arch(self) -> str:
        """The compile target, e.g. "sm_80"."""
        return self.capability.arch

    @cached_property
    def throughput(self) -> SmThroughput:
        """Operations of one SM per clock."""
        return find_throughput(parse_arch_number(self.arch))

    def list_clocks_mhz(self) -> tuple[int, ...]:
        """SM clocks in MHz that can be set, ascending."""
        return tuple(sorted(range(self.boost_mhz, self.min_mhz - 1, -CLOCK_STEP_MHZ)))

    def peaks(self, clock_mhz: float) -> Peaks:
        """Ceilings of the roofline at a clock."""
        cycles, source = self.sms * clock_mhz * 1e6, self.sources[CEILINGS_SOURCE]
        return self.throughput.compute_peaks(cycles, self.memory_bytes_per_s, self.power.tdp_w, source)

    def limits(self) -> LaunchLimits:
        """Limits that a schedule must keep on this GPU."""
        c = self.capability
        own = LaunchLimits(
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


_NAMES = ("a100", "h100", "h200", "rtx4090", "rtx3090", "rtx2080ti")
"""Columns of the tables below."""

# fmt: off
_FIGURES: Mapping[str, tuple[Any, ...]] = {
    "capability":                (   SM_80,    SM_90,     SM_90,     SM_89,     SM_86,       SM_75),
    "sms":                       (     108,      132,       132,       128,        82,          68),
    "boost_mhz":                 (    1410,     1980,      1980,      2520,      1695,        1545),
    "fixed_mhz":                 (    1275,     1590,      1590,      2235,      1560,        1440),
    "min_mhz":                   (     210,      345,       345,       210,       210,         300),
    "published_fp32_flops":      ( 19.5e12,  66.9e12,   66.9e12,   82.6e12,   35.6e12,    13.45e12),
    "published_tensor_flops":    (  312e12, 989.4e12,  989.4e12,  165.2e12,     71e12,     53.8e12),
    "tensor_boost_mhz":          (    1410,     1830,      1830,      2520,      1695,        1545),
    "memory_bytes":              (40 * GIB, 80 * GIB, 141 * GIB,  24 * GIB,  24 * GIB,    11 * GIB),
    "memory_bytes_per_s":        (  1555e9,   3352e9,    4800e9,    1008e9,     936e9,       616e9),
    "l2_bytes":                  (40 * MIB, 50 * MIB,  50 * MIB,  72 * MIB,   6 * MIB,  5632 * KIB),
    "l2_usable_share":           (     0.5,      0.5,       0.5,       0.8,       0.8,         0.8),
    "l2_bytes_per_clock":        (  5120.0,   6600.0,    6600.0,    2560.0,    3072.0,      1760.0),
}
_VOLTAGES = {
    "knee_mhz":                  (  1000.0,   1000.0,    1000.0,    1785.0,    1275.0,      1095.0),
    "top_mhz":                   (  1410.0,   1980.0,    1980.0,    2520.0,    1710.0,      1545.0),
    "rise":                      (   0.284,     0.38,      0.38,     0.284,      0.28,       0.284),
}
_HOPPER_ENERGIES: Mapping[str, float] = MappingProxyType(
    {
        "multiply-add": 2.1,
        "integer": 1.4,
        "tensor core": 2.3,
        "L2 data": 2.8,
        "shared request": 0.65,
        "global request": 0.75,
        "shared data": 0.66,
        "global data": 0.34,
        "shuffle": 0.35,
        "L1 sector": 1.25,
    }
)
"""Those of tensor cores, L2 and shared requests are at the bound that the literature sets."""
_POWERS = {
    "tdp_w":                     (   250.0,    700.0,     700.0,     450.0,     350.0,       250.0),
    "constant_w":                (    21.0,     40.0,      52.0,      38.0,      36.0,        28.0),
    "static_w":                  (    19.2,     25.5,      25.5,      20.0,      22.0,        20.0),
    "idle_clock_w_per_ghz":      (     4.8,     10.0,      10.0,       5.0,       5.0,         5.0),
    "active_clock_w_per_ghz":    (     8.0,      8.0,       8.0,      11.0,      11.0,         9.0),
    "process_energy_scale":      (     1.0,     0.72,      0.72,      0.62,      1.15,         1.6),
    "memory_pj_per_byte":        (    89.0,     97.0,      64.0,      80.0,      90.0,        90.0),
    "memory_published_pj_per_byte": (65.3,     93.4,      93.4,     112.0,     112.0,       112.0),
    "kelvin_per_w":              (    0.15,     0.06,      0.06,      0.09,      0.12,        0.16),
    "energy_factors":            (      {}, *(_HOPPER_ENERGIES,) * 2,   {},        {},          {}),
}
# fmt: on

_ENERGAIZER = "Lee et al., EnergAIzer, arXiv 2604.20105, recordings by clock"
_A100_FIT = f"fit: {_ENERGAIZER}, of an A100-PCIE-40GB; within 1.1 % at each of 81 clocks"
_A100_POWER_FIT = (
    f"fit: idle power of {_ENERGAIZER}, A100-PCIE-40GB, taken as at 45 C, and FP32 power over clocks of "
    "another such board (KernelTuner), 6 W less; active clock: estimate; cooling: 68 C at 250 W (KernelTuner)"
)
_H100_FIT = f"fit: idle power of {_ENERGAIZER}, H100 SXM, taken as at 45 C; its voltage is not recorded"
_H100_POWER_FIT = (
    f"{_H100_FIT}; active clock and energy factors: fit, half of the kernels of recordings/h100 (ours)"
)
_H200_FIT = "as h100; 12 W more for its memory: h200_gemm_power (aiconfigurator), floor of 126 to 140 W"
_A4000_FIT = "fit: KernelTuner fp32_power_vs_clock, RTX A4000 (GA104), 8 clocks below its cap"
_A100_SHAPE = "estimate: knee at the share of the boost clock and rise of the A100"
_SOURCES = {
    CEILINGS_SOURCE: (
        "NVIDIA A100 architecture whitepaper and PCIe 40 GB data sheet",
        "NVIDIA H100 architecture whitepaper, SXM5",
        "NVIDIA H200 data sheet, SXM; the chip is an H100's",
        "NVIDIA Ada architecture whitepaper, RTX 4090",
        "NVIDIA Ampere GA102 architecture whitepaper, RTX 3090",
        "NVIDIA Turing architecture whitepaper, RTX 2080 Ti reference card",
    ),
    "per-SM limits": ("CUDA C++ Programming Guide, compute capabilities",) * len(_NAMES),
    "l2_bytes_per_clock": (
        "NVIDIA A100 architecture whitepaper",
        "estimate: fast.cu's kernel 6 (H100 SXM, bfloat16 8192^3, 192 x 192 tiles, no multicast) does "
        "777.5 TFLOP/s, so L2 gives 8.1 TB/s: 4,620 B a clock at 1,755 MHz, over the share of the best",
        "estimate: as h100",
        "estimate",
        "estimate: 48 slices of 128 KiB, 64 B a clock each as on A100; the CLBlast rows fit 3,340",
        "estimate",
    ),
    "voltage": (_A100_FIT, *(_H100_FIT,) * 2, _A100_SHAPE, _A4000_FIT, _A100_SHAPE),
    "power": (
        _A100_POWER_FIT,
        _H100_POWER_FIT,
        _H200_FIT,
        *("estimate: A100 energies by process node",) * 3,
    ),
    "memory_pj_per_byte": (
        "fit: clock of CLBlast GEMMs under the 250 W cap (KernelTuner); benchmarks/simulator/energy.py",
        "fit: as the energy factors; the published figure is 93",
        "estimate: that of the A100 by the published ratio of HBM3 to HBM2, 0.89 (Antepara et al.), as HBM3e "
        "has none; with the H100's figure a copy takes more than recorded products of an H200",
        *("estimate",) * 3,
    ),
    "memory_published_pj_per_byte": (
        "Delestrac et al., ASAP 2024: 2090 pJ per 32 B, measured on an A100",
        *("Antepara et al., SC 2025, table 3: 11.68 pJ a bit of HBM3, controllers included",) * 2,
        *("O'Connor et al., MICRO 2017: 14 pJ a bit of GDDR5",) * 3,
    ),
    "l2_usable_share": (
        *("NVIDIA A100 architecture whitepaper: each of two partitions caches what its own SMs access",) * 3,
        *("estimate: hashing and other tensors take the rest",) * 3,
    ),
    "fixed_mhz": ("our choice: highest clock at which most GEMMs stay under the cap (estimate)",)
    * len(_NAMES),
}


def _make_spec(name: str) -> GpuSpec:
    def pick_column(table: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        return {figure: row[_NAMES.index(name)] for figure, row in table.items()}

    return GpuSpec(
        name=name,
        voltage=VoltageCurve(**pick_column(_VOLTAGES)),
        power=BoardPower(**pick_column(_POWERS)),
        sources=MappingProxyType(pick_column(_SOURCES)),
        **pick_column(_FIGURES),
    )


A100, H100, H200, RTX4090, RTX3090, RTX2080TI = map(_make_spec, _NAMES)
A100_SXM = replace(
    A100,
    name="a100-sxm",
    fixed_mhz=A100.boost_mhz,
    power=replace(A100.power, tdp_w=400.0, kelvin_per_w=0.10),
    sources=MappingProxyType(
        {
            **A100.sources,
            CEILINGS_SOURCE: "NVIDIA A100 architecture whitepaper and data sheet, SXM4 40 GB",
            "power": f"{A100.sources['power']}; cap of 400 W: data sheet; cooling: estimate",
            "fixed_mhz": "our choice: the boost clock, at which most kernels stay under 400 W (estimate)",
        }
    ),
)
"""The same chip on the board with the higher power cap."""

SPECS: Mapping[str, GpuSpec] = MappingProxyType(
    {spec.name: spec for spec in (A100, A100_SXM, H100, H200, RTX4090, RTX3090, RTX2080TI)}
)
"""All GPUs that can be simulated, by name."""


def list_names() -> tuple[str, ...]:
    """Names of all GPUs that can be simulated."""
    return tuple(SPECS)


def find_product(product: str, arch: str, sms: int) -> GpuSpec | None:
    """Figures of the GPU that a driver calls `product`; None where no name here is in that name, or where
    architecture or SMs differ, as with laptop boards and parts of a GPU."""
    plain = "".join(filter(str.isalnum, product.lower()))
    found = [spec for name, spec in SPECS.items() if name.replace("-", "") in plain]
    alike = [s for s in found if parse_arch_number(s.arch) == parse_arch_number(arch) and s.sms == sms]
    return max(alike, key=lambda spec: len(spec.name), default=None)


def find_spec(name: str) -> GpuSpec | None:
    """Figures of a GPU by name; None for an unknown name."""
    return SPECS.get(name)
