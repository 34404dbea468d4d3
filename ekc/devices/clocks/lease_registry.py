"""The registry of lease folders: by it root finds what killed governors of all users left behind.

Leases are in /run/ekc (root), in /tmp/ekc-UID (any other user) or in the folder EKC_RUN_DIR. The first two
are known. A governor with EKC_RUN_DIR registers its folder before it writes a lease: it writes an entry, a
file that holds the path of the folder, into

- /run/ekc/registry, where root has made it (mode 1777), as any `ekc govern` of root does,
- its own /tmp/ekc-UID, which needs no root.

EKC_REGISTRY_DIR names one folder to use in place of all of these, also for folders that are known.

Whatever belongs to another user is that user's input. Folders are opened without following a link, and their
files by the folder's descriptor. Owner, mode and kind are those of the open file (fstat), so that nothing can
be exchanged between a check and the reading. A lease counts only if it is a regular file of at most 16 KiB
with one link, that belongs to the owner of its folder, and neither may be written to by others. An entry
speaks for its owner alone: the folder that it names must belong to that user. A pipe or a device is not
opened. Nothing of the text of a lease is printed: a terminal would obey it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ekc.devices.clocks.lease_file import Lease, find_lease_folder, make_default_folder, parse_lease
from ekc.errors import RecordError

MACHINE_REGISTRY = Path("/run/ekc/registry")
MAX_LEASE_BYTES = 16 << 10
MAX_PATH_BYTES = 4096
MAX_FOLDERS_PER_USER = 64
"""Entries of one user that are read from a registry, and leases in a folder; a user can make any number."""
ENTRY_PREFIX = "folder-"
_DEFAULT_FOLDER = re.compile(r"ekc-([1-9][0-9]{0,9})")
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Distrusted(Exception):
    """A file or folder that may not be used; the text says why."""


@dataclass(frozen=True)
class LeaseFolder:
    """A folder that may hold leases of one user."""

    path: Path
    owner: int
    """User id to which the folder and its leases must belong."""


@dataclass(frozen=True)
class FoundLease:
    """A lease file, or the reason why a file, an entry or a folder is not used."""

    folder: LeaseFolder
    gpu: str
    """UUID of the GPU; empty where the finding is no lease file."""
    lease: Lease | None = None
    problem: str = ""
    changed_s: float = 0.0
    """Unix time of the last heartbeat or change."""

    @property
    def is_own(self) -> bool:
        """Whether the lease belongs to the user of this process."""
        return self.folder.owner == os.geteuid()

    @property
    def label(self) -> str:
        """Where it was found, for people, without control characters."""
        place = self.folder.path / f"{self.gpu}.json" if self.gpu else self.folder.path
        return f"{_make_printable(str(place))} of user {self.folder.owner}"


def register_lease_folder() -> None:
    """Register the folder of this user's leases, unless it is one that is known. Raises `RecordError` where
    it cannot be registered anywhere: root would not find leases in it."""
    folder = find_lease_folder().absolute()
    uid = os.geteuid()
    chosen = os.environ.get("EKC_REGISTRY_DIR")
    if not chosen and uid == 0:
        _make_machine_registry()
    if not chosen and folder == make_default_folder(uid):
        return
    registries = [Path(chosen)] if chosen else [MACHINE_REGISTRY]
    if not chosen and uid:
        registries.append(make_default_folder(uid))
        with contextlib.suppress(OSError):
            registries[-1].mkdir(mode=0o755)
    if b"\n" in os.fsencode(folder):
        raise RecordError(f"cannot register {folder!r}: its path has a line break; set another")
    problems = []
    for registry in registries:
        try:
            with _open_registry(registry) as descriptor:
                _write_entry(registry, descriptor, os.fsencode(folder) + b"\n")
        except (OSError, Distrusted) as problem:
            problems.append(f"{registry}: {getattr(problem, 'strerror', None) or problem}")
    if len(problems) == len(registries):
        raise RecordError(
            f"cannot register {folder}, so root would not find its leases ({'; '.join(problems)})"
        )


def find_leases(gpu: str | None = None) -> list[FoundLease]:
    """Leases of all users, of one GPU or of all, the latest first; in between what was refused, with the
    reason. Another user's folder that this user may not read is left out."""
    found: list[FoundLease] = []
    refused: list[FoundLease] = []
    for folder in _list_folders(refused):
        found += _read_folder(folder, gpu)
    found += refused if gpu is None else []
    return sorted(found, key=lambda one: -one.changed_s)


def erase_found_lease(found: FoundLease) -> None:
    """Delete a lease file, wherever it was found. Raises `RecordError`."""
    try:
        with _open_folder(found.folder) as descriptor:
            os.unlink(f"{found.gpu}.json", dir_fd=descriptor)
    except FileNotFoundError:
        return
    except (OSError, Distrusted) as problem:
        raise RecordError(f"cannot delete {found.label} ({problem})") from problem


