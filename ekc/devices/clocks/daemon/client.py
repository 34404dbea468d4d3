"""A client's side of the daemon: the limits of one GPU, the connection that is the lease, and the actuator
for a `LeaseKeeper`."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from ekc.devices.clocks.daemon.messages import MAX_REPLY_BYTES, ConnectionEnded, MessageChannel, PeerSilent
from ekc.devices.clocks.lease_file import Lease, read_boot_id
from ekc.devices.clocks.limits import (
    LIMIT_NAMES,
    LIMITS,
    GovernedLimits,
    Limit,
    LimitSetter,
    LimitTaken,
    OfferedSettings,
    Settings,
    select_offered,
)
from ekc.errors import ActuatorError, DriverTrouble, EkcError, InvalidInput

DEFAULT_SOCKET = "/run/ekc/governor.sock"
SOCKET_VARIABLE = "EKC_GOVERNOR_SOCKET"
REPLY_TIMEOUT_S = 5.0
LEASE_TIMEOUT_S = 25.0
"""Seconds for a lease: the daemon starts a guard process first."""


def name_socket() -> str:
    """Path of the daemon's socket: EKC_GOVERNOR_SOCKET or the default one."""
    return os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET


def find_socket() -> str | None:
    """Path of the daemon's socket; None where the default one does not exist and no other is named."""
    path = name_socket()
    return path if path != DEFAULT_SOCKET or os.path.exists(path) else None


class DaemonLimits(LimitSetter):
    """One GPU that the daemon sets. Limits are set under a `DaemonLease` alone."""

    kind = "daemon"

    def check_permission(self) -> None:
        """Ask the daemon whether it would give a lease. Raises `ActuatorError` where it would not."""
        connection = DaemonConnection(self.reference.address)
        try:
            connection.request({"do": "check", "gpus": [self.uuid]})
        finally:
            connection.close()

    def set_limit(self, limit: Limit, value: float | None) -> None:
        """Raises `ActuatorError`: the daemon takes whole settings, under a lease."""
        raise ActuatorError(f"{self.label}: {limit} cannot be set to {value} without a lease")


class DaemonConnection:
    """A connection to the daemon. Raises `ActuatorError` where none answers."""

    def __init__(self, socket_path: str) -> None:
        self._name = f"daemon at {socket_path}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._channel = MessageChannel(self._socket, MAX_REPLY_BYTES)
        try:
            self._socket.settimeout(REPLY_TIMEOUT_S)
            self._socket.connect(socket_path)
        except OSError as problem:
            self._socket.close()
            reason = problem.strerror or str(problem)
            raise ActuatorError(f"{self._name} does not answer ({reason}); is it started?") from problem

    def request(self, message: dict[str, Any], seconds: float = REPLY_TIMEOUT_S) -> dict[str, Any]:
        """The reply. Raises `ActuatorError` for a refusal, and `ConnectionEnded` with the daemon's reason
        where it has ended the connection."""
        try:
            with suppress(ConnectionEnded):  # The daemon may have written why it closed.
                self._channel.send(message)
            reply = self._channel.receive(seconds)
        except PeerSilent as silence:
            raise PeerSilent(f"{self._name}: {silence}") from silence
        except (ConnectionEnded, InvalidInput) as end:
            raise ConnectionEnded(f"{self._name}: {end}") from end
        if "ended" in reply:
            raise ConnectionEnded(f"{self._name}: {reply['ended']}")
        if reply.get("ok") is not True:
            refusal = reply.get("refused", "unknown reply; is it another version of ekc?")
            raise ActuatorError(f"{self._name}: {refusal}")
        return reply

    def close(self) -> None:
        """Close the connection, which ends a lease."""
        self._socket.close()


