"""Opens "cuda:N": a worker for each GPU, asked what it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

from ekc.codegen import nvrtc
from ekc.devices.cuda.device import CudaDevice
from ekc.devices.cuda.gpu import Gpu
from ekc.devices.cuda.messages import Rules
from ekc.devices.cuda.remote import Child, Hand, Remote
from ekc.devices.cuda.target import parse
from ekc.devices.nvml.sensors import Sensors


def open_cuda(
    text: str, hire: Callable[[int], Hand] = Child, sensors: Callable[[str], Sensors] = Sensors
) -> CudaDevice:
    """The device of a target such as "cuda:0". `hire` starts the worker of a GPU, `sensors` finds those of a
    UUID. Raises `DeviceError`."""
    target = parse(text)
    first = _gpu(target.indices[0] if target.indices else 0, hire, sensors)
    chosen = target.of(first.facts.count, text)
    gpus = [first, *(_gpu(index, hire, sensors) for index in chosen[1:])]
    if first.facts.assumed:
        warnings.warn(f"{first.facts.assumed}; no measurement uses it", stacklevel=2)
    return CudaDevice(gpus, Rules(cold=target.cold))


def _gpu(index: int, hire: Callable[[int], Hand], sensors: Callable[[str], Sensors]) -> Gpu:
    remote = Remote(f"cuda:{index}", partial(hire, index))
    return Gpu.opened(index, remote, sensors, nvrtc.version())