def _make_machine_registry() -> None:
    """Make the registry that all users may write to; as root: no other user can have made it."""
    make_default_folder(0).mkdir(mode=0o755, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        MACHINE_REGISTRY.mkdir()
        MACHINE_REGISTRY.chmod(0o1777)


@contextmanager
def _open_registry(path: Path) -> Iterator[int]:
    """Descriptor of a registry in which root alone deletes entries of others."""
    descriptor = os.open(path, _FOLDER_FLAGS)
    try:
        now = os.fstat(descriptor)
        if now.st_uid not in (0, os.geteuid()):
            raise Distrusted(f"it belongs to user {now.st_uid}")
        if now.st_mode & 0o022 and not now.st_mode & stat.S_ISVTX:
            raise Distrusted("others may delete from it: its mode lacks the sticky bit (chmod 1777)")
        yield descriptor
    finally:
        os.close(descriptor)


def _write_entry(registry: Path, descriptor: int, text: bytes) -> None:
    """Write an entry, or renew the one that there is; entries of ours for folders that are gone are deleted.
    Names are random, because anybody could have taken one that is known before."""
    mine: list[tuple[float, str]] = []
    for name in _list_names(descriptor, ENTRY_PREFIX):
        with contextlib.suppress(OSError, Distrusted):
            content, now = _read_file(name, descriptor, MAX_PATH_BYTES)
            if now.st_uid != os.geteuid():
                continue
            if content == text:
                os.utime(name, dir_fd=descriptor)
                return
            if os.path.isdir(content.rstrip(b"\n")):
                mine.append((now.st_mtime, name))
            else:
                os.unlink(name, dir_fd=descriptor)
    for _, name in sorted(mine)[: max(0, len(mine) - MAX_FOLDERS_PER_USER + 1)]:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=descriptor)
    file, path = tempfile.mkstemp(prefix=ENTRY_PREFIX, dir=registry)
    try:
        os.fchmod(file, 0o644)
        os.write(file, text)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(file)


def _list_folders(refused: list[FoundLease]) -> list[LeaseFolder]:
    """Folders that may hold leases, those of this user first; what is not used is added to `refused`."""
    uid = os.geteuid()
    folders = [LeaseFolder(find_lease_folder().absolute(), uid)]
    chosen = os.environ.get("EKC_REGISTRY_DIR")
    if chosen:
        folders += _read_registry(Path(chosen), None, refused)
        return list(dict.fromkeys(folders))
    if uid == 0:
        _make_machine_registry()
    folders += [LeaseFolder(make_default_folder(x), x) for x in (uid, 0)]
    folders += _read_registry(MACHINE_REGISTRY, None, refused)
    others = [int(x[1]) for x in map(_DEFAULT_FOLDER.fullmatch, os.listdir("/tmp")) if x]
    for other in others:
        folders.append(LeaseFolder(make_default_folder(other), other))
    for folder in [x for x in folders if x.owner and x.path == make_default_folder(x.owner)]:
        folders += _read_registry(folder.path, folder.owner, refused)
    return list(dict.fromkeys(folders))


def _read_registry(path: Path, owner: int | None, refused: list[FoundLease]) -> list[LeaseFolder]:
    """Folders that the entries of a registry name; `owner`: whose entries count, None for everyone's."""
    place = LeaseFolder(path, os.geteuid() if owner is None else owner)
    folders: list[LeaseFolder] = []
    counts: dict[int, int] = {}
    """Entries by owner: one user's must not keep those of another from being read."""
    try:
        with _open_folder(place) if owner is not None else _open_registry(path) as descriptor:
            for name in _list_names(descriptor, ENTRY_PREFIX):
                writer = place.owner
                try:
                    writer = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_uid
                    counts[writer] = counts.get(writer, 0) + 1
                    if counts[writer] <= MAX_FOLDERS_PER_USER:
                        content, now = _read_file(name, descriptor, MAX_PATH_BYTES)
                        folders += _parse_entry(content, now.st_uid, owner)
                except (OSError, Distrusted) as problem:
                    _add_refused(refused, LeaseFolder(path / name, writer), problem)
    except (OSError, Distrusted) as problem:
        _add_refused(refused, place, problem)
    for writer in [x for x, count in counts.items() if count > MAX_FOLDERS_PER_USER]:
        excess = Distrusted(f"more than {MAX_FOLDERS_PER_USER} entries; delete those that are not needed")
        _add_refused(refused, LeaseFolder(path, writer), excess)
    return folders


