"""Conditions under which limits must go back: full and read-only disks, damaged leases, held sockets."""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

OTHER_UID = 65534
"""User id without rights."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk or act as two users")
HolderKind = Literal["listens", "is silent", "has a full queue"]
HOLDER_KINDS = get_args(HolderKind)


@contextmanager
def mount_small_disk(folder: Path) -> Iterator[None]:
    """A disk of 64 KiB and 32 files at a folder, which root alone can mount."""
    folder.mkdir(exist_ok=True)
    options = "size=64k,nr_inodes=32,mode=755"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "ekc-test", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def can_mount() -> bool:
    """Whether a disk can be mounted here."""
    test = ["unshare", "-m", "mount", "-t", "tmpfs", "ekc-test", "/mnt"]
    return subprocess.run(test, capture_output=True, check=False).returncode == 0


def fill_disk(folder: Path) -> None:
    """Leave no byte and no file."""
    with suppress(OSError), open(folder / "filler", "wb", buffering=0) as filler:
        while filler.write(bytes(512)):
            pass
    for number in range(100):
        try:
            (folder / f"filler-{number}").touch()
        except OSError as problem:
            if problem.errno == errno.ENOSPC:
                return
            raise
    raise AssertionError("the disk was not full")


def make_read_only(folder: Path) -> None:
    """Mount a disk without the right to write, once no file is being written."""
    for _ in range(200):
        if subprocess.run(["mount", "-o", "remount,ro", folder], capture_output=True).returncode == 0:
            return
        time.sleep(0.01)
    raise AssertionError("the disk stayed writable")


def _replace_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Replace a lease file by something else, at once."""

    def replace(file: Path) -> None:
        fresh = file.with_name(f"fresh-{file.stem}")
        make(fresh)
        while os.path.lexists(fresh):
            if fresh.is_dir():
                file.unlink(missing_ok=True)
            with suppress(NotADirectoryError):  # The governor wrote the file again just now.
                fresh.rename(file)

    return replace


def _make_folder(file: Path) -> None:
    file.mkdir()
    (file / "kept").write_text("a file of someone")


def _change_text(old: str, new: str) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        _replace_by(lambda fresh: fresh.write_text(file.read_text().replace(old, new)))(file)

    return change


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: os.truncate(file, 0),
    "deleted": Path.unlink,
    "folder": _replace_by(_make_folder),
    "FIFO": _replace_by(os.mkfifo),
    "socket": _replace_by(lambda fresh: os.mknod(fresh, 0o644 | stat.S_IFSOCK)),
    "link to /dev/zero": _replace_by(lambda fresh: fresh.symlink_to("/dev/zero")),
    "link to nothing": _replace_by(lambda fresh: fresh.symlink_to("nowhere")),
    "huge": lambda file: os.truncate(file, 8 << 30),
    "deep JSON": _replace_by(lambda fresh: fresh.write_text("[" * 16_000)),
    "other JSON": _replace_by(lambda fresh: fresh.write_text('{"version": 1, "id": 3}')),
    "no text": _replace_by(lambda fresh: fresh.write_bytes(bytes(range(256)))),
    "limit of another kind": _change_text('"sm_mhz": null', '"sm_mhz": true'),
    "another GPU": _change_text("GPU-", "GPU-0"),
    "writable by others": lambda file: file.chmod(0o666),
}
if os.geteuid() == 0:
    DAMAGES["owner"] = lambda file: os.chown(file, OTHER_UID, OTHER_UID)


def mark_slow(kinds: Iterable[str], usual: Sequence[str]) -> list[Any]:
    """All kinds as parameters; all but the usual ones are slow tests."""
    return [x if x in usual else pytest.param(x, marks=pytest.mark.slow) for x in kinds]


class SocketHolder:
    """A process of another user that holds the socket of a GPU, until `close`. Needs root."""

    def __init__(self, gpu: str, kind: HolderKind = "listens", uid: int = OTHER_UID) -> None:
        read_end, write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                kept = _hold_socket(f"\0ekc-governor-{gpu}", kind)
                os.write(write_end, b"." if kept else b"")
                time.sleep(600)
            finally:
                os._exit(0)
        os.close(write_end)
        assert os.read(read_end, 1) == b"."
        os.close(read_end)

    def close(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _hold_socket(name: str, kind: HolderKind) -> list[socket.socket]:
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    holder.bind(name)
    held = [holder]
    if kind != "is silent":
        holder.listen(0 if kind == "has a full queue" else 1000)
    for _ in range(4 if kind == "has a full queue" else 0):
        held.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        held[-1].setblocking(False)
        with suppress(BlockingIOError):
            held[-1].connect(name)
    return held
