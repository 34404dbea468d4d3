"""Does this machine have NVIDIA GPUs? Asked of the driver's management library (NVML)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ekc.forks import hold_forks

DRIVER_FILES = tuple(map(Path, ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvhost-gpu")))
"""What a driver that is loaded leaves; the last one on Jetson."""


@dataclass(frozen=True)
class GpuAbsence:
    """Why no GPU can be used here."""

    reason: str
    is_uncertain: bool = False
    """Whether there may be one all the same, of which nobody tells."""


@hold_forks()
def count_gpus() -> int | GpuAbsence:
    """Number of GPUs (at least one), or why there is none."""
    library = initialize_nvml()
    if isinstance(library, GpuAbsence):
        return library
    try:
        number = int(library.nvmlDeviceGetCount())
        library.nvmlShutdown()
    except library.NVMLError as error:
        return GpuAbsence(f"the NVIDIA driver does not tell of its GPUs ({error})", is_uncertain=True)
    return number or GpuAbsence("the NVIDIA driver sees no GPU")


@hold_forks()
def initialize_nvml() -> Any:
    """pynvml, initialised; an `Absent` where that cannot be."""
    try:
        import pynvml
    except ImportError as problem:
        return GpuAbsence(f"pynvml cannot be loaded ({problem}): pip install nvidia-ml-py", is_uncertain=True)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as problem:
        return _explain_absence(pynvml, problem)
    return pynvml


def _explain_absence(library: Any, problem: Any) -> GpuAbsence:
    """A driver may be there without the library that tells of it."""
    trace = next((path for path in DRIVER_FILES if path.exists()), None)
    if problem.value == library.NVML_ERROR_LIBRARY_NOT_FOUND and trace is not None:
        return GpuAbsence(
            f"there is an NVIDIA driver ({trace}), but its library NVML (libnvidia-ml.so.1) cannot be "
            "loaded: install it; a container gets it with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            is_uncertain=True,
        )
    if problem.value in (library.NVML_ERROR_LIBRARY_NOT_FOUND, library.NVML_ERROR_DRIVER_NOT_LOADED):
        return GpuAbsence(f"no NVIDIA driver here ({problem})")
    return GpuAbsence(f"the NVIDIA driver's library NVML does not start ({problem})", is_uncertain=True)
