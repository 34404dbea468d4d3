"""The lease file of a GPU: what was in force before, and what the governor may have changed since.

One governor per GPU, whoever runs it.

The lock is a Unix socket in the abstract namespace: no file stays behind, the kernel ends it with the
process however that ends, and it tells who holds it. Containers with a network of their own have a
namespace of their own, and do not see each other.
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
"""What a guard says when it watches."""
LOCK_TIMEOUT_S = 0.5
"""Who holds the lock for longer was stopped in the middle; putting back does not wait for that."""


@dataclass(frozen=True)
class Lease:
    """Of one GPU. `touched` are the limits that may differ from `previous`; nothing else is put back."""

    id: str
    """Differs for every lease, so that nobody ends one that has taken its place."""
    reference: ActuatorReference
    label: str
    previous: Settings
    touched: tuple[Limit, ...]
    governor: int
    """Process id."""
    boot: str = ""
    """Of the machine, from when the lease is; a reboot ends what was set on the GPUs."""

    @property
    def predates_boot(self) -> bool:
        """Whether the machine has been started since: there is nothing to put back."""
        return bool(self.boot) and self.boot != read_boot_id()


def read_boot_id() -> str:
    """Differs after every start of the machine; empty where the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def find_lease_folder() -> Path:
    """Where leases lie: EKC_RUN_DIR, or /run/ekc for root, or a folder of this user's under /tmp.

    Raises `InvalidInput` where the folder cannot be trusted.
    """
    told = os.environ.get("EKC_RUN_DIR")
    mine = Path(told) if told else Path("/run/ekc" if os.geteuid() == 0 else f"/tmp/ekc-{os.geteuid()}")
    try:
        mine.mkdir(mode=0o755 if told or os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
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
    """The lease file of a GPU, there or not."""
    return find_lease_folder() / f"{gpu}.json"


def read_lease(file: Path) -> Lease | None:
    """None where there is none. Raises `RecordError` where it says something else than a lease."""
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
    """Whole or not at all, whenever the process is killed. Raises `RecordError`."""
    file = make_lease_path(lease.reference.gpu)
    fresh = file.with_suffix(f".{os.getpid()}")
    content: dict[str, Any] = {"version": LEASE_VERSION} | asdict(lease)
    try:
        fresh.write_text(json.dumps(content))
        fresh.replace(file)
    except OSError as problem:
        raise RecordError(f"cannot write the lease {file} ({problem.strerror}); nothing was set") from problem


def erase_lease(gpu: str) -> None:
    """The lease is over."""
    make_lease_path(gpu).unlink(missing_ok=True)


@contextmanager
def lock_lease(gpu: str) -> Iterator[None]:
    """One process at a time changes a GPU and its lease; nobody waits longer than `LOCK_S` though.

    Raises `RecordError` where there can be no lock file.
    """
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


class GovernorLock:
    """Held from creation until `close`. Raises `ActuatorError` where another process governs this GPU."""

    def __init__(self, gpu: str, label: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(_make_socket_name(gpu))
            self._socket.listen(socket.SOMAXCONN)
            self._socket.setblocking(False)
        except OSError as problem:
            self._socket.close()
            raise ActuatorError(
                f"{label} is governed by process {find_governor_pid(gpu)} already; one GPU has one governor"
            ) from problem

    def close_queries(self) -> None:
        """Of those who have asked: they know by having connected, and would fill the queue of the next."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.accept()[0].close()

    def close(self) -> None:
        """Let the next one govern."""
        self._socket.close()


def find_governor_pid(gpu: str) -> int | None:
    """Process id of the governor of a GPU, None where there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(_make_socket_name(gpu))
        except BlockingIOError:
            return 0  # Many ask at once; somebody is there.
        except OSError:
            return None
        told = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", told)[0])


def _make_socket_name(gpu: str) -> str:
    return f"\0ekc-governor-{gpu}"
