"""What "cuda:..." means: which GPUs, and whether kernels find the L2 warm or cold.

    cuda, cuda:0        one GPU
    cuda:0,2  cuda:all  several alike: trials are spread over them
    cuda:0@cold         the L2 is overwritten before each timed call (default: warm)

Numbers are the driver's, so CUDA_VISIBLE_DEVICES applies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ekc.errors import DeviceError

_TARGET_PATTERN = re.compile(r"cuda(?::(?P<which>all|\d+(?:,\d+)*))?(?:@(?P<l2>warm|cold))?")


@dataclass(frozen=True)
class CudaTarget:
    """A target in parts."""

    indices: tuple[int, ...] | None
    """None for all."""
    is_cold: bool

    def choose_gpus(self, count: int, text: str) -> tuple[int, ...]:
        """The GPUs meant, where there are `count`. `DeviceError` for one that is not there."""
        chosen = tuple(range(count)) if self.indices is None else self.indices
        absent = [index for index in chosen if index >= count]
        if absent:
            there = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
            raise DeviceError(f"no device {text!r} here: there are {count} GPU(s), {there}")
        return chosen


def parse_target(text: str) -> CudaTarget:
    """The target in parts. `DeviceError` for a form that is none of the above."""
    found = _TARGET_PATTERN.fullmatch(text)
    if found is None:
        raise DeviceError(
            f"no device {text!r}: write cuda:0, cuda:0,1 or cuda:all (the index must be a number), "
            "with @cold for a cold L2"
        )
    which = found["which"] or "0"
    indices = None if which == "all" else tuple(dict.fromkeys(map(int, which.split(","))))
    return CudaTarget(indices, found["l2"] == "cold")
