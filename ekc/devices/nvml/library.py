"""The library itself: loaded and initialised once, its errors told in one line."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ekc.devices.nvml.presence import GpuAbsence, initialize_nvml
from ekc.errors import ActuatorError
from ekc.forks import hold_forks

_init_lock = threading.Lock()
_initialised = False
_UUID_PREFIXES = ("", "GPU-", "MIG-")
"""What a UUID may begin with; CUDA tells it without."""


def load_nvml() -> Any:
    """pynvml, initialised once per process. Raises `ActuatorError` where there is no driver, or no NVML."""
    global _initialised

    with hold_forks(), _init_lock:
        if not _initialised:
            started = initialize_nvml()
            if isinstance(started, GpuAbsence):
                raise ActuatorError(started.reason)
            _initialised = True
    import pynvml

    return pynvml


def list_uuids() -> dict[int, str]:
    """Of the GPUs that this process may use, by NVML's number (that of nvidia-smi). This counts others too,
    those that a container was not given, say. Raises `ActuatorError` where it may use none."""
    library = load_nvml()
    number = call_nvml("the number of GPUs", library.nvmlDeviceGetCount)
    found = {index: find_uuid(index) for index in range(number) if _is_permitted(library, index)}
    if number and not found:
        raise ActuatorError(
            f"none of the {number} GPUs here may be used by this process: it was not given one"
        )
    return found


@hold_forks()
def _is_permitted(library: Any, index: int) -> bool:
    """What else is wrong with a GPU, who asks it is told."""
    try:
        library.nvmlDeviceGetHandleByIndex(index)
    except library.NVMLError as problem:
        return bool(problem.value != library.NVML_ERROR_NO_PERMISSION)
    return True


def find_uuid(index: int) -> str:
    """Of the GPU with a number of NVML's. Raises `ActuatorError` where there is none."""
    library = load_nvml()
    handle = call_nvml(f"GPU {index}", library.nvmlDeviceGetHandleByIndex, index)
    return str(call_nvml(f"the UUID of GPU {index}", library.nvmlDeviceGetUUID, handle))


@hold_forks()
def find_handle(library: Any, uuid: str) -> Any:
    """By a UUID of NVML's, or of CUDA's, which has no kind in front. Raises `ActuatorError`."""
    for kind in _UUID_PREFIXES[:-1]:
        try:
            return library.nvmlDeviceGetHandleByUUID(kind + uuid)
        except library.NVMLError:
            continue
    return call_nvml(uuid, library.nvmlDeviceGetHandleByUUID, _UUID_PREFIXES[-1] + uuid)


def call_nvml(subject: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of an NVML call. Raises `ActuatorError` with what was asked for and why it failed."""
    import pynvml

    try:
        with hold_forks():
            return function(*arguments)
    except pynvml.NVMLError as problem:
        raise ActuatorError(f"{subject}: {describe_error(problem)}") from problem


def describe_error(problem: Any) -> str:
    """The driver's words, and what helps."""
    import pynvml

    help_with = {
        pynvml.NVML_ERROR_NO_PERMISSION: "needs root or CAP_SYS_ADMIN, or zeusd; --advise sets nothing",
        pynvml.NVML_ERROR_GPU_IS_LOST: "it fell off the bus; reset it or restart the machine",
        pynvml.NVML_ERROR_NOT_SUPPORTED: "this GPU or driver cannot do it",
        pynvml.NVML_ERROR_NOT_FOUND: "see nvidia-smi -L for what there is",
    }
    more = help_with.get(problem.value)
    return f"{problem} ({more})" if more else str(problem)