class DaemonLease:
    """The lease of some GPUs at one daemon; it can be taken again after the daemon has ended it."""

    def __init__(self, gpus: Sequence[DaemonLimits], on_message: Callable[[str], None]) -> None:
        self._gpus = tuple(gpus)
        self._on_message = on_message
        self._lock = threading.Lock()
        """The control loop and the heartbeat both send requests."""
        self._connection: DaemonConnection | None = None
        self.before: dict[str, Settings] = {}
        """By UUID: the settings before the lease, which are bounds."""
        self.lowest: dict[str, Settings] = {}
        """By UUID: the lowest settings that the daemon's allow-list permits."""
        self.taken: dict[str, frozenset[Limit]] = {gpu.reference.gpu: frozenset() for gpu in gpus}
        """By UUID: limits that others have set since the first lease; they are theirs."""

    def take(self) -> None:
        """Take the lease, unless it is held. Raises `ActuatorError`."""
        with self._lock:
            if self._connection is not None:
                return
            connection = DaemonConnection(self._gpus[0].reference.address)
            try:
                gpus = [gpu.reference.gpu for gpu in self._gpus]
                reply = connection.request({"do": "lease", "gpus": gpus}, LEASE_TIMEOUT_S)
                self.before = {gpu: Settings(**reply["gpus"][gpu]["before"]) for gpu in gpus}
                self.lowest = {gpu: Settings(**reply["gpus"][gpu]["lowest"]) for gpu in gpus}
            except (EkcError, KeyError, TypeError) as problem:
                connection.close()
                if isinstance(problem, ActuatorError):
                    raise
                raise ActuatorError(f"{problem}") from problem
            self._connection = connection

    def is_held(self) -> bool:
        """Ask the daemon whether the lease is still held; the question is also the sign of life."""
        return self._request_if_held({"do": "beat"})

    def set(self, gpu: str, settings: Settings) -> bool:
        """Set all limits of one GPU; False where the lease is over. Raises `DriverTrouble` where the daemon
        refuses: it may do it later."""
        try:
            return self._request_if_held({"do": "set", "gpu": gpu, "settings": asdict(settings)})
        except ActuatorError as refusal:
            raise DriverTrouble(str(refusal)) from refusal

    def _request_if_held(self, message: dict[str, Any]) -> bool:
        """Send a request; False where the lease is over, which `on_message` gets once."""
        with self._lock:
            try:
                self._request(message)
            except ConnectionEnded as end:
                self._on_message(f"{end}; the lease is over, and is taken again")
            return self._connection is not None

    def end(self) -> None:
        """Put the settings back and end the lease; returns when that is done. Raises `ActuatorError`."""
        with self._lock:
            try:
                self._request({"do": "end"})
            except PeerSilent as silence:
                raise ActuatorError(str(silence)) from silence
            except ConnectionEnded:
                pass  # The daemon or its guards have put them back.
            finally:
                self.close()

    def close(self) -> None:
        """Close the connection without a message, also in a forked child."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _request(self, message: dict[str, Any]) -> None:
        """Send a request where the lease is held. Raises `ConnectionEnded` once where it has ended."""
        if self._connection is None:
            return
        try:
            taken = self._connection.request(message).get("taken", {})
        except ConnectionEnded:
            self.close()
            raise
        for gpu, limits in taken.items():
            self.taken[gpu] |= {limit for limit in LIMITS if limit in limits}


RENEW_TIMEOUT_S = 10.0
"""Seconds for a lease to be taken again before a setting counts as failed: the daemon may be restarted, or
another job of a batch system may just have been suspended."""
RENEW_INTERVAL_S = 0.25


class DaemonActuator(GovernedLimits):
    """Sets one GPU through the daemon, which keeps lease file and guard. None means "as before"; limits are
    at most what was set before, and at least what the daemon's allow-list permits."""

    restored = None
    """The daemon restores what an earlier governor left, and logs it."""

    def __init__(
        self, limits: DaemonLimits, daemon_lease: DaemonLease, renew_lease: Callable[[], None]
    ) -> None:
        super().__init__(limits, renew_lease)
        self._daemon_lease = daemon_lease
        self._gpu = limits.reference.gpu
        self.lease = Lease("", limits.reference, limits.label, self._before, (), os.getpid(), read_boot_id())

    @property
    def _before(self) -> Settings:
        return self._daemon_lease.before[self._gpu]

    def list_offered(self) -> OfferedSettings:
        """Values that can be set, from the lowest permitted ones up to the limits before the lease; none once
        others have set a clock."""
        lowest = self._daemon_lease.lowest[self._gpu]
        return select_offered(self._limit_setter.list_offered(), lowest, self._before, self.taken_limits())

    def taken_limits(self) -> frozenset[Limit]:
        """Limits that others have set, as the daemon has noticed; they are theirs."""
        return self._daemon_lease.taken[self._gpu]

    def apply(self, settings: Settings) -> None:
        """Set all limits; where the lease was lost, take it again first. Raises `ActuatorError`, and
        `LimitTaken` for a limit that others have set."""
        end_s = time.monotonic() + RENEW_TIMEOUT_S
        while not self._set(settings):
            try:
                self._renew_lease()
            except ActuatorError as problem:
                if time.monotonic() > end_s:
                    raise DriverTrouble(str(problem)) from problem
                time.sleep(RENEW_INTERVAL_S)
        taken = [LIMIT_NAMES[x] for x in self.taken_limits() if getattr(settings, x) is not None]
        if taken:
            raise LimitTaken(f"{self.label}: {', '.join(taken)}: set by others, so it is not set any more")

    def reapply(self) -> None:
        """Set the limits requested last once more; a request by another thread meanwhile wins. Raises
        `DriverTrouble`."""
        if not self._set():
            raise DriverTrouble(f"{self.label}: the lease is over")

    def _set(self, settings: Settings | None = None) -> bool:
        """Set new limits, or once more those requested last; False where the lease is over."""
        with self._lock:
            self._requested_settings = self._requested_settings if settings is None else settings
            return self._daemon_lease.set(self._gpu, self._bound_settings(self._requested_settings))

    def find_loss(self) -> str | None:
        """Why the lease is no longer held; None where it is."""
        return None if self._daemon_lease.is_held() else "its connection to the daemon ended"

    def retake(self) -> None:
        """Take the lease again."""
        self._daemon_lease.take()

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Put the settings back and end the lease during a `with` block, in which nothing is set. Raises
        `ActuatorError`."""
        with self._lock:
            self._daemon_lease.end()
            yield

    def close_queries(self) -> None:
        """No effect: the daemon answers who governs the GPU."""

    def watch(self) -> None:
        """No effect: the daemon looks for limits that others set."""

    def touch(self) -> None:
        """No effect: the daemon has the lease file."""

    def end(self) -> None:
        """Put the settings back and end the lease. Raises `ActuatorError`."""
        self._daemon_lease.end()

    def detach(self) -> None:
        """In a forked child: the lease belongs to the parent and ends with it."""
        self._daemon_lease.close()

    def _bound_settings(self, settings: Settings) -> Settings:
        values: dict[str, Any] = {limit: getattr(settings, limit) for limit in LIMITS}
        for limit, value in values.items():
            highest = getattr(self._before, limit)
            if limit in self.taken_limits():
                values[limit] = None
            elif value is not None and highest is not None:
                values[limit] = min(value, highest)
        return Settings(**values)


def lease_from_daemon(
    gpus: Sequence[DaemonLimits],
    previous_settings: Settings,
    renew_lease: Callable[[], None],
    on_message: Callable[[str], None],
) -> list[DaemonActuator]:
    """Lease GPUs from their daemon, all with one connection. Raises `ActuatorError`, also for previous
    settings that the daemon does not know: it would put back others."""
    if not gpus:
        return []
    lease = DaemonLease(gpus, on_message)
    lease.take()
    for gpu in gpus:
        for limit in LIMITS:
            given, known = getattr(previous_settings, limit), getattr(lease.before[gpu.reference.gpu], limit)
            if given not in (None, known):
                lease.end()
                raise ActuatorError(
                    f"{gpu.label}: {limit} before is {given} here, and {known} for the daemon, which puts "
                    "the settings back; name it under [[before]] in its allow-list"
                )
    return [DaemonActuator(gpu, lease, renew_lease) for gpu in gpus]
