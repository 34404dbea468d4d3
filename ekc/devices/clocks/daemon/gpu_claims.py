"""The GPUs that clients of the daemon hold, and the checks before one may be held."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ekc.devices.clocks.daemon.allow_list import AllowList, GpuIdentity
from ekc.devices.clocks.daemon.callers import Caller, describe_user
from ekc.devices.clocks.limits import Settings
from ekc.devices.clocks.nvml_limits import NvmlLimits
from ekc.devices.nvml.library import (
    MPS_PROGRAM,
    call_nvml,
    find_handle,
    list_mps_pids,
    list_uuids,
    load_nvml,
)
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import ActuatorError, InvalidInput
from ekc.processes.process_facts import read_command_name, read_user_id

END_TIMEOUT_S = 3.0
"""Seconds that a claim waits for the settings of the one before to go back."""


@dataclass(frozen=True)
class PermittedGpu:
    """A GPU that a caller may set."""

    identity: GpuIdentity
    limits: NvmlLimits
    before: Settings
    """Clock limits in force that NVML cannot read."""
    lowest: Settings
    """Lowest settings that the caller may give it; None for a limit without one."""


class GpuClaims:
    """One caller per GPU: a claim is made before anything is set, and ends when the settings are back."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._callers: dict[str, Caller] = {}
        self._ending: set[str] = set()

    def claim(self, gpus: Mapping[str, PermittedGpu], caller: Caller) -> None:
        """Claim all of the GPUs, once those whose claims are about to end are free. Raises `ActuatorError`
        with the caller who holds one, and claims none."""
        with self._changed:
            self._changed.wait_for(lambda: not self._ending & gpus.keys(), END_TIMEOUT_S)
            for uuid, gpu in gpus.items():
                holder = self._callers.get(uuid)
                if holder is not None:
                    label = gpu.limits.label
                    raise ActuatorError(f"{label} is governed by {holder} already; one GPU has one governor")
            self._callers.update(dict.fromkeys(gpus, caller))

    def announce_end(self, uuids: Iterable[str]) -> None:
        """The settings go back now, and the claims end after that."""
        with self._changed:
            self._ending.update(uuids)

    def release(self, uuids: Iterable[str]) -> None:
        """End claims."""
        with self._changed:
            for uuid in uuids:
                self._callers.pop(uuid, None)
                self._ending.discard(uuid)
            self._changed.notify_all()

    @contextmanager
    def hold(self, gpus: Mapping[str, PermittedGpu], caller: Caller) -> Iterator[None]:
        """A claim for the duration of the block."""
        self.claim(gpus, caller)
        try:
            yield
        finally:
            self.release(gpus)


def find_permitted_gpu(allow_list: AllowList, caller: Caller, uuid: str) -> PermittedGpu:
    """Check that a caller may set a GPU. Raises `ActuatorError` for one who may not, for a GPU that is split
    by MIG, and for one on which another user computes."""
    allow_list.check_caller(caller)
    index = next((index for index, found in list_uuids().items() if found == uuid), None)
    if index is None:
        raise ActuatorError(f"{uuid} is no GPU that the daemon sees; see nvidia-smi -L on its machine")
    library = load_nvml()
    handle = find_handle(library, uuid)
    number = call_nvml(f"the device number of GPU {index}", library.nvmlDeviceGetMinorNumber, handle)
    gpu = GpuIdentity(index, int(number), uuid)
    lowest = allow_list.find_lowest(caller, gpu)
    if GpuSensors(uuid).explain_sharing():
        raise ActuatorError(f"GPU {index} is split by MIG: its clocks are those of all parts")
    check_no_other_user(uuid, caller)
    return PermittedGpu(gpu, NvmlLimits(uuid), allow_list.find_before(gpu), lowest)


def check_no_other_user(uuid: str, caller: Caller) -> None:
    """Raises `ActuatorError` where a process of another user computes on a GPU, also as a client of MPS: a
    low limit would slow it. A server of MPS that root runs computes for its clients, which are listed."""
    library = load_nvml()
    handle = find_handle(library, uuid)
    running = call_nvml(f"processes of {uuid}", library.nvmlDeviceGetComputeRunningProcesses, handle)
    clients = list_mps_pids(uuid, handle)
    for pid in sorted(clients | {int(process.pid) for process in running}):
        uid = read_user_id(pid)
        is_server = uid == 0 and pid not in clients and read_command_name(pid).startswith(MPS_PROGRAM)
        if uid not in (None, caller.uid) and not is_server:
            way = " through MPS" if pid in clients else ""
            raise ActuatorError(
                f"process {pid} of {describe_user(uid or 0)} computes on {uuid}{way}; "
                "a GPU that two users share is not governed"
            )


def check_settings(settings: Settings, gpu: PermittedGpu, offered: Settings, allow_list: AllowList) -> None:
    """Raises `InvalidInput` for a value below what the caller may set, or above what the lease offers."""
    for name, unit in (("sm_mhz", "MHz"), ("memory_mhz", "MHz"), ("power_w", "W")):
        value, lowest = getattr(settings, name), getattr(gpu.lowest, name)
        values = getattr(gpu.limits.list_offered(), name)
        if value is None:
            continue
        if not values:
            raise InvalidInput(f"{name}: {gpu.limits.label} cannot limit it; leave it out")
        if lowest is not None and value < lowest:
            raise InvalidInput(
                f"{name}: {value:g} {unit} is below the {lowest:g} {unit} that {allow_list.file} allows; "
                f"use {lowest:g} or more"
            )
        highest = min(x for x in (values[-1], getattr(offered, name)) if x is not None)
        if not values[0] <= value <= highest:
            raise InvalidInput(f"{name}: {value:g} {unit}, from {values[0]:g} to {highest:g} {unit}")
