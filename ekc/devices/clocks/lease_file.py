"""The lease file of a GPU: settings before the lease, and limits that the governor may have changed since.

Two locks allow one governor per GPU. A lock file in the user's own folder, which no other user can open,
keeps out other governors of that user. A UNIX socket in the abstract namespace shows the governor to all
users: the kernel reports the process that holds it. Any process can take that name, so a holder that is
neither root nor the user who asks is ignored. Containers with a network namespace of their own do not see
each other's sockets.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ekc.devices.clocks.limits import LIMITS, ActuatorReference, Limit, Settings, parse_settings
from ekc.errors import ActuatorError, InvalidInput, RecordError
from ekc.processes.process_facts import describe_user, read_caller, read_user_id

LEASE_VERSION = 1
GUARD_READY = b"ready\n"
"""Line that a guard prints when it watches."""
_GPU_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
"""UUID of a GPU, which is also the name of its lease file."""
MAX_LEASE_BYTES = 16 << 10
LOCK_TIMEOUT_S = 0.5
"""Seconds to wait for a lease file's lock. A process that holds it longer was stopped; restoring goes on."""
ANSWER_TIMEOUT_S = 2.0
"""Seconds to wait for a governor to answer."""
GOVERNOR_LOCK_TIMEOUT_S = 1.0
"""Seconds to wait for a process that holds a GPU for a moment, while it restores settings."""


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


def prepare_lease_folder() -> Path:
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
    owner = "" if found.st_uid == os.geteuid() else f" of {describe_user(found.st_uid)}"
    if owner or found.st_mode & 0o022 or not stat.S_ISDIR(found.st_mode):
        raise InvalidInput(
            f"{mine}{owner} is not safe for leases: it must be a folder of yours that others may not write "
            "to; set EKC_RUN_DIR to one"
        )
    return mine


def make_default_folder(uid: int) -> Path:
    """Folder of the leases of a user who has not set EKC_RUN_DIR."""
    return Path("/tmp") / f"ekc-{uid}" if uid else Path("/run/ekc")


def make_lease_path(gpu: str) -> Path:
    """Path of the lease file of a GPU, whether it exists or not."""
    return prepare_lease_folder() / f"{gpu}.json"


def read_lease(file: Path) -> Lease | None:
    """The lease in a file of this user; None where there is no file. Raises `RecordError` for a file that is
    no lease, and for one that another user could have written."""
    try:
        lease = parse_lease(_read_own_file(file))
        if lease.reference.gpu != file.stem:
            raise ValueError("it is the lease of another GPU")
        return lease
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise RecordError(
            f"{file} is no lease ({reason}); delete it and reset the GPU by hand (nvidia-smi -i {file.stem} "
            "with -rgc, -rmc and -pl WATTS)"
        ) from problem


def _read_own_file(file: Path) -> bytes:
    """Content of a regular file that belongs to this user alone. Raises `OSError` and `ValueError`."""
    # A pipe would block, and a device may act when it is opened.
    if not stat.S_ISREG(file.lstat().st_mode):
        raise ValueError("it is no regular file")
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as opened:
        now = os.fstat(descriptor)
        if now.st_uid != os.geteuid():
            raise ValueError(f"it belongs to {describe_user(now.st_uid)}")
        if now.st_mode & 0o022:
            raise ValueError("others may write to it")
        if now.st_size > MAX_LEASE_BYTES:
            raise ValueError(f"it has {now.st_size} bytes, at most {MAX_LEASE_BYTES}")
        return opened.read(MAX_LEASE_BYTES)


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
            previous=parse_settings(found["previous"]),
            touched=tuple(limit for limit in LIMITS if limit in found["touched"]),
            governor=int(found["governor"]),
            boot=str(found.get("boot", "")),
            in_force=parse_settings(found.get("in_force", {})),
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


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no limit")


def format_lease(lease: Lease) -> str:
    """The text of a lease file, without a line break."""
    return json.dumps({"version": LEASE_VERSION} | asdict(lease))


