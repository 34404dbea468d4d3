"""The library itself: loaded and initialised once, its errors told in one line."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ekc.devices.nvml.presence import Absent, start
from ekc.errors import ActuatorError
from ekc.forks import hold_forks

_once = threading.Lock()
_initialised = False
_KINDS = ("", "GPU-", "MIG-")
"""What a UUID may begin with; CUDA tells it without."""


def nvml() -> Any:
    """pynvml, initialised once per process. Raises `ActuatorError` where there is no driver, or no NVML."""
    global _initialised

    with hold_forks(), _once:
        if not _initialised:
            started = start()
            if isinstance(started, Absent):
                raise ActuatorError(started.reason)
            _initialised = True
    import pynvml

    return pynvml


def uuids() -> dict[int, str]:
    """Of the GPUs that this process may use, by NVML's number (that of nvidia-smi). This counts others too,
    those that a container was not given, say. Raises `ActuatorError` where it may use none."""
    library = nvml()
    number = explained("the number of GPUs", library.nvmlDeviceGetCount)
    found = {index: uuid_of(index) for index in range(number) if _permitted(library, index)}
    if number and not found:
        raise ActuatorError(
            f"none of the {number} GPUs here may be used by this process: it was not given one"
        )
    return found


@hold_forks()
def _permitted(library: Any, index: int) -> bool:
    """What else is wrong with a GPU, who asks it is told."""
    try:
        library.nvmlDeviceGetHandleByIndex(index)
    except library.NVMLError as problem:
        return bool(problem.value != library.NVML_ERROR_NO_PERMISSION)
    return True


def uuid_of(index: int) -> str:
    """Of the GPU with a number of NVML's. Raises `ActuatorError` where there is none."""
    library = nvml()
    handle = explained(f"GPU {index}", library.nvmlDeviceGetHandleByIndex, index)
    return str(explained(f"the UUID of GPU {index}", library.nvmlDeviceGetUUID, handle))


@hold_forks()
def handle_of(library: Any, uuid: str) -> Any:
    """By a UUID of NVML's, or of CUDA's, which has no kind in front. Raises `ActuatorError`."""
    for kind in _KINDS[:-1]:
        try:
            return library.nvmlDeviceGetHandleByUUID(kind + uuid)
        except library.NVMLError:
            continue
    return explained(uuid, library.nvmlDeviceGetHandleByUUID, _KINDS[-1] + uuid)


def explained(what: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """The result of an NVML call. Raises `ActuatorError` with what was asked for and why it failed."""
    import pynvml

    try:
        with hold_forks():
            return call(*arguments)
    except pynvml.NVMLError as problem:
        raise ActuatorError(f"{what}: {reason(problem)}") from problem


def reason(problem: Any) -> str:
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
