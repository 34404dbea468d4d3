"""Which instructions a target has, as limits that a schedule must keep."""

from __future__ import annotations

from dataclasses import replace

from ekc.ir.async_copy import has_async_copies
from ekc.ir.limits import Limits, from_arch
from ekc.ir.tensor_core import has_products
from ekc.ir.warpgroup import has_group_products


def on_target(limits: Limits, arch: str) -> Limits:
    """The limits of a GPU, as code compiled for `arch` ("sm_80") may use it."""
    return replace(
        limits,
        async_copies=has_async_copies(arch),
        tensor_cores=has_products(arch),
        group_products=has_group_products(arch),
        nan_extremes=from_arch(arch, 80),
    )
