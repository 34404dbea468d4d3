"""Seeded draws: what no feature explains about a kernel, and the noise of repeated measurements.

Sizes come from recordings of real GPUs, by what a boosted tree on all parameters leaves unexplained
(5-fold, log scale): time 4.3 % (CLBlast GEMM on RTX 3090, robust) and 4.4 % (A100); power about 9 %
on A100, of which the meter's own error is most, so 3 % here.
Draws are keyed by SHA-256 of what was compiled, so that they are the same in every process.
"""

from __future__ import annotations

import hashlib

import numpy as np

TIME_RESIDUAL = 0.04
POWER_RESIDUAL = 0.03


def generator(*key: str | int) -> np.random.Generator:
    """A random generator that depends on nothing but its key."""
    joined = "\0".join(str(part) for part in key)
    return np.random.default_rng(int.from_bytes(hashlib.sha256(joined.encode()).digest()[:16], "big"))


def time_residual(device: str, content: str) -> float:
    """Factor on the modelled time of one kernel."""
    return float(np.exp(TIME_RESIDUAL * generator(device, content, "time residual").standard_normal()))


def power_residual(device: str, content: str) -> float:
    """Factor on the modelled dynamic power of one kernel."""
    return float(np.exp(POWER_RESIDUAL * generator(device, content, "power residual").standard_normal()))
