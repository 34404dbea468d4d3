"""Seeded draws: what the models do not explain about a kernel, and the noise of repeated measurements.

Real kernels lie off any formula, and kernels alike lie off it alike. So time and dynamic energy of a launch
have two factors each. One is shared: a Gaussian process over the traits of launches, one path of it for each
device. One is the kernel's own, keyed by SHA-256 of what was compiled. Sizes are what
`benchmarks/simulator/fidelity.py --only residual` finds in recordings (docs/simulated-devices.md), whose
kernels run for milliseconds: they say nothing of the time to start one, which all kernels share.
docs/architecture.md says how they were decided.

What a launch is like: numbers whose distance says how alike two launches are.

They say what a warp does, in which proportions, and how many of them share an SM; not how much there is to
do, so that a kernel keeps most of its traits from one problem size to another.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ekc.devices.simulated.events import Events
from ekc.devices.simulated.occupancy import Occupancy

Vector = NDArray[np.float64]

SHARED_TIME_SIGMA = 0.09
"""Standard deviation of the log of the shared factor, over all kinds of launches."""
LENGTH_SCALE_OCTAVES = 1.8
"""Octaves between traits at which most of it is still shared: the length scale of the process."""
OWN_TIME_SIGMA = 0.005
SHARED_POWER_SIGMA = 0.03
"""Estimate: the recordings that our kernels can be held against have a meter too noisy to tell."""
OWN_POWER_SIGMA = 0.005
FOURIER_FEATURE_COUNT = 256
"""Cosines that make up one path of the process."""


def make_generator(*key: str | int) -> np.random.Generator:
    """A random generator that depends on nothing but its key."""
    joined = "\0".join(str(part) for part in key)
    return np.random.default_rng(int.from_bytes(hashlib.sha256(joined.encode()).digest()[:16], "big"))


def sample_shared_time_factor(device: str, traits: Vector) -> float:
    """Factor on the modelled time of work of these traits `[n]`; near traits, near factors."""
    return float(np.exp(SHARED_TIME_SIGMA * _sample_process(device, "time", traits)))


def sample_shared_power_factor(device: str, traits: Vector) -> float:
    """Factor on the modelled dynamic energy of a launch of these traits `[n]`."""
    return float(np.exp(SHARED_POWER_SIGMA * _sample_process(device, "power", traits)))


def sample_own_time_factor(device: str, content: str) -> float:
    """Factor on the modelled time of the work of one kernel, whatever that is like."""
    return float(np.exp(OWN_TIME_SIGMA * make_generator(device, content, "time residual").standard_normal()))


def sample_own_power_factor(device: str, content: str) -> float:
    """Factor on the modelled dynamic energy of one kernel, whatever it is like."""
    return float(
        np.exp(OWN_POWER_SIGMA * make_generator(device, content, "power residual").standard_normal())
    )


def _sample_process(device: str, quantity: str, traits: Vector) -> float:
    """The path of a process of mean 0 and variance 1 at these traits."""
    frequencies, phases = _sample_fourier_features(device, quantity, len(traits))
    return float(np.sqrt(2.0 / FOURIER_FEATURE_COUNT) * np.sum(np.cos(frequencies @ traits + phases)))


@lru_cache(maxsize=64)
def _sample_fourier_features(device: str, quantity: str, dimensions: int) -> tuple[Vector, Vector]:
    """Random Fourier features (Rahimi and Recht, 2007) of the squared-exponential kernel."""
    random = make_generator(device, "shared residual", quantity)
    frequencies = random.standard_normal((FOURIER_FEATURE_COUNT, dimensions)) / LENGTH_SCALE_OCTAVES
    return frequencies, random.uniform(0.0, 2.0 * np.pi, FOURIER_FEATURE_COUNT)


RARE_SHARE = 1e-3
"""Of a thousand instructions one: less often than that hardly counts."""


def compute_traits(events: Events, occupancy: Occupancy) -> NDArray[np.float64]:
    """`[24]`, in octaves: one apart means about twice as often, as many, or as large."""
    moved, warps = events.traffic, events.warps
    counted = (
        events.fma32,
        events.fp32,
        events.fp16,
        events.tensor,
        events.sfu,
        events.int_ops,
        events.convert,
        events.shuffle,
        events.branch + events.other,
        events.shared_requests,
        events.shared_wavefronts,
        events.local_requests,
        events.lsu_cycles,
        moved.requests,
        moved.sectors,
        moved.l2_bytes,
        moved.dram_bytes,
        events.barriers * warps,
        events.load_rounds * warps,
        events.tile_waits * warps,
    )
    shares = np.array(counted) / max(events.issued_instructions, 1.0)
    sizes = np.array((events.registers, events.warps_per_block, occupancy.blocks, events.tiles_ahead))
    return np.concatenate([np.log2(1.0 + shares / RARE_SHARE), np.log2(1.0 + sizes)])
