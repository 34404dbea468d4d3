"""Draws training jobs by seed, from the facts of recorded ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ekc.devices.residual import generator
from ekc.errors import InvalidInput
from ekc.governor.jobs.card import card
from ekc.governor.jobs.facts import DRAWS, KERNELS
from ekc.governor.jobs.job import Job, bill
from ekc.governor.jobs.stage import Stage
from ekc.governor.jobs.timeline import Timeline, aperiodic, iterations, pause, with_evaluation

KINDS = ("compute", "memory", "starved", "evaluation", "drifting", "aperiodic")
ITERATION_S = (0.2, 20.0)
CHANGING = 0.25
"""Share of jobs that become another job somewhere in their middle (a true phase change)."""
PAUSING = 0.15
"""Share of jobs that stand still once, for half a minute to two."""
STARVED_SHARE = (0.25, 0.6)
BUSY_SHARE = (0.01, 0.06)
"""Of an iteration: the host alone, in jobs that wait for input and in others (estimates)."""
SPREAD = 0.10
"""Relative, one sigma: how far a drawn constant strays from the fitted one it was resampled from."""


def draw(seed: int, kind: str, device: str, seconds: float = 3600.0) -> Job:
    """A job that runs `seconds` at the driver's default. The same for the same arguments, anywhere."""
    if kind not in KINDS:
        raise InvalidInput(f"job kind {kind!r}: there are {', '.join(KINDS)}")
    rng = generator("job", seed, kind, device)
    stages: list[Stage] = [replace(HOST, name="pause", paused=True)]
    changes = bool(rng.random() < CHANGING)
    cut = float(rng.uniform(0.3, 0.65)) if changes else 1.0
    parts = [_regime(rng, kind, stages, cut * seconds)]
    if rng.random() < PAUSING:
        before, after = parts[0].cut(float(rng.uniform(0.2, 0.8)))
        parts = [before, pause(float(rng.uniform(30.0, 120.0))), after]
    if changes:
        parts.append(_regime(rng, _another(rng, kind), stages, (1 - cut) * seconds).of_regime(1))
    whole = Timeline.joined(parts)
    swing = float(rng.uniform(0.0, 0.02)) * card(device).spec.power.tdp_w if kind == "drifting" else 0.0
    job = whole.job(f"{kind}-{seed}-{device}", kind, card(device), tuple(stages), swing)
    return _lasting(job, seconds)


def _lasting(job: Job, seconds: float) -> Job:
    """The same job, its stretches scaled so that it takes as long as it should at the default."""
    at_default = bill(job).seconds[:, -1, -1].sum()
    return replace(job, seconds=job.seconds * (seconds / at_default))


def _another(rng: np.random.Generator, kind: str) -> str:
    """What a job becomes: as periodic as it was."""
    if kind == "aperiodic":
        return kind
    return str(rng.choice(("compute", "memory", "starved")))


def _regime(rng: np.random.Generator, kind: str, stages: list[Stage], seconds: float) -> Timeline:
    """One true phase: its stages are added to the table, its stretches returned."""
    own = _stages(rng, kind)
    first = len(stages)
    stages.extend(own)
    length = float(np.exp(rng.uniform(*np.log(ITERATION_S))))
    shares = _shares(rng, kind, len(own))
    numbers = np.arange(first, first + len(own))
    if kind == "aperiodic":
        return aperiodic(rng, numbers, shares * length, seconds)
    drift = float(rng.uniform(-0.2, 0.2)) if kind == "drifting" else 0.0
    plain = iterations(rng, numbers, shares * length, seconds, drift)
    if kind == "evaluation":
        # Forward alone, with its own input wait.
        return with_evaluation(rng, plain, numbers[:2], shares[:2] * length)
    return plain


def _shares(rng: np.random.Generator, kind: str, count: int) -> np.ndarray:
    """Of an iteration: host first, then forward, backward, optimiser and what else there is."""
    host = rng.uniform(*(STARVED_SHARE if kind == "starved" else BUSY_SHARE))
    busy = rng.dirichlet([6.0, 12.0, 2.0, 2.0][: count - 1])
    return np.concatenate([[host], (1 - host) * busy])


HOST = Stage("host", 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def _stages(rng: np.random.Generator, kind: str) -> list[Stage]:
    """Host, forward, backward, optimiser, and exchange or augmentation."""
    mix = "compute" if kind in ("compute", "evaluation") else "memory" if kind == "memory" else None
    bound = mix or str(rng.choice(("compute", "memory")))
    draws = [d for d in DRAWS if d.share > 0.45] if bound == "compute" else list(DRAWS)
    share = min(1.05, draws[rng.integers(len(draws))].share * _stray(rng))
    tensor = float(rng.choice((0.0, 0.9)))
    main = [_kernel(rng, name, bound, share * _stray(rng, 0.05), tensor) for name in ("forward", "backward")]
    rest = [_kernel(rng, name, "memory", 0.85 * share, 0.0) for name in ("optimiser", "exchange")]
    return [HOST, *main, *rest]


def _stray(rng: np.random.Generator, spread: float = SPREAD) -> float:
    return math.exp(spread * rng.standard_normal())


def _kernel(rng: np.random.Generator, name: str, bound: str, share: float, tensor: float) -> Stage:
    """A kernel bound by arithmetic has a recorded one's answer to the clock; one bound by memory that of a
    job whose power cap bit little."""
    if bound == "compute":
        fact = KERNELS[rng.integers(len(KERNELS))]
        core, sharpness = fact.core, fact.sharpness
    else:
        loose = [d.core for d in DRAWS if d.core is not None and d.core < 0.45]
        core = loose[rng.integers(len(loose))]
        sharpness = KERNELS[rng.integers(len(KERNELS))].sharpness
    core = min(0.99, max(0.02, core * _stray(rng)))
    # In a p-norm the two sides take these shares of the time if each could run alone.
    moving = 95 * (1 - core) ** (1 / sharpness) * rng.uniform(0.5, 1.0)
    computing = 95 * core ** (1 / sharpness) * rng.uniform(0.6, 1.0)
    return Stage(name, core, sharpness, share, 100.0, float(moving), float(computing), tensor)
