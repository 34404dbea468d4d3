"""Opens "cuda:N": a worker for each GPU, asked what it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

from ekc.codegen import nvrtc
from ekc.devices.cuda.device import CudaDevice
from ekc.devices.cuda.gpu import Gpu
from ekc.devices.cuda.messages import TimingRules
from ekc.devices.cuda.remote import ChildProcess, ProcessHandle, RemoteWorker
from ekc.devices.cuda.target import parse_target
from ekc.devices.nvml.sensors import GpuSensors


def open_cuda(
    text: str,
    start_worker: Callable[[int], ProcessHandle] = ChildProcess,
    open_sensors: Callable[[str], GpuSensors] = GpuSensors,
) -> CudaDevice:
    """The device of a target such as "cuda:0". `hire` starts the worker of a GPU, `sensors` finds those of a
    UUID. Raises `DeviceError`."""
    target = parse_target(text)
    first = _connect_gpu(target.indices[0] if target.indices else 0, start_worker, open_sensors)
    chosen = target.choose_gpus(first.properties.gpu_count, text)
    gpus = [first, *(_connect_gpu(index, start_worker, open_sensors) for index in chosen[1:])]
    if first.properties.assumptions:
        warnings.warn(f"{first.properties.assumptions}; no measurement uses it", stacklevel=2)
    return CudaDevice(gpus, TimingRules(is_cold=target.is_cold))


def _connect_gpu(
    index: int, start_worker: Callable[[int], ProcessHandle], open_sensors: Callable[[str], GpuSensors]
) -> Gpu:
    remote = RemoteWorker(f"cuda:{index}", partial(start_worker, index))
    return Gpu.connect(index, remote, open_sensors, nvrtc.version())