def _parse_entry(content: bytes, writer: int, owner: int | None) -> list[LeaseFolder]:
    if not content:
        return []  # Its governor was killed before it wrote the path, and has set nothing.
    if owner not in (None, writer):
        raise Distrusted(f"it belongs to user {writer}")
    path = content.removesuffix(b"\n")
    if not path.startswith(b"/") or b"\0" in path or b"\n" in path:
        raise Distrusted("it is no entry of a lease folder")
    return [LeaseFolder(Path(os.fsdecode(path)), writer)]


def _read_folder(folder: LeaseFolder, gpu: str | None) -> list[FoundLease]:
    """Leases of a folder, of one GPU or of all."""
    found: list[FoundLease] = []
    try:
        with _open_folder(folder) as descriptor:
            names = [f"{gpu}.json"] if gpu is not None else _list_names(descriptor, "", ".json")
            if len(names) > MAX_FOLDERS_PER_USER:
                raise Distrusted(f"it holds {len(names)} leases; there are no so many GPUs")
            found = [x for name in names if (x := _read_lease(name, descriptor, folder)) is not None]
    except (OSError, Distrusted) as problem:
        if gpu is None:
            _add_refused(found, folder, problem)
    return found


def _read_lease(name: str, descriptor: int, folder: LeaseFolder) -> FoundLease | None:
    """The lease in a file of an open folder; None where there is no file."""
    gpu, changed_s = name.removesuffix(".json"), time.time()
    try:
        content, now = _read_file(name, descriptor, MAX_LEASE_BYTES)
        changed_s = now.st_mtime
        if now.st_uid != folder.owner:
            raise Distrusted(f"it belongs to user {now.st_uid}")
        if now.st_mode & 0o022:
            raise Distrusted("others may write to it")
        if now.st_nlink != 1:
            raise Distrusted(f"it has {now.st_nlink} links")
        lease = parse_lease(content)
        if lease.reference.gpu != gpu:
            raise Distrusted("it is the lease of another GPU")
        return FoundLease(folder, gpu, lease, changed_s=changed_s)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, Distrusted) as problem:
        if folder.owner == os.geteuid():
            remedy = "delete it and reset the GPU by hand"
        else:
            remedy = "nothing is put back from it"
        # The text of a `ValueError` may hold parts of the file.
        reason = _describe(problem) if not isinstance(problem, ValueError) else "it is no lease"
        return FoundLease(folder, gpu, problem=f"{reason}; {remedy}", changed_s=changed_s)


@contextmanager
def _open_folder(folder: LeaseFolder) -> Iterator[int]:
    """Descriptor of a folder that belongs to its owner, who alone may write to it."""
    descriptor = os.open(folder.path, _FOLDER_FLAGS)
    try:
        now = os.fstat(descriptor)
        if now.st_uid != folder.owner:
            raise Distrusted(f"the folder belongs to user {now.st_uid}")
        if now.st_mode & 0o022:
            raise Distrusted("others may write to the folder")
        yield descriptor
    finally:
        os.close(descriptor)


def _list_names(descriptor: int, prefix: str, suffix: str = "") -> list[str]:
    """Names in an open folder, sorted."""
    return sorted(x for x in os.listdir(descriptor) if x.startswith(prefix) and x.endswith(suffix))


def _read_file(name: str, descriptor: int, max_bytes: int) -> tuple[bytes, os.stat_result]:
    """(content, state) of a regular file in an open folder; both are of the same file."""
    # A device may act when it is opened, so it is not.
    if not stat.S_ISREG(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
        raise Distrusted("it is no regular file")
    file = os.open(name, _FILE_FLAGS, dir_fd=descriptor)
    try:
        now = os.fstat(file)
        if not stat.S_ISREG(now.st_mode):
            raise Distrusted("it is no regular file")
        content = os.read(file, max_bytes + 1)
    finally:
        os.close(file)
    if len(content) > max_bytes:
        raise Distrusted(f"it is larger than {max_bytes} bytes")
    return content, now


def _add_refused(refused: list[FoundLease], place: LeaseFolder, problem: Exception) -> None:
    """Add what was not used, unless it does not exist, or is another's and this user may not read it."""
    code = getattr(problem, "errno", None)
    is_hidden = code in (errno.EACCES, errno.EPERM) and os.geteuid() != 0
    if code != errno.ENOENT and not is_hidden:
        refused.append(FoundLease(place, "", problem=f"{_describe(problem)}; not looked into"))


def _describe(problem: Exception) -> str:
    if getattr(problem, "errno", None) == errno.ELOOP:
        return "it is a symbolic link"
    return getattr(problem, "strerror", None) or str(problem)


def _make_printable(text: str) -> str:
    return "".join(x if x.isprintable() else "?" for x in text)[:200]
