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
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ekc.devices.clocks.limits import LIMITS, ActuatorReference, Limit, Settings
from ekc.errors import ActuatorError, InvalidInput, RecordError

LEASE_VERSION = 1
GUARD_READY = b"ready\n"
"""Line that a guard prints when it watches."""
MAX_LIMIT = 1_000_000
"""Clocks in MHz and caps in watts of a lease are below this."""
_GPU_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
"""UUID of a GPU, which is also the name of its lease file."""
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
    in_force: Settings = field(default_factory=Settings)
    """Limits that the governor requested last, None for those that are as before."""
    possible_caps_w: tuple[float, ...] | None = None
    """Power caps in watts that may be in force because of this lease; None where that is not known."""

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
    """Folder of this user's lease files: EKC_RUN_DIR, /run/ekc for root, or a folder under /tmp. Raises
    `InvalidInput` for one that cannot be trusted."""
    chosen = os.environ.get("EKC_RUN_DIR")
    mine = Path(chosen) if chosen else make_default_folder(os.geteuid())
    try:
        # Others may read what is leased: they can say who must restore it.
        mine.mkdir(mode=0o755, parents=True, exist_ok=True)
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


def make_default_folder(uid: int) -> Path:
    """Folder of the leases of a user who has not set EKC_RUN_DIR."""
    return Path("/tmp") / f"ekc-{uid}" if uid else Path("/run/ekc")


def make_lease_path(gpu: str) -> Path:
    """Path of the lease file of a GPU, whether it exists or not."""
    return find_lease_folder() / f"{gpu}.json"


def read_lease(file: Path) -> Lease | None:
    """The lease in a file of this user; None where there is no file. Raises `RecordError` for a file that is
    no lease."""
    try:
        return parse_lease(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise RecordError(f"{file} is no lease ({problem}); delete it and reset the GPU by hand") from problem


def parse_lease(text: bytes) -> Lease:
    """The lease in the text of a file. Raises `ValueError` for any other text, whoever wrote it."""
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
        if found["version"] != LEASE_VERSION:
            raise ValueError("another version of ekc wrote it: restore with that one")
        caps = found.get("possible_caps_w")
        lease = Lease(
            id=str(found["id"]),
            reference=ActuatorReference(**found["reference"]),
            label=str(found["label"]),
            previous=_parse_settings(found["previous"]),
            touched=tuple(limit for limit in LIMITS if limit in found["touched"]),
            governor=int(found["governor"]),
            boot=str(found.get("boot", "")),
            in_force=_parse_settings(found.get("in_force", {})),
            possible_caps_w=None if caps is None else tuple(float(cap) for cap in caps),
        )
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as problem:
        raise ValueError(f"{type(problem).__name__}: {problem}") from problem
    reference = lease.reference
    if not all(isinstance(x, str) for x in (reference.kind, reference.gpu, reference.address)):
        raise ValueError("its reference is not text")
    if not _GPU_NAME.fullmatch(reference.gpu):
        raise ValueError("it names no GPU")
    return lease


def _parse_settings(found: dict[str, Any]) -> Settings:
    values = {limit: found.get(limit) for limit in LIMITS}
    for limit, value in values.items():
        kinds = (int, float) if limit == "power_w" else (int,)
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value < MAX_LIMIT):
            raise ValueError(f"{limit} is no limit")
    return Settings(**values)


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no limit")


def write_lease(lease: Lease) -> None:
    """Write a lease file, completely or not at all even when the process is killed. Raises `RecordError`."""
    file = make_lease_path(lease.reference.gpu)
    content: dict[str, Any] = {"version": LEASE_VERSION} | asdict(lease)
    try:
        replace_file(file, json.dumps(content))
    except OSError as problem:
        raise RecordError(f"cannot write the lease {file} ({problem.strerror}); nothing was set") from problem


def replace_file(file: Path, text: str) -> None:
    """Write a file that all may read, completely or not at all. Raises `OSError`."""
    fresh = file.with_suffix(f".{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o644)
    fresh.replace(file)


def touch_lease(gpu: str) -> None:
    """Note in the lease file that its governor runs, as its time of change; nothing where it has ended."""
    with contextlib.suppress(OSError):
        os.utime(make_lease_path(gpu))


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


class GovernorLock:
    """The right to govern a GPU until `close`. Raises `ActuatorError` where another process governs it."""

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
        """Close the connections of processes that asked: that answered them; open ones fill the queue."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.accept()[0].close()

    def close(self) -> None:
        """Release the GPU for another governor."""
        self._socket.close()


@dataclass(frozen=True)
class GovernorProcess:
    """The process that holds the lock of a GPU."""

    pid: int
    """0 where it is not known."""
    uid: int


def find_governor(gpu: str) -> GovernorProcess | None:
    """The governor of a GPU; None where there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(_make_socket_name(gpu))
        except BlockingIOError:
            return GovernorProcess(0, 0)  # The queue is full: there is a governor.
        except OSError:
            return None
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", credentials)
        return GovernorProcess(pid, uid)


def find_governor_pid(gpu: str) -> int | None:
    """Process id of the governor of a GPU; None where there is none."""
    governor = find_governor(gpu)
    return None if governor is None else governor.pid


def _make_socket_name(gpu: str) -> str:
    return f"\0ekc-governor-{gpu}"
