"""GPUs of this machine by NVML, the driver's management library, which anyone may read."""

from ekc.devices.nvml.library import GpuAbsence, count_gpus

__all__ = ["GpuAbsence", "count_gpus"]