def write_lease(lease: Lease) -> None:
    """Write a lease file, completely or not at all even when the process is killed. Raises `RecordError`."""
    name = f"{lease.reference.gpu}.json"
    try:
        file = prepare_lease_folder() / name
        descriptor, fresh = tempfile.mkstemp(prefix=f"{file.stem}.", dir=file.parent)
        try:
            with open(descriptor, "w", encoding="utf-8") as opened:
                opened.write(format_lease(lease))
                os.fchmod(descriptor, 0o644)
            _move_folder_aside(file)
            os.replace(fresh, file)
        except OSError:
            os.unlink(fresh)
            raise
    except (OSError, InvalidInput) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise RecordError(f"cannot write the lease {name} ({reason}); nothing was set") from problem


def _move_folder_aside(file: Path) -> None:
    """Rename a folder that has the name of a lease file; what it holds is kept. Raises `OSError`."""
    if file.is_dir() and not file.is_symlink():
        file.rename(f"{file}.{uuid.uuid4().hex[:8]}")


def touch_lease(gpu: str) -> None:
    """Note in the lease file that its governor runs, as its time of change; nothing where it has ended."""
    with contextlib.suppress(OSError, InvalidInput):
        os.utime(make_lease_path(gpu), follow_symlinks=False)


def erase_lease(gpu: str) -> None:
    """Delete the lease file of a GPU, once its settings are back. Raises `RecordError`."""
    try:
        file = make_lease_path(gpu)
        _move_folder_aside(file)
        file.unlink(missing_ok=True)
    except (OSError, InvalidInput) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise RecordError(
            f"the settings are back, but the lease {gpu}.json cannot be deleted ({reason}); delete it"
        ) from problem


@contextmanager
def lock_lease(gpu: str) -> Iterator[None]:
    """Lock by which one process at a time changes a GPU and its lease. Nothing waits longer than
    `LOCK_TIMEOUT_S`, nor for a lock file that cannot be made: settings must go back in any case."""
    descriptor = _open_lock_file(gpu, ".lock")
    try:
        if descriptor is not None:
            _wait_for_lock(descriptor, LOCK_TIMEOUT_S)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open_lock_file(gpu: str, suffix: str, create: int = os.O_CREAT) -> int | None:
    """Descriptor of a lock file that other users cannot open, since they could lock it; None where there is
    none and it cannot be made."""
    flags = create | os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError, InvalidInput):
        descriptor = os.open(make_lease_path(gpu).with_suffix(suffix), flags, 0o600)
        with contextlib.suppress(OSError):  # A read-only disk; earlier versions let others read it.
            os.fchmod(descriptor, 0o600)
        return descriptor
    return None


