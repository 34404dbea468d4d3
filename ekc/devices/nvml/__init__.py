"""What the driver's management library (NVML) tells of the GPUs of this machine. Needs no permission."""

from __future__ import annotations

from ekc.devices.nvml.library import GpuAbsence, count_gpus

__all__ = ["GpuAbsence", "count_gpus"]
