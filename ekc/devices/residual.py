"""Seeded draws: what the models do not explain about a kernel, and the noise of repeated measurements.

Real kernels lie off any formula, and kernels alike lie off it alike. So time and dynamic energy of a launch
have two factors each. One is shared: a Gaussian process over the traits of launches, one path of it for each
device. One is the kernel's own, keyed by SHA-256 of what was compiled. Sizes are what
`benchmarks/simulator_fidelity.py --only residual` finds in recordings (docs/simulated-devices.md), whose
kernels run for milliseconds: they say nothing of the time to start one, which all kernels share.
docs/architecture.md says how they were decided.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

SHARED_TIME = 0.09
"""Standard deviation of the log of the shared factor, over all kinds of launches."""
ALIKE = 1.8
"""Octaves between traits at which most of it is still shared: the length scale of the process."""
OWN_TIME = 0.005
SHARED_POWER = 0.03
"""Estimate: the recordings that our kernels can be held against have a meter too noisy to tell."""
OWN_POWER = 0.005
WAVES = 256
"""Cosines that make up one path of the process."""


def generator(*key: str | int) -> np.random.Generator:
    """A random generator that depends on nothing but its key."""
    joined = "\0".join(str(part) for part in key)
    return np.random.default_rng(int.from_bytes(hashlib.sha256(joined.encode()).digest()[:16], "big"))


def shared_time(device: str, traits: Vector) -> float:
    """Factor on the modelled time of work of these traits `[n]`; near traits, near factors."""
    return float(np.exp(SHARED_TIME * _path(device, "time", traits)))


def shared_power(device: str, traits: Vector) -> float:
    """Factor on the modelled dynamic energy of a launch of these traits `[n]`."""
    return float(np.exp(SHARED_POWER * _path(device, "power", traits)))


def own_time(device: str, content: str) -> float:
    """Factor on the modelled time of the work of one kernel, whatever that is like."""
    return float(np.exp(OWN_TIME * generator(device, content, "time residual").standard_normal()))


def own_power(device: str, content: str) -> float:
    """Factor on the modelled dynamic energy of one kernel, whatever it is like."""
    return float(np.exp(OWN_POWER * generator(device, content, "power residual").standard_normal()))


def _path(device: str, what: str, traits: Vector) -> float:
    """The path of a process of mean 0 and variance 1 at these traits."""
    frequencies, phases = _waves(device, what, len(traits))
    return float(np.sqrt(2.0 / WAVES) * np.sum(np.cos(frequencies @ traits + phases)))


@lru_cache(maxsize=64)
def _waves(device: str, what: str, dimensions: int) -> tuple[Vector, Vector]:
    """Random Fourier features (Rahimi and Recht, 2007) of the squared-exponential kernel."""
    random = generator(device, "shared residual", what)
    frequencies = random.standard_normal((WAVES, dimensions)) / ALIKE
    return frequencies, random.uniform(0.0, 2.0 * np.pi, WAVES)