def _wait_for_lock(descriptor: int, seconds: float, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file; False where another process holds it for so many seconds."""
    latest = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > latest:
                return False
            time.sleep(0.01)


class GovernedElsewhereError(ActuatorError):
    """Another process governs the GPU `gpu`."""

    def __init__(self, gpu: str, label: str, pid: int | None) -> None:
        name = f"process {pid}" if pid else "another process"
        super().__init__(f"{label} is governed by {name} already; one GPU has one governor")
        self.gpu = gpu


@dataclass(frozen=True)
class GovernorProcess:
    """A process that holds the lock of a GPU."""

    pid: int = 0
    """0 where it is not known."""
    uid: int | None = None
    """None where it is not known: the process does not answer."""

    @property
    def is_entitled(self) -> bool:
        """Whether it may keep this user from governing: a process of root or of the same user."""
        return self.uid in (0, os.geteuid())

    def __str__(self) -> str:
        if self.uid is None:
            return "a process that does not answer"
        return f"process {self.pid} of {describe_user(self.uid)}"


class GovernorLock:
    """The right to govern a GPU until `close`. Raises `GovernedElsewhereError` where another process of this
    user or of root governs it. Where someone else holds the socket, the lock file alone counts."""

    def __init__(self, gpu: str, label: str) -> None:
        self.ignored = ""
        """A line that names a process which holds the socket without the right to it; else empty."""
        self._file = _open_lock_file(gpu, ".governor")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if self._file is not None and not _wait_for_lock(self._file, GOVERNOR_LOCK_TIMEOUT_S):
                raise GovernedElsewhereError(gpu, label, find_governor_pid(gpu))
            self._take_socket(gpu, label)
        except BaseException:
            self.close()
            raise

    def _take_socket(self, gpu: str, label: str) -> None:
        try:
            self._socket.bind(_make_socket_name(gpu))
            self._socket.listen(socket.SOMAXCONN)
        except OSError as problem:
            holder = _find_socket_holder(gpu) or GovernorProcess()
            if holder.is_entitled:
                raise GovernedElsewhereError(gpu, label, holder.pid) from problem
            named = _find_silent_holder(gpu) if holder.uid is None else holder
            self.ignored = f"{label}: {named} holds the socket of its governor; it may not, and is ignored"
            self._socket.close()

    def close_queries(self) -> None:
        """Close the connections of processes that asked: that answered them; open ones fill the queue."""
        with contextlib.suppress(OSError):
            self._socket.setblocking(False)
            while True:
                self._socket.accept()[0].close()

    def close(self) -> None:
        """Release the GPU for another governor."""
        self._socket.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _find_socket_holder(gpu: str) -> GovernorProcess | None:
    """The process that holds the socket of a GPU; None where none listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(_make_socket_name(gpu))
        except BlockingIOError:
            return GovernorProcess()  # The queue is full, by whoever filled it.
        except OSError:
            return None
        return _read_peer(client)


def _read_peer(client: socket.socket) -> GovernorProcess:
    caller = read_caller(client)
    return GovernorProcess(caller.pid, caller.uid)


def does_governor_answer(gpu: str) -> bool:
    """Whether the governor of a GPU closes the connection of a process that asks, as one that runs does twice
    a second. Its lease shows no heartbeat on a read-only disk."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(ANSWER_TIMEOUT_S)
        try:
            client.connect(_make_socket_name(gpu))
            return _read_peer(client).is_entitled and client.recv(1) == b""
        except OSError:
            return False


def _find_silent_holder(gpu: str) -> GovernorProcess:
    """The process that holds the socket of a GPU without an answer, to name it: by its open files, which root
    can see. Any process can pass its open files to another, so this says nothing about rights."""
    name = _make_socket_name(gpu).replace("\0", "@")
    with contextlib.suppress(OSError, IndexError):
        lines = [x.split() for x in Path("/proc/net/unix").read_text().splitlines() if x.endswith(f" {name}")]
        targets = {f"socket:[{x[6]}]" for x in lines}
        for link in Path("/proc").glob("[0-9]*/fd/*") if targets else ():
            with contextlib.suppress(OSError):
                if os.readlink(link) in targets:
                    pid = int(link.parts[2])
                    return GovernorProcess(pid, read_user_id(pid))
    return GovernorProcess()


def find_governor(gpu: str) -> GovernorProcess | None:
    """The governor of a GPU: a process of this user or of root; None where there is none."""
    holder = _find_socket_holder(gpu)
    if holder is not None and holder.is_entitled:
        return holder
    descriptor = _open_lock_file(gpu, ".governor", create=0)
    if descriptor is None:
        return None
    try:
        # Shared, so that two processes that ask do not see each other.
        if _wait_for_lock(descriptor, 0.0, fcntl.LOCK_SH):
            return None
    finally:
        os.close(descriptor)
    with contextlib.suppress(RecordError):
        lease = read_lease(make_lease_path(gpu))
        return GovernorProcess(lease.governor if lease else 0, os.geteuid())
    return GovernorProcess(0, os.geteuid())


def find_governor_pid(gpu: str) -> int | None:
    """Process id of the governor of a GPU; None where there is none."""
    governor = find_governor(gpu)
    return None if governor is None else governor.pid


def _make_socket_name(gpu: str) -> str:
    return f"\0ekc-governor-{gpu}"
