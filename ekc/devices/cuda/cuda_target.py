"""Targets "cuda:...": which GPUs, and whether timed calls find the L2 warm or cold.

    cuda, cuda:0        one GPU
    cuda:0,2  cuda:all  several GPUs of one kind: trials are spread over them
    cuda:0@cold         the L2 is overwritten before each timed call (default: warm)

Numbers are the driver's, so CUDA_VISIBLE_DEVICES applies. This module also knows which drivers load the
machine code that NVRTC makes, and the remedy where one does not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ekc.devices.cuda.driver import format_cuda_version
from ekc.errors import DeviceError

_TARGET_PATTERN = re.compile(r"cuda(?::(?P<which>all|\d+(?:,\d+)*))?(?:@(?P<l2>warm|cold))?")


@dataclass(frozen=True)
class CudaTarget:
    """A target, parsed."""

    indices: tuple[int, ...] | None
    """Indices of GPUs; None for all."""
    is_cold: bool

    def choose_gpus(self, count: int, text: str) -> tuple[int, ...]:
        """Indices of the chosen GPUs among `count`. `DeviceError` for a GPU that does not exist."""
        chosen = tuple(range(count)) if self.indices is None else self.indices
        absent = [index for index in chosen if index >= count]
        if absent:
            there = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
            raise DeviceError(f"no device {text!r} here: there are {count} GPU(s), {there}")
        return chosen


def parse_target(text: str) -> CudaTarget:
    """Parse a target. `DeviceError` for any other form."""
    found = _TARGET_PATTERN.fullmatch(text)
    if found is None:
        raise DeviceError(
            f"no device {text!r}: write cuda:0, cuda:0,1 or cuda:all (the index must be a number), "
            "with @cold for a cold L2"
        )
    which = found["which"] or "0"
    indices = None if which == "all" else tuple(dict.fromkeys(map(int, which.split(","))))
    return CudaTarget(indices, found["l2"] == "cold")


CUDA_12_INSTALL_COMMAND = (
    "pip uninstall -y nvidia-cuda-nvrtc && pip install 'cuda-python>=12.9,<13' nvidia-cuda-nvrtc-cu12"
)
"""Installs NVRTC of CUDA 12, whose drivers are common; the bindings load the other one if it stays."""


def explain_old_driver(driver: int, nvrtc: str) -> str | None:
    """Why a driver for CUDA `driver` (13000 is 13.0) does not load machine code of this NVRTC ("13.5"); None
    where it does: machine code of a major version runs on each driver of that version or a later one."""
    needed = int(nvrtc.split(".")[0])
    if driver >= 1000 * needed:
        return None
    other = f", or {CUDA_12_INSTALL_COMMAND}" if driver // 1000 == 12 else ""
    return (
        f"for CUDA {format_cuda_version(driver)}, too old for the machine code of NVRTC {nvrtc}: "
        f"update the driver to one for CUDA {needed}.0 or later{other}"
    )
