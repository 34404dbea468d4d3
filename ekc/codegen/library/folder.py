"""Files of a library, replaced in one step: after a full disk or a kill they are all old or all new."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ekc.errors import InvalidInput

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""Values of <fcntl.h> and <stdio.h> for renameat2."""
_CANNOT_EXCHANGE = frozenset(
    {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBUSY, errno.EXDEV, errno.EPERM}
    | {errno.EACCES, errno.EMLINK}
)
"""Errors of file systems that cannot exchange two folders or link files, and of a folder with parts that this
user cannot read."""


def replace_files(folder: Path, texts: Mapping[str, str], stale: Collection[str]) -> tuple[Path, ...]:
    """Write texts by their paths into a folder; returns the paths. All other files of the folder stay, but
    those at the paths `stale`.

    The files are written into a new folder beside it, which then takes its place in one step: an error, or
    the end of the process at any time, leaves all old files or all new ones. A folder that must stay where it
    is gets one file after another, and the last of `texts`, the record, is removed first: the working
    directory, a mounted folder, one in a folder that cannot be written, one with parts that this user cannot
    read, or one on a file system that cannot exchange folders.

    Raises `InvalidInput` for a folder that cannot be written.
    """
    try:
        place = Path(os.path.realpath(folder))
        _check_place(place)
        parent = place if _must_stay(place) else place.parent
        parent.mkdir(parents=True, exist_ok=True)
        with _make_new_folder(parent, place.name) as new:
            for path, text in texts.items():
                (new / path).parent.mkdir(parents=True, exist_ok=True)
                (new / path).write_text(text, encoding="utf-8")
            if not place.exists():
                os.rename(new, place)
            elif parent == place or not _exchange(new, place, stale):
                _move_files(new, place, list(texts), stale)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or type(problem).__name__
        raise InvalidInput(f"bundle: cannot write into {folder} ({reason}); choose another folder") from None
    return tuple(folder / path for path in texts)


def _check_place(place: Path) -> None:
    """Raise `OSError` for a file, and for a folder without the right to write."""
    if place.exists() and not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if place.is_dir() and not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _must_stay(place: Path) -> bool:
    """Whether no other folder can take the place of one: a shell in it would stay in the old one."""
    here = Path.cwd()
    is_open = place == here or place in here.parents
    return is_open or os.path.ismount(place) or (place.is_dir() and not os.access(place.parent, os.W_OK))


@contextmanager
def _make_new_folder(parent: Path, name: str) -> Iterator[Path]:
    """Make a folder for the new files, and remove it with all that it holds at the end of the block. Folders
    that killed processes left, which no process has locked, are removed first."""
    for left in parent.glob(f".{glob.escape(name)}.ekc-{'[0-9a-f]' * 16}"):
        with _lock(left) as is_free:
            if is_free:
                shutil.rmtree(left, ignore_errors=True)
    new = parent / f".{name}.ekc-{secrets.token_hex(8)}"
    new.mkdir()
    with _lock(new):
        try:
            yield new
        finally:
            shutil.rmtree(new, ignore_errors=True)


@contextmanager
def _lock(folder: Path) -> Iterator[bool]:
    """Lock a folder within the block; false where another process has locked it, or removed it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = True
        except OSError:
            is_free = False
        yield is_free
    finally:
        os.close(descriptor)


def _exchange(new: Path, place: Path, stale: Collection[str]) -> bool:
    """Exchange two folders after the new one has got links to all else that the old one holds; false where
    the file system cannot."""
    try:
        shutil.copymode(place, new)
        _link_files(place, new, "", stale)
        libc = ctypes.CDLL(None, use_errno=True)
        paths = (os.fsencode(new), os.fsencode(place))
        if libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except AttributeError:  # The C library has no renameat2.
        return False
    except OSError as problem:
        if problem.errno not in _CANNOT_EXCHANGE:
            raise
        return False
    return True


def _link_files(old: Path, new: Path, inside: str, left_out: Collection[str]) -> None:
    """Link the files of a folder into another, unless it has them or they are left out."""
    for entry in os.scandir(old / inside):
        path = os.path.join(inside, entry.name)
        if path in left_out:
            continue
        if entry.is_dir(follow_symlinks=False):
            if (new / path).is_file():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not (new / path).exists():
                (new / path).mkdir()
                shutil.copymode(entry.path, new / path)
            _link_files(old, new, path, left_out)
        elif not os.path.lexists(new / path):
            os.link(entry.path, new / path, follow_symlinks=False)


def _move_files(new: Path, place: Path, paths: list[str], stale: Collection[str]) -> None:
    """Move files into a folder, the last of them removed first."""
    for path in (paths[-1], *stale):
        (place / path).unlink(missing_ok=True)
    for path in paths:
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(new / path, place / path)
