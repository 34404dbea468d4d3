"""Seeded residuals: deviations of kernels from the models, and the noise of repeated measurements.

Real kernels deviate from any formula, and similar kernels deviate in similar ways. So the time and the
dynamic energy of a launch have two factors each. One is shared: a Gaussian process over the traits of
launches, one sample path for each device. The other belongs to the kernel alone, keyed by SHA-256 of its
text. Sizes are what `benchmarks/simulator/fidelity.py --only residual` finds in recordings
(docs/explanation/simulated-devices.md). The recorded kernels run for milliseconds: they say nothing about
the time to start one, which all kernels share. docs/explanation/architecture.md says how the sizes were
chosen.

Traits describe a launch by numbers whose distance measures how alike two launches are: what a warp does, in
which proportions, and how many warps share an SM. The amount of work is no trait, so a kernel keeps most of
its traits from one problem size to another.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ekc.devices.simulated.events import Events
from ekc.devices.simulated.launch_counts import Occupancy

Vector = NDArray[np.float64]
Quantity = Literal["time", "power"]

SHARED_TIME_SIGMA = 0.09
"""Standard deviation of the log of the shared factor, over all kinds of launches."""
LENGTH_SCALE_OCTAVES = 1.8
"""Length scale of the process: octaves between traits at which most of the factor is still shared."""
OWN_TIME_SIGMA = 0.005
SHARED_POWER_SIGMA = 0.03
"""Standard deviation of the log of the shared factor on energy (estimate: recordings are too noisy)."""
OWN_POWER_SIGMA = 0.005
FOURIER_FEATURE_COUNT = 256
"""Cosines of one path of the process."""


def make_generator(*key: str | int) -> np.random.Generator:
    """A random generator that depends on its key alone."""
    joined = "\0".join(str(part) for part in key)
    return np.random.default_rng(int.from_bytes(hashlib.sha256(joined.encode()).digest()[:16], "big"))


def sample_shared_factor(device: str, quantity: Quantity, traits: Vector) -> float:
    """Factor on the modelled time of work, or on the modelled dynamic energy of a launch, with these traits
    `[n]`; similar traits have similar factors."""
    sigma = SHARED_TIME_SIGMA if quantity == "time" else SHARED_POWER_SIGMA
    return float(np.exp(sigma * _sample_process(device, quantity, traits)))


def sample_own_factor(device: str, quantity: Quantity, content: str) -> float:
    """Factor on the modelled time or dynamic energy of one kernel, independent of its traits."""
    sigma = OWN_TIME_SIGMA if quantity == "time" else OWN_POWER_SIGMA
    return float(np.exp(sigma * make_generator(device, content, f"{quantity} residual").standard_normal()))


def _sample_process(device: str, quantity: str, traits: Vector) -> float:
    """Value at these traits of a sample path of mean 0 and variance 1."""
    frequencies, phases = _sample_fourier_features(device, quantity, len(traits))
    return float(np.sqrt(2.0 / FOURIER_FEATURE_COUNT) * np.sum(np.cos(frequencies @ traits + phases)))


@lru_cache(maxsize=64)
def _sample_fourier_features(device: str, quantity: str, dimensions: int) -> tuple[Vector, Vector]:
    """Random Fourier features (Rahimi and Recht, 2007) of the squared-exponential kernel."""
    random = make_generator(device, "shared residual", quantity)
    frequencies = random.standard_normal((FOURIER_FEATURE_COUNT, dimensions)) / LENGTH_SCALE_OCTAVES
    return frequencies, random.uniform(0.0, 2.0 * np.pi, FOURIER_FEATURE_COUNT)


RARE_SHARE = 1e-3
"""Share of the instructions below which a kind of event hardly counts."""


def compute_traits(events: Events, occupancy: Occupancy) -> NDArray[np.float64]:
    """Traits `[24]` in octaves: a difference of one means about twice as often, as many, or as large."""
    moved, warps = events.traffic, events.warps
    event_counts = (
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
        events.path_cycles[0] * warps,
        events.tile_waits * warps,
    )
    shares = np.array(event_counts) / max(events.issued_instructions, 1.0)
    sizes = np.array((events.registers, events.warps_per_block, occupancy.blocks, events.tiles_ahead))
    return np.concatenate([np.log2(1.0 + shares / RARE_SHARE), np.log2(1.0 + sizes)])
