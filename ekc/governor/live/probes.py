"""The probes of a real job's GPUs."""

from __future__ import annotations

from pathlib import Path

from ekc.governor.live.job import Job
from ekc.governor.live.units import ProbeOf
from ekc.governor.protocols import Probe


def nvml_probe_of(job: Job, steps: Path | None) -> ProbeOf:
    """Probes that watch as long as the job runs."""

    def probe_of(gpu: str) -> Probe:
        raise NotImplementedError(gpu)

    return probe_of
