"""What the driver's management library (NVML) tells of the GPUs of this machine. Needs no permission."""

from __future__ import annotations

from ekc.devices.nvml.presence import Absent, gpus

__all__ = ["Absent", "gpus"]
