"""NVML, the driver's management library, initialised once per process: its GPUs and errors, and the right to
set clocks through it. Nothing is set here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ekc.errors import ActuatorError, DriverTrouble, GpuUnusable
from ekc.forks import hold_forks

DRIVER_FILES = tuple(map(Path, ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvhost-gpu")))
"""Files that a loaded driver creates; the last one on Jetson."""

THROTTLE_FUNCTIONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""Drivers up to CUDA 12.1 have only the second function, later ones both; the bits are the same."""


@dataclass(frozen=True)
class GpuAbsence:
    """Why no GPU can be used here."""

    reason: str
    is_uncertain: bool = False
    """Whether there may be a GPU although the driver does not report one."""
    may_pass: bool = False
    """Whether a later try may find it."""


@hold_forks()
def count_gpus() -> int | GpuAbsence:
    """Number of GPUs (at least one), or why there is none."""
    library = initialize_nvml()
    if isinstance(library, GpuAbsence):
        return library
    try:
        number = int(retry_nvml(library.nvmlDeviceGetCount))
        library.nvmlShutdown()
    except library.NVMLError as error:
        return GpuAbsence(f"the NVIDIA driver does not report its GPUs ({error})", is_uncertain=True)
    return number or GpuAbsence("the NVIDIA driver sees no GPU")


@hold_forks()
def initialize_nvml() -> Any:
    """pynvml, initialised; a `GpuAbsence` where that fails."""
    try:
        import pynvml
    except ImportError as problem:
        return GpuAbsence(f"pynvml cannot be loaded ({problem}): pip install nvidia-ml-py", is_uncertain=True)
    try:
        retry_nvml(pynvml.nvmlInit)
    except pynvml.NVMLError as problem:
        return _explain_absence(pynvml, problem)
    return pynvml


def _explain_absence(library: Any, problem: Any) -> GpuAbsence:
    """Why NVML is not there: without its library a driver may still be installed."""
    trace = next((path for path in DRIVER_FILES if path.exists()), None)
    if problem.value == library.NVML_ERROR_LIBRARY_NOT_FOUND and trace is not None:
        return GpuAbsence(
            f"there is an NVIDIA driver ({trace}), but its library NVML (libnvidia-ml.so.1) cannot be "
            "loaded: install it; a container gets it with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            is_uncertain=True,
        )
    if problem.value in (library.NVML_ERROR_LIBRARY_NOT_FOUND, library.NVML_ERROR_DRIVER_NOT_LOADED):
        return GpuAbsence(f"no NVIDIA driver here ({problem})")
    reason = f"the NVIDIA driver's library NVML does not start ({problem})"
    return GpuAbsence(reason, is_uncertain=True, may_pass=is_passing(problem.value))


_init_lock = threading.Lock()
_initialised = False
_UUID_PREFIXES = ("", "GPU-", "MIG-")
"""Beginnings of a UUID in NVML; CUDA gives the UUID without one."""


def load_nvml() -> Any:
    """pynvml, initialised once per process. Raises `ActuatorError` where there is no driver, or no NVML:
    `DriverTrouble` where it may start later."""
    global _initialised

    with hold_forks(), _init_lock:
        if not _initialised:
            started = initialize_nvml()
            if isinstance(started, GpuAbsence):
                raise (DriverTrouble if started.may_pass else ActuatorError)(started.reason)
            _initialised = True
    import pynvml

    return pynvml


def list_uuids() -> dict[int, str]:
    """UUIDs by NVML's number (that of nvidia-smi) of the GPUs that this process may use. NVML also counts
    GPUs that a container was not given. Raises `ActuatorError` where this process may use none."""
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
    """Whether this process may use a GPU. Any other error is reported by the first call that uses it."""
    try:
        retry_nvml(library.nvmlDeviceGetHandleByIndex, index)
    except library.NVMLError as problem:
        return bool(problem.value != library.NVML_ERROR_NO_PERMISSION)
    return True


def find_uuid(index: int) -> str:
    """UUID of the GPU with this NVML number. Raises `ActuatorError` where there is none."""
    library = load_nvml()
    handle = call_nvml(f"GPU {index}", library.nvmlDeviceGetHandleByIndex, index)
    return str(call_nvml(f"the UUID of GPU {index}", library.nvmlDeviceGetUUID, handle))


@hold_forks()
def find_handle(library: Any, uuid: str) -> Any:
    """NVML handle of a UUID, in the form of NVML or of CUDA, which has no prefix. Raises `ActuatorError`."""
    for kind in _UUID_PREFIXES[:-1]:
        try:
            return retry_nvml(library.nvmlDeviceGetHandleByUUID, kind + uuid)
        except library.NVMLError as problem:
            if is_passing(problem.value):
                raise make_nvml_error(uuid, problem) from problem
    return call_nvml(uuid, library.nvmlDeviceGetHandleByUUID, _UUID_PREFIXES[-1] + uuid)


