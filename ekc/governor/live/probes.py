"""The probes of a real job's GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ekc.governor.live.job import Job
from ekc.governor.live.nvml_probe import NvmlProbe
from ekc.governor.live.steps import StepReader
from ekc.governor.live.units import ProbeOf


def nvml_probe_of(job: Job, steps: Path | None, tell: Callable[[str], None]) -> ProbeOf:
    """Probes that watch as long as the job runs; `tell` gets a line where a sensor is not believed.

    Raises `InvalidInput` for a file that counts no steps.
    """
    counted = StepReader(steps) if steps else _uncounted
    return lambda gpu: NvmlProbe(gpu, job.running, counted, tell)


def _uncounted() -> None:
    return None
