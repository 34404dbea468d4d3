"""Random training jobs by seed: iterations with jitter and drift, evaluations, pauses, aperiodic work.

Their constants are resampled from responses of real kernels and training jobs to clocks, which other authors
have recorded. `python -m benchmarks.governor.fit_constants --data DIR` fits and prints these. Sources: Zeus'
Perseus profile of GPT-3 stages on A100 and Zeus' power-cap sweeps on A40 and V100 (ml-energy/zeus,
Apache-2.0); CLBlast GEMM over clocks on A100 (KernelTuner/kernel_tuner_tutorial, Apache-2.0); an FP32 kernel
over clocks on A100 and RTX A4000 (KernelTuner/kernel_tuner, Apache-2.0)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ekc.devices.simulated.residual import make_generator
from ekc.errors import InvalidInput
from ekc.governor.samples import Values
from ekc.governor.simulation.card import find_card
from ekc.governor.simulation.simulated_run import JobStage, SimulatedJob, Timeline, compute_costs

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
    name, card = f"{kind}-{seed}-{device}", find_card(device)
    job = SimulatedJob(**vars(timeline), name=name, kind=kind, card=card, stages=tuple(stages), swing_w=swing)
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


ITERATION_JITTER = 0.006
"""Standard deviation of the log length of an iteration (estimate)."""
HOST_JITTER = 0.15
"""Standard deviation of the log length of an input wait (estimate)."""
EVALUATION_INTERVAL_S = (150.0, 600.0)
"""Range of the seconds between two evaluations."""
EVALUATION_RANGE_S = (15.0, 50.0)
"""Range of the length of an evaluation in seconds."""


def _make_timeline(stage_indices: NDArray[np.integer], seconds: Values, per_iteration: int) -> Timeline:
    iteration = (np.arange(len(stage_indices)) // per_iteration).astype(np.int32)
    regime = np.zeros(len(stage_indices), np.int16)
    return Timeline(stage_indices.astype(np.int32), seconds, iteration, regime)


def make_pause(seconds: float) -> Timeline:
    """A pause; it is stage 0 of every job."""
    return _make_timeline(np.zeros(1, int), np.array([seconds]), 1)


def sample_iterations(
    rng: np.random.Generator,
    stages: NDArray[np.int_],
    stage_seconds: Values,
    seconds: float,
    drift: float = 0.0,
) -> Timeline:
    """Iterations of the same stages, the host first; `drift`: relative change of their length by the end."""
    count = max(2, round(seconds / stage_seconds.sum()))
    jitter = np.exp(ITERATION_JITTER * rng.standard_normal((count, 1)) * np.ones(len(stages)))
    jitter[:, 0] = np.exp(HOST_JITTER * rng.standard_normal(count))
    grown = 1 + drift * np.linspace(-0.5, 0.5, count)[:, None]
    spans = stage_seconds[None, :] * jitter * grown
    return _make_timeline(np.tile(stages, count), spans.ravel(), len(stages))


def insert_evaluations(
    rng: np.random.Generator, timeline: Timeline, stages: NDArray[np.int_], stage_seconds: Values
) -> Timeline:
    """The timeline with evaluations inserted at even intervals."""
    per_iteration = int(np.flatnonzero(timeline.iteration)[0])
    seconds = timeline.seconds.reshape(-1, per_iteration)
    every = max(1, round(rng.uniform(*EVALUATION_INTERVAL_S) / seconds.sum(1).mean()))
    length = float(rng.uniform(*EVALUATION_RANGE_S))
    parts = []
    for begin in range(0, len(seconds), every):
        part = slice(begin * per_iteration, (begin + every) * per_iteration)
        parts.append(_make_timeline(timeline.stage_indices[part], timeline.seconds[part], per_iteration))
        held_out = sample_iterations(rng, stages, stage_seconds, length)
        # Hooks count training steps only, so an evaluation adds none.
        parts.append(replace(held_out, iteration=np.zeros_like(held_out.iteration)))
    return Timeline.concatenate(parts[:-1])


def sample_aperiodic(
    rng: np.random.Generator, stages: NDArray[np.int_], stage_seconds: Values, seconds: float
) -> Timeline:
    """Stages in random order and of random length."""
    count = max(8, round(seconds / stage_seconds.sum()))
    order = np.argsort(rng.random((count, len(stages))), axis=1)
    spread = np.exp(0.6 * rng.standard_normal((count, len(stages))))
    spans = (stage_seconds[None, :] * spread) * np.exp(0.3 * rng.standard_normal((count, 1)))
    return _make_timeline(
        np.take_along_axis(np.tile(stages, (count, 1)), order, axis=1).ravel(),
        np.take_along_axis(spans, order, axis=1).ravel(),
        len(stages),
    )


@dataclass(frozen=True)
class KernelClockFit:
    """Time t of a kernel over the SM clock.

    t = (core_share x^sharpness + 1 - core_share)^(1/sharpness) with x = top clock / clock.
    """

    name: str
    core_share: float
    """Share of the time that follows the SM clock."""
    sharpness: float
    """Sharpness of the bend between SM-bound and memory-bound time."""


@dataclass(frozen=True)
class TrainingPowerFit:
    """Power of a training job, and its slowdown under power caps."""

    power_share: float
    """Power drawn without a cap, as a share of the board's power limit."""
    core_share: float | None
    """`KernelClockFit.core_share` of the slowdown under caps; None if none slowed it, or the fit failed."""


