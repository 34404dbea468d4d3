"""Which instructions a target has, as limits that a schedule must keep."""

from __future__ import annotations

from dataclasses import replace

from ekc.ir.hardware.cp_async import has_async_copies
from ekc.ir.hardware.limits import Limits, is_arch_at_least
from ekc.ir.hardware.mma import has_mma
from ekc.ir.hardware.wgmma import has_wgmma


def restrict_to_arch(limits: Limits, arch: str) -> Limits:
    """The limits of a GPU, as code compiled for `arch` ("sm_80") may use it."""
    return replace(
        limits,
        async_copies=has_async_copies(arch),
        tensor_cores=has_mma(arch),
        group_products=has_wgmma(arch),
        nan_extremes=is_arch_at_least(arch, 80),
    )
