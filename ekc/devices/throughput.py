"""Operations of an SM per clock by compute capability, and the ceilings of the roofline that follow, for
simulated and real GPUs. Short names of sources are those of `ekc.devices.simulated.specs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ekc.devices.device import Peaks

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
`ekc.devices.simulated.specs` names; 10.0 from the B200 data sheet (2.25 PFLOP/s dense fp16), with Hopper's
share of `mma.sync` (estimate). Lanes of float16: its peak without tensor cores over that of float32 in the
whitepapers (78 and 19.5 TFLOP/s of A100, 133.8 and 66.9 of H100; equal on GA102 and Ada, twice on Turing).
8.6, 8.9 and 12.0 as on GeForce boards, where fp32 sums run at half rate.
These are ceilings of the roofline and of the analytic model; no measurement uses them."""


def find_throughput(capability: int) -> SmThroughput:
    """Throughput of a compute capability (80 is 8.0), or of the nearest lower one, the lowest if none is."""
    return _SM_THROUGHPUT[max((c for c in _SM_THROUGHPUT if c <= capability), default=min(_SM_THROUGHPUT))]
