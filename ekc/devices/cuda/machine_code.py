"""Which drivers load the machine code that NVRTC makes, and what helps where one does not."""

from __future__ import annotations

from ekc.devices.cuda.driver import format_cuda_version

CUDA_12_INSTALL_COMMAND = (
    "pip uninstall -y nvidia-cuda-nvrtc && pip install 'cuda-python>=12.9,<13' nvidia-cuda-nvrtc-cu12"
)
"""Drivers for CUDA 12 are many: the other NVRTC has to go, or the bindings load that one."""


def explain_old_driver(driver: int, nvrtc: str) -> str | None:
    """Why a driver for CUDA `driver` (13000 is 13.0) does not load machine code of this NVRTC ("13.5"); None
    where it does: that of a major version runs on every driver of that version or a later one."""
    needed = int(nvrtc.split(".")[0])
    if driver >= 1000 * needed:
        return None
    other = f", or {CUDA_12_INSTALL_COMMAND}" if driver // 1000 == 12 else ""
    return (
        f"for CUDA {format_cuda_version(driver)}, too old for the machine code of NVRTC {nvrtc}: update the driver "
        f"to one for CUDA {needed}.0 or later{other}"
    )