RETRY_PAUSES_S = (0.05, 0.2)
"""Seconds between tries of a call that failed with an error that may pass."""
_LASTING_ERRORS = (
    "UNINITIALIZED",
    "INVALID_ARGUMENT",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "NOT_FOUND",
    "INSUFFICIENT_SIZE",
    "DRIVER_NOT_LOADED",
    "LIBRARY_NOT_FOUND",
    "FUNCTION_NOT_FOUND",
    "GPU_IS_LOST",
    "RESET_REQUIRED",
    "LIB_RM_VERSION_MISMATCH",
    "ARGUMENT_VERSION_MISMATCH",
    "GPU_NOT_FOUND",
)
"""Errors that a second call with the same arguments gives too, without NVML_ERROR_."""


def is_passing(code: int) -> bool:
    """Whether an error of NVML may be gone at the next call, as a timeout or an unknown error."""
    import pynvml

    lasting = {getattr(pynvml, f"NVML_ERROR_{name}", None) for name in _LASTING_ERRORS}
    return code != pynvml.NVML_SUCCESS and code not in lasting


def retry_nvml(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of an NVML call, which is tried again, twice at most, after an error that may pass. Setting
    a limit twice does no harm: it may have had its effect and failed all the same. Raises `NVMLError`."""
    import pynvml

    for pause_s in RETRY_PAUSES_S:
        try:
            with hold_forks():
                return function(*arguments)
        except pynvml.NVMLError as problem:
            if not is_passing(problem.value):
                raise
        time.sleep(pause_s)
    with hold_forks():
        return function(*arguments)


def call_nvml(subject: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of an NVML call, as `retry_nvml`. Raises `ActuatorError` with the subject of the call and
    the reason: `DriverTrouble` where a later call may succeed, `GpuUnusable` where none can."""
    import pynvml

    try:
        return retry_nvml(function, *arguments)
    except pynvml.NVMLError as problem:
        raise make_nvml_error(subject, problem) from problem


def make_nvml_error(subject: str, problem: Any) -> ActuatorError:
    """The `ActuatorError` of an error of NVML, with a remedy where one is known."""
    import pynvml

    remedies = {
        pynvml.NVML_ERROR_NO_PERMISSION: "needs root or CAP_SYS_ADMIN, or a daemon; --advise sets nothing",
        pynvml.NVML_ERROR_GPU_IS_LOST: "it fell off the bus; reset it or restart the machine",
        pynvml.NVML_ERROR_NOT_SUPPORTED: "this GPU or driver cannot do it",
        pynvml.NVML_ERROR_NOT_FOUND: "see nvidia-smi -L for what there is",
    }
    remedy = remedies.get(problem.value)
    text = f"{subject}: {problem} ({remedy})" if remedy else f"{subject}: {problem}"
    if problem.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NO_PERMISSION):
        return GpuUnusable(text)
    return DriverTrouble(text) if is_passing(problem.value) else ActuatorError(text)


MPS_PROGRAM = "nvidia-cuda-mps"
"""Beginning of the names of the MPS server and its control daemon, as far as the kernel keeps them."""
_HIDDEN = "NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_FUNCTION_NOT_FOUND", "NVML_ERROR_NO_PERMISSION"
"""Errors of a driver that lists no processes here, as under Windows."""


def list_compute_pids(subject: str, handle: Any) -> set[int]:
    """Processes with a CUDA context on a GPU: without the clients of MPS, with its server. None where the
    driver lists none here. Raises `ActuatorError`."""
    return _list_pids(subject, "nvmlDeviceGetComputeRunningProcesses", handle)


def list_mps_pids(subject: str, handle: Any) -> set[int]:
    """Clients of MPS on a GPU; none where driver or installed nvidia-ml-py list none. Raises
    `ActuatorError`."""
    return _list_pids(subject, "nvmlDeviceGetMPSComputeRunningProcesses", handle)


def _list_pids(subject: str, name: str, handle: Any) -> set[int]:
    library = load_nvml()
    function = getattr(library, name, None)
    if function is None:
        return set()
    try:
        running = call_nvml(f"processes of {subject}", function, handle)
    except ActuatorError as problem:
        if getattr(problem.__cause__, "value", None) in [getattr(library, one) for one in _HIDDEN]:
            return set()
        raise
    return {int(process.pid) for process in running}


_CAP_SYS_ADMIN = 1 << 21
"""Bit of CAP_SYS_ADMIN, which root has and the driver requires."""


def explain_refusal(status_file: Path = Path("/proc/self/status")) -> str:
    """Why this process may not set clocks; "" where it may, as far as that can be found without trying."""
    try:
        lines = status_file.read_text().splitlines()
    except OSError:
        return "this system does not report the rights of a process"
    capabilities = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return "" if capabilities & _CAP_SYS_ADMIN else "this process lacks CAP_SYS_ADMIN, which root has"
