"""One client of the daemon: the GPUs that it may hold, its requests, and its lease, which ends with the
connection."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from ekc.devices.clocks.daemon.allow_list import AllowList, GpuIdentity
from ekc.devices.clocks.daemon.messages import (
    MAX_REQUEST_BYTES,
    SILENCE_TIMEOUT_S,
    ConnectionEnded,
    MessageChannel,
)
from ekc.devices.clocks.lease import LeasedActuator, LeaseKeeper
from ekc.devices.clocks.limits import Limit, LimitTaken, NvmlLimits, Settings, parse_settings
from ekc.devices.nvml.library import (
    MPS_PROGRAM,
    call_nvml,
    find_handle,
    list_mps_pids,
    list_uuids,
    load_nvml,
)
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import ActuatorError, EkcError, InvalidInput
from ekc.processes.process_facts import Caller, describe_user, read_command_name, read_user_id

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


def check_permitted_gpu(allow_list: AllowList, caller: Caller, uuid: str) -> PermittedGpu:
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


FOREIGN_CHECK_S = 2.0
"""Seconds between two looks for processes of other users on leased GPUs."""
REQUESTS = ("check", "lease", "set", "beat", "end")


@dataclass
class DaemonServices:
    """The part of the daemon that all connections share."""

    allow_list: AllowList
    log: Callable[[str], None]
    claims: GpuClaims = field(default_factory=GpuClaims)


@dataclass
class _HeldLease:
    """Lease of one client."""

    gpus: dict[str, PermittedGpu]
    keeper: LeaseKeeper
    actuators: dict[str, LeasedActuator]
    checked_s: float = field(default_factory=time.monotonic)

    def describe_gpus(self) -> str:
        return ", ".join(gpu.limits.label for gpu in self.gpus.values())


class ServedConnection:
    """A connection, from `run`, which a thread of its own calls, until the settings are back."""

    def __init__(self, connected: socket.socket, caller: Caller, services: DaemonServices) -> None:
        self.caller = caller
        self.finished = threading.Event()
        """Set when the settings are back, or could not be put back."""
        self.problems: list[str] = []
        """Reasons why settings of the last lease are not back."""
        self._socket = connected
        self._channel = MessageChannel(connected, MAX_REQUEST_BYTES)
        self._services = services
        self._lease: _HeldLease | None = None
        self._end_reason = ""

    def run(self) -> None:
        """Answer requests until the connection ends, then put the settings back."""
        reason = ""
        try:
            self._answer_requests()
        except (ConnectionEnded, InvalidInput, ActuatorError) as end:
            reason = str(end)
        except Exception as problem:  # A bug must not leave a lease behind.
            reason = f"a bug in ekc: {type(problem).__name__}: {problem}"
            self._services.log(f"{self.caller}: {reason}")
        finally:
            self._finish(self._end_reason or reason)

    def _finish(self, reason: str) -> None:
        try:
            self._end_lease(reason)
            with suppress(ConnectionEnded):
                self._channel.send({"ended": reason})
        finally:
            self._socket.close()
            self.finished.set()

    def end(self, reason: str) -> None:
        """End the connection, from any thread; `finished` is set when the settings are back."""
        self._end_reason = self._end_reason or reason
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def _answer_requests(self) -> None:
        self._services.allow_list.check_caller(self.caller)
        while True:
            request = self._channel.receive(SILENCE_TIMEOUT_S)
            try:
                reply = self._answer(request)
            except EkcError as refusal:
                reply = {"refused": str(refusal)}
            self._check_lease()
            self._channel.send(reply)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply. Raises `InvalidInput` and `ActuatorError` where the request is refused."""
        word = request.get("do")
        if word == "check":
            self._check(_read_gpus(request))
        elif word == "lease":
            return {"ok": True, "gpus": self._take_lease(_read_gpus(request))}
        elif word == "set":
            self._set(request)
        elif word == "end":
            self._end_lease("the client is done")
            if self.problems:
                raise ActuatorError("; ".join(self.problems))
        elif word != "beat":
            raise InvalidInput(f"do: {str(word)[:40]!r}; requests are {', '.join(REQUESTS)}")
        return {"ok": True, "taken": self._list_taken_limits()}

    def _list_taken_limits(self) -> dict[str, list[Limit]]:
        """By UUID: limits that others have set during the lease."""
        actuators = self._lease.actuators if self._lease is not None else {}
        return {uuid: sorted(x.taken_limits()) for uuid, x in actuators.items() if x.taken_limits()}

    def _check(self, uuids: list[str]) -> None:
        gpus = self._find_gpus(uuids)
        with self._services.claims.hold(gpus, self.caller):
            for gpu in gpus.values():
                gpu.limits.check_permission()

    def _find_gpus(self, uuids: list[str]) -> dict[str, PermittedGpu]:
        allow_list = self._services.allow_list
        return {uuid: check_permitted_gpu(allow_list, self.caller, uuid) for uuid in uuids}

    def _take_lease(self, uuids: list[str]) -> dict[str, Any]:
        """Lease GPUs; returns for each the settings before and the lowest ones."""
        if self._lease is not None:
            raise InvalidInput("lease: this connection has one already; end it first")
        gpus = self._find_gpus(uuids)
        self._services.claims.claim(gpus, self.caller)
        try:
            keeper = self._open_keeper(gpus)
        except BaseException:
            self._services.claims.release(gpus)
            raise
        actuators = [x for x in keeper.actuators if isinstance(x, LeasedActuator)]
        self._lease = lease = _HeldLease(gpus, keeper, {x.lease.reference.gpu: x for x in actuators})
        for actuator in actuators:
            if actuator.restored is not None:
                self._services.log(f"an earlier governor was killed; {actuator.restored}")
        self._services.log(f"{self.caller} leases {lease.describe_gpus()}")
        return {
            uuid: {"before": asdict(lease.actuators[uuid].lease.previous), "lowest": asdict(gpu.lowest)}
            for uuid, gpu in gpus.items()
        }

    def _open_keeper(self, gpus: Mapping[str, PermittedGpu]) -> LeaseKeeper:
        before = {gpu.before for gpu in gpus.values()}
        if len(before) > 1:
            raise ActuatorError(
                "the allow-list has different limits under [[before]] for these GPUs; govern each with an "
                "ekc govern --gpu of its own"
            )
        return LeaseKeeper([gpu.limits for gpu in gpus.values()], before.pop(), self._services.log)

    def _set(self, request: dict[str, Any]) -> None:
        lease, uuid = self._lease, request.get("gpu")
        if lease is None or not isinstance(uuid, str) or uuid not in lease.gpus:
            raise InvalidInput(f"set: this connection has no lease of {str(uuid)[:60]!r}; lease it first")
        settings = _read_settings(request.get("settings"))
        offered = lease.actuators[uuid].lease.previous
        check_settings(settings, lease.gpus[uuid], offered, self._services.allow_list)
        with suppress(LimitTaken):  # The reply has it.
            lease.actuators[uuid].apply(settings)

    def _check_lease(self) -> None:
        """Raises `ActuatorError`, which ends the lease, where allow-list or job files permit it no more, and
        where another user computes on one of its GPUs."""
        lease = self._lease
        if lease is None:
            return
        for uuid, gpu in lease.gpus.items():
            if self._services.allow_list.find_lowest(self.caller, gpu.identity) != gpu.lowest:
                raise ActuatorError(f"{self._services.allow_list.file} has other lowest settings now")
            if time.monotonic() > lease.checked_s + FOREIGN_CHECK_S:
                check_no_other_user(uuid, self.caller)
        if time.monotonic() > lease.checked_s + FOREIGN_CHECK_S:
            lease.checked_s = time.monotonic()

    def _end_lease(self, reason: str) -> None:
        """Put the settings back, then let others lease the GPUs."""
        lease = self._lease
        if lease is None:
            return
        self._services.claims.announce_end(lease.gpus)
        self.problems = lease.keeper.close()
        outcome = "; ".join(self.problems) or "previous settings are back"
        self._lease = None
        self._services.claims.release(lease.gpus)
        self._services.log(f"lease of {lease.describe_gpus()} by {self.caller} ended ({reason}): {outcome}")


def _read_gpus(request: Mapping[str, Any]) -> list[str]:
    gpus = request.get("gpus")
    if not isinstance(gpus, list) or not gpus or not all(isinstance(gpu, str) for gpu in gpus):
        raise InvalidInput("gpus: give a list of UUIDs, as nvidia-smi -L shows them")
    return list(dict.fromkeys(gpus))


def _read_settings(values: Any) -> Settings:
    """Settings with numbers or None. Raises `InvalidInput`."""
    if not isinstance(values, dict) or not values.keys() <= {"sm_mhz", "memory_mhz", "power_w"}:
        raise InvalidInput("settings: give sm_mhz, memory_mhz and power_w, or some of them")
    try:
        return parse_settings(values)
    except ValueError as problem:
        raise InvalidInput(f"settings: {problem}") from problem
