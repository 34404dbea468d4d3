"""The lease file of a GPU: settings before the lease, and limits that the governor may have changed since.

A lock allows one governor per GPU. It is a Unix socket in the abstract namespace: no file stays behind, the
kernel removes it with the process, and it reports the process that holds it. Containers with a network
namespace of their own do not see each other's locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ekc.devices.clocks.limits import LIMITS, ActuatorReference, Limit, Settings
from ekc.errors import ActuatorError, InvalidInput, RecordError

LEASE_VERSION = 1
GUARD_READY = b"ready\n"
"""Line that a guard prints when it watches."""
LOCK_TIMEOUT_S = 0.5
"""Seconds to wait for a lease file's lock. A process that holds it longer was stopped; restoring goes on."""


@dataclass(frozen=True)
class Lease:
    """Lease of one GPU. Only the limits in `touched`, which may differ from `previous`, are restored."""

    id: str
    """Identifier of this lease, so that a later lease of the same GPU is not ended by mistake."""
    reference: ActuatorReference
    label: str
    previous: Settings
    touched: tuple[Limit, ...]
    governor: int
    """Process id of the governor."""
    boot: str = ""
    """Boot id of the machine when the lease began; a reboot resets all limits of GPUs."""

    @property
    def predates_boot(self) -> bool:
        """Whether the machine was restarted since: nothing is to be restored then."""
        return bool(self.boot) and self.boot != read_boot_id()


def read_boot_id() -> str:
    """Boot id of the machine, which changes with each start; empty where the kernel does not report it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def find_lease_folder() -> Path:
    """Folder of lease files: EKC_RUN_DIR, /run/ekc for root, or a folder of this user under /tmp. Raises
    `InvalidInput` for one that cannot be trusted."""
    chosen = os.environ.get("EKC_RUN_DIR")
    mine = Path(chosen) if chosen else Path("/run/ekc" if os.geteuid() == 0 else f"/tmp/ekc-{os.geteuid()}")
    try:
        mine.mkdir(mode=0o755 if chosen or os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        found = mine.lstat()
    except OSError as problem:
        raise InvalidInput(
            f"cannot keep leases in {mine} ({problem.strerror}); set EKC_RUN_DIR to a folder of yours"
        ) from problem
    if found.st_uid != os.geteuid() or found.st_mode & 0o022 or mine.is_symlink():
        raise InvalidInput(
            f"{mine} is not safe for leases (not ours, or others may write); set EKC_RUN_DIR to one that is"
        )
    return mine


def make_lease_path(gpu: str) -> Path:
    """Path of the lease file of a GPU, whether it exists or not."""
    return find_lease_folder() / f"{gpu}.json"


def read_lease(file: Path) -> Lease | None:
    """The lease in a file; None where there is no file. Raises `RecordError` for a file that is no lease."""
    try:
        found = json.loads(file.read_text())
        if found.pop("version") != LEASE_VERSION:
            raise RecordError(f"{file}: another version of ekc wrote this lease; restore with that one")
        return Lease(
            id=str(found["id"]),
            reference=ActuatorReference(**found["reference"]),
            label=str(found["label"]),
            previous=Settings(**found["previous"]),
            touched=tuple(limit for limit in LIMITS if limit in found["touched"]),
            governor=int(found["governor"]),
            boot=str(found.get("boot", "")),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise RecordError(f"{file} is no lease ({problem}); delete it and reset the GPU by hand") from problem


def write_lease(lease: Lease) -> None:
    """Write a lease file, completely or not at all even when the process is killed. Raises `RecordError`."""
    file = make_lease_path(lease.reference.gpu)
    fresh = file.with_suffix(f".{os.getpid()}")
    content: dict[str, Any] = {"version": LEASE_VERSION} | asdict(lease)
    try:
        fresh.write_text(json.dumps(content))
        fresh.replace(file)
    except OSError as problem:
        raise RecordError(f"cannot write the lease {file} ({problem.strerror}); nothing was set") from problem


def erase_lease(gpu: str) -> None:
    """Delete the lease file of a GPU."""
    make_lease_path(gpu).unlink(missing_ok=True)


@contextmanager
def lock_lease(gpu: str) -> Iterator[None]:
    """Lock by which one process at a time changes a GPU and its lease; ignored after `LOCK_TIMEOUT_S`. Raises
    `RecordError` where no lock file can be made."""
    file = make_lease_path(gpu).with_suffix(".lock")
    try:
        descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    except OSError as problem:
        raise RecordError(f"cannot open the lock {file} ({problem.strerror})") from problem
    try:
        _wait_for_lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def _wait_for_lock(descriptor: int) -> None:
    latest = time.monotonic() + LOCK_TIMEOUT_S
    while time.monotonic() < latest:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.01)


class GovernedElsewhereError(ActuatorError):
    """Another process governs the GPU `gpu`."""

    def __init__(self, gpu: str, label: str, pid: int | None) -> None:
        super().__init__(f"{label} is governed by process {pid} already; one GPU has one governor")
        self.gpu = gpu


class GovernorLock:
    """The right to govern a GPU until `close`. Raises `GovernedElsewhereError` where another process does."""

    def __init__(self, gpu: str, label: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(_make_socket_name(gpu))
            self._socket.listen(socket.SOMAXCONN)
            self._socket.setblocking(False)
        except OSError as problem:
            self._socket.close()
            raise GovernedElsewhereError(gpu, label, find_governor_pid(gpu)) from problem

    def close_queries(self) -> None:
        """Close the connections of processes that asked: that answered them; open ones fill the queue."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.accept()[0].close()

    def close(self) -> None:
        """Release the GPU for another governor."""
        self._socket.close()


def find_governor_pid(gpu: str) -> int | None:
    """Process id of the governor of a GPU; None where there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(_make_socket_name(gpu))
        except BlockingIOError:
            return 0  # The queue is full: there is a governor.
        except OSError:
            return None
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[0])


def _make_socket_name(gpu: str) -> str:
    return f"\0ekc-governor-{gpu}"