KERNEL_FITS = (
    KernelClockFit("GPT-3 forward 0", 0.686, 8),
    KernelClockFit("GPT-3 backward 0", 0.559, 8),
    KernelClockFit("GPT-3 forward 7", 0.680, 8),
    KernelClockFit("GPT-3 backward 7", 0.556, 8),
    KernelClockFit("GEMM 64-128-32-16-16-4-1-1-0", 0.614, 4),
    KernelClockFit("GEMM 64-128-32-16-16-4-1-1-1", 0.886, 3),
    KernelClockFit("GEMM 128-128-32-16-8-4-4-1-1", 0.924, 2),
    KernelClockFit("GEMM 64-128-32-16-8-4-4-0-0", 0.629, 2),
    KernelClockFit("FMA A100-PCIE-40GB", 0.983, 2),
    KernelClockFit("FMA RTX A4000", 1.000, 2),
)

_POWER_TABLE = """
shufflenetv2 A40 | 1024 0.730 0.16 | 128 0.478 0.10 | 16 0.321 - | 2048 0.713 - | 256 0.626 0.07
shufflenetv2 A40 | 32 0.349 - | 4096 0.675 0.19 | 512 0.697 0.18 | 64 0.389 - | 8 0.296 - | 8192 0.655 -
resnet50 A40 | 128 0.814 - | 16 0.803 0.32 | 192 0.800 - | 256 0.784 - | 32 0.809 0.43 | 360 0.770 -
resnet50 A40 | 512 0.779 - | 64 0.813 - | 8 0.831 0.30
deepspeech2 A40 | 128 0.576 0.71 | 16 0.628 0.21 | 192 0.559 - | 32 0.591 0.25 | 64 0.590 0.16 | 8 0.676 -
ncf A40 | 1024 0.279 - | 128 0.298 - | 16 0.298 - | 16384 0.291 - | 2048 0.280 - | 256 0.293 - | 32 0.297 -
ncf A40 | 32768 0.275 - | 4096 0.277 - | 512 0.282 - | 64 0.303 - | 8 0.302 - | 8192 0.282 -
bert_base_uncased A40 | 12 0.885 0.58 | 16 0.817 - | 24 0.891 0.34 | 32 0.868 - | 48 0.895 0.74
bert_base_uncased A40 | 56 0.897 0.48 | 72 0.888 0.63 | 8 0.740 -
shufflenetv2 V100 | 1024 0.765 1.00 | 128 0.498 0.38 | 16 0.168 - | 2048 0.731 1.00 | 256 0.719 0.62
shufflenetv2 V100 | 32 0.207 - | 4096 0.685 1.00 | 512 0.762 0.77 | 64 0.363 - | 8 0.157 -
resnet50 V100 | 128 0.890 0.74 | 16 0.893 1.00 | 192 0.882 0.78 | 256 0.881 0.76 | 32 0.909 1.00
resnet50 V100 | 360 0.870 0.78 | 64 0.892 0.71 | 8 0.883 1.00
deepspeech2 V100 | 12 0.683 0.65 | 128 0.669 1.00 | 156 0.649 1.00 | 16 0.680 0.77 | 192 0.642 1.00
deepspeech2 V100 | 2 0.622 0.44 | 24 0.790 1.00 | 32 0.818 1.00 | 4 0.612 0.42 | 48 0.782 1.00
deepspeech2 V100 | 56 0.771 1.00 | 64 0.765 1.00 | 72 0.749 1.00 | 8 0.659 0.55 | 96 0.702 1.00
ncf V100 | 1024 0.152 - | 128 0.154 - | 16 0.156 - | 16384 0.145 - | 2048 0.156 - | 256 0.160 - | 32 0.151 -
ncf V100 | 4 0.152 - | 4096 0.153 - | 512 0.151 - | 64 0.150 - | 8 0.151 - | 8192 0.147 -
bert_base_uncased V100 | 12 0.904 1.00 | 16 0.909 1.00 | 24 0.911 1.00 | 32 0.908 0.95 | 48 0.905 1.00
bert_base_uncased V100 | 56 0.907 1.00 | 8 0.863 1.00 | 128 0.894 0.96 | 64 0.882 1.00
"""
"""A network and a board, then the batch size, power share and core share of each job, "-" for None."""


def _parse_power_table() -> Iterator[TrainingPowerFit]:
    for line in _POWER_TABLE.strip().splitlines():
        for fit in line.split(" | ")[1:]:
            _, power_share, core_share = fit.split()
            core = None if core_share == "-" else float(core_share)
            yield TrainingPowerFit(float(power_share), core)


POWER_FITS = tuple(_parse_power_table())
