"""Does this machine have NVIDIA GPUs? Asked of the driver's management library (NVML)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Absent:
    """Why no GPU can be used here."""

    reason: str


def gpus() -> int | Absent:
    """Number of GPUs (at least one), or why there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Absent(f"no NVIDIA driver ({error})")
    try:
        number = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Absent(f"the NVIDIA driver does not tell of its GPUs ({error})")
    return number or Absent("the NVIDIA driver sees no GPU")
