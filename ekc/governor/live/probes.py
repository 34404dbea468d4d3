"""The probes of a real job's GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ekc.governor.live.job import GovernedJob
from ekc.governor.live.nvml_probe import NvmlProbe
from ekc.governor.live.steps import StepReader
from ekc.governor.live.units import ProbeFactory


def make_nvml_probe_factory(
    job: GovernedJob, steps_file: Path | None, on_message: Callable[[str], None]
) -> ProbeFactory:
    """Probes that watch as long as the job runs; `tell` gets a line where a sensor is not believed.

    Raises `InvalidInput` for a file that counts no steps.
    """
    counted = StepReader(steps_file) if steps_file else _read_no_steps
    return lambda gpu: NvmlProbe(gpu, job.is_running, counted, on_message)


def _read_no_steps() -> None:
    return None
