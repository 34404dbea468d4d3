"""GPUs of this machine as NVML, the driver's management library, reports them. Reading needs no
permission."""

from __future__ import annotations

from ekc.devices.nvml.library import GpuAbsence, count_gpus

__all__ = ["GpuAbsence", "count_gpus"]
