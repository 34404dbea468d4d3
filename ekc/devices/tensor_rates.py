"""Rates of tensor cores by element type, and the share of them that `mma.sync` gets; for simulated and real
GPUs.

Short names of sources are those of `ekc.devices.simulated.specs`.
"""

from __future__ import annotations

from types import MappingProxyType

DATA_CENTER_RATES = MappingProxyType({"float16": 1.0, "bfloat16": 1.0, "tf32": 0.5, "int8": 2.0})
"""Rates of tensor cores relative to float16 (source: A100, H100: 312, 312, 156 and 624 TOP/s of A100)."""
GEFORCE_RATES = MappingProxyType({**DATA_CENTER_RATES, "int8": 4.0})
"""Rates relative to float16 with fp32 sums, which run at half the rate of fp16 sums (source: GA102, Ada: 71,
71, 35.6 and 284 TOP/s of RTX 3090)."""
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
