"""Rates of tensor cores by element type, and the share of them that `mma.sync` gets; for simulated and real
GPUs.

Short names of sources are those of `ekc.devices.simulated.specs`.
"""

from __future__ import annotations

from types import MappingProxyType

DATA_CENTER_RATES = MappingProxyType({"float16": 1.0, "bfloat16": 1.0, "tf32": 0.5, "int8": 2.0})
"""Rates of tensor cores (source: A100, H100: 312, 312, 156 and 624 TOP/s of A100)."""
GEFORCE_RATES = MappingProxyType({**DATA_CENTER_RATES, "int8": 4.0})
"""fp32 sums at half the rate of fp16 sums (source: GA102, Ada: 71, 71, 35.6 and 284 TOP/s of RTX 3090)."""
GEFORCE_TURING_RATES = MappingProxyType({"float16": 1.0, "int8": 4.0})
"""Source: Turing, 53.8 and 215.2 TOP/s of RTX 2080 Ti; neither bfloat16 nor tf32."""

MMA_SHARE = 0.95
"""As of fp32: operand fetches take the rest (estimate; cuBLAS and CUTLASS end a few percent below peak)."""
WGMMA_SHARE = MMA_SHARE
"""Of `wgmma`, where its operands come from shared memory (estimate, as of the others)."""
HOPPER_MMA_SHARE = 0.62
"""Only `wgmma` feeds Hopper's tensor cores in full; `mma.sync` gets 62 to 63 % of the published rate
(estimate after Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024)."""
