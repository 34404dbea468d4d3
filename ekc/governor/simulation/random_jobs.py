"""Random training jobs by seed, with constants resampled from recorded ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ekc.devices.simulated.residual import make_generator
from ekc.errors import InvalidInput
from ekc.governor.simulation.card import find_card
from ekc.governor.simulation.fitted_constants import KERNEL_FITS, POWER_FITS
from ekc.governor.simulation.simulated_job import JobStage, SimulatedJob, compute_costs
from ekc.governor.simulation.timeline import (
    Timeline,
    insert_evaluations,
    make_pause,
    sample_aperiodic,
    sample_iterations,
)

JOB_KINDS = ("compute", "memory", "starved", "evaluation", "drifting", "aperiodic")
ITERATION_RANGE_S = (0.2, 20.0)
"""Shortest and longest iteration in seconds, sampled log-uniformly."""
CHANGING_SHARE = 0.25
"""Share of jobs that change to another kind of work near their middle (a true phase change)."""
PAUSING_SHARE = 0.15
"""Share of jobs that pause once, for half a minute to two minutes."""
STARVED_HOST_SHARE = (0.25, 0.6)
BUSY_HOST_SHARE = (0.01, 0.06)
"""Range of the host's share of an iteration, in jobs that wait for input and in others (estimates)."""
CONSTANT_SPREAD = 0.10
"""Relative standard deviation of a sampled constant from the fitted one."""


def sample_job(seed: int, kind: str, device: str, seconds: float = 3600.0) -> SimulatedJob:
    """A job that takes `seconds` at the driver's default; deterministic in its arguments, on any machine."""
    if kind not in JOB_KINDS:
        raise InvalidInput(f"job kind: no kind {kind!r}; kinds are {', '.join(JOB_KINDS)}")
    rng = make_generator("job", seed, kind, device)
    stages: list[JobStage] = [replace(HOST_STAGE, name="pause", is_paused=True)]
    changes = bool(rng.random() < CHANGING_SHARE)
    cut = float(rng.uniform(0.3, 0.65)) if changes else 1.0
    parts = [_sample_regime(rng, kind, stages, cut * seconds)]
    if rng.random() < PAUSING_SHARE:
        before, after = parts[0].split(float(rng.uniform(0.2, 0.8)))
        parts = [before, make_pause(float(rng.uniform(30.0, 120.0))), after]
    if changes:
        parts.append(
            _sample_regime(rng, _sample_next_kind(rng, kind), stages, (1 - cut) * seconds).with_regime(1)
        )
    timeline = Timeline.concatenate(parts)
    swing = float(rng.uniform(0.0, 0.02)) * find_card(device).spec.power.tdp_w if kind == "drifting" else 0.0
    job = timeline.make_job(f"{kind}-{seed}-{device}", kind, find_card(device), tuple(stages), swing)
    return _scale_to_seconds(job, seconds)


def _scale_to_seconds(job: SimulatedJob, seconds: float) -> SimulatedJob:
    """The job with its stretches scaled so that it takes `seconds` at the default."""
    default_s = compute_costs(job).seconds[:, -1, -1].sum()
    return replace(job, seconds=job.seconds * (seconds / default_s))


def _sample_next_kind(rng: np.random.Generator, kind: str) -> str:
    """Kind of the second phase: periodic if the first was."""
    if kind == "aperiodic":
        return kind
    return str(rng.choice(("compute", "memory", "starved")))


def _sample_regime(rng: np.random.Generator, kind: str, stages: list[JobStage], seconds: float) -> Timeline:
    """The stretches of one true phase; its stages are added to `stages`."""
    new_stages = _sample_stages(rng, kind)
    first = len(stages)
    stages.extend(new_stages)
    length = float(np.exp(rng.uniform(*np.log(ITERATION_RANGE_S))))
    shares = _sample_shares(rng, kind, len(new_stages))
    numbers = np.arange(first, first + len(new_stages))
    if kind == "aperiodic":
        return sample_aperiodic(rng, numbers, shares * length, seconds)
    drift = float(rng.uniform(-0.2, 0.2)) if kind == "drifting" else 0.0
    plain = sample_iterations(rng, numbers, shares * length, seconds, drift)
    if kind == "evaluation":
        # Host and forward stages only.
        return insert_evaluations(rng, plain, numbers[:2], shares[:2] * length)
    return plain


def _sample_shares(rng: np.random.Generator, kind: str, count: int) -> np.ndarray:
    """Shares of an iteration: host, forward, backward, optimiser, and others."""
    host = rng.uniform(*(STARVED_HOST_SHARE if kind == "starved" else BUSY_HOST_SHARE))
    busy = rng.dirichlet([6.0, 12.0, 2.0, 2.0][: count - 1])
    return np.concatenate([[host], (1 - host) * busy])


HOST_STAGE = JobStage("host", 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def _sample_stages(rng: np.random.Generator, kind: str) -> list[JobStage]:
    """Stages of a phase: host, forward, backward, optimiser, and exchange."""
    fixed = "compute" if kind in ("compute", "evaluation") else "memory" if kind == "memory" else None
    bound = fixed or str(rng.choice(("compute", "memory")))
    fits = [d for d in POWER_FITS if d.power_share > 0.45] if bound == "compute" else list(POWER_FITS)
    share = min(1.05, fits[rng.integers(len(fits))].power_share * _sample_factor(rng))
    tensor = float(rng.choice((0.0, 0.9)))
    stages = [HOST_STAGE]
    for name in ("forward", "backward"):
        stages.append(_sample_kernel_stage(rng, name, bound, share * _sample_factor(rng, 0.05), tensor))
    for name in ("optimiser", "exchange"):
        stages.append(_sample_kernel_stage(rng, name, "memory", 0.85 * share, 0.0))
    return stages


def _sample_factor(rng: np.random.Generator, spread: float = CONSTANT_SPREAD) -> float:
    return math.exp(spread * rng.standard_normal())


def _sample_kernel_stage(
    rng: np.random.Generator, name: str, bound: str, power_share: float, tensor_share: float
) -> JobStage:
    """A stage of kernels. If bound by arithmetic, it responds to the clock as a recorded kernel; if bound by
    memory, as a recorded job that its power caps slowed little."""
    if bound == "compute":
        fit = KERNEL_FITS[rng.integers(len(KERNEL_FITS))]
        core, sharpness = fit.core_share, fit.sharpness
    else:
        core_shares = [d.core_share for d in POWER_FITS if d.core_share is not None and d.core_share < 0.45]
        core = core_shares[rng.integers(len(core_shares))]
        sharpness = KERNEL_FITS[rng.integers(len(KERNEL_FITS))].sharpness
    core = min(0.99, max(0.02, core * _sample_factor(rng)))
    # In a p-norm, memory and arithmetic alone would take these shares of the time.
    memory = 95 * (1 - core) ** (1 / sharpness) * rng.uniform(0.5, 1.0)
    arithmetic = 95 * core ** (1 / sharpness) * rng.uniform(0.6, 1.0)
    return JobStage(name, core, sharpness, power_share, 100.0, float(memory), float(arithmetic), tensor_share)
