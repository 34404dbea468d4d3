"""Facts about other processes, as /proc shows them: family, user, state, handling of signals. Also who is
at the other end of a UNIX socket, as the kernel reports it."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from ekc.tables import group_pairs

_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""The namespace of the machine's own process numbers; those of containers have other numbers."""


def list_process_family(pid: int) -> set[int]:
    """Ids of a process and all its descendants."""
    entries = (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    children = group_pairs((_read_parent_pid(entry), int(entry.name)) for entry in entries)
    family, pending = set(), [pid]
    while pending:
        member = pending.pop()
        family.add(member)
        pending += children.get(member, [])
    return family


def _read_parent_pid(entry: Path) -> int:
    """Id of a process's parent; 0 for a process that has just ended."""
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def read_environment(pid: int) -> dict[str, str]:
    """Environment with which a process began; empty where it may not be read, and while it starts."""
    try:
        lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (line.partition(b"=") for line in lines if b"=" in line)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def read_user_id(pid: int) -> int | None:
    """Id of the user of a process; None where the process has ended or may not be seen."""
    words = read_status(pid).get("Uid")
    return None if words is None else int(words.split()[0])


def read_command_name(pid: int) -> str:
    """The first 15 characters of a program's name; empty where they may not be seen."""
    return read_status(pid).get("Name", "")


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger; one that has ended is not."""
    return _read_state(read_status(pid)) in "Tt"


def has_default_action(pid: int, number: int) -> bool:
    """Whether a process that has not ended neither handles, ignores nor blocks a signal."""
    status = read_status(pid)
    masks = [int(status.get(name, "0"), 16) for name in ("SigIgn", "SigCgt", "SigBlk")]
    return _read_state(status) not in "ZX" and not any(mask >> (number - 1) & 1 for mask in masks)


def has_own_process_numbers() -> bool:
    """Whether this process is in a container that numbers its processes itself: a driver may show others'."""
    try:
        return os.readlink("/proc/self/ns/pid") != _INITIAL_PID_NAMESPACE
    except OSError:
        return True


def _read_state(status: dict[str, str]) -> str:
    """The state as one letter, as in ps; X for a process that has ended."""
    return status.get("State", "X")[0]


def read_status(pid: int) -> dict[str, str]:
    """Fields of /proc/PID/status; none for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


_CREDENTIALS = struct.Struct("3i")
_SO_PEERGROUPS = 59
"""Socket option of Linux 4.13 and later, which Python does not name."""
_MAX_GROUPS = 256
"""The longest answer that Python takes is 1024 bytes."""


@dataclass(frozen=True)
class Caller:
    """Process id, user and groups of a client when it connected."""

    pid: int
    uid: int
    gids: frozenset[int]

    def __str__(self) -> str:
        return f"process {self.pid} of {describe_user(self.uid)}"


def read_caller(connected: socket.socket) -> Caller:
    """The caller of a connection."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(credentials)
    groups = b""
    with contextlib.suppress(OSError):  # More groups, or an older kernel: the primary group alone counts.
        groups = connected.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MAX_GROUPS)
    return Caller(pid, uid, frozenset((gid, *struct.unpack(f"{len(groups) // 4}I", groups))))


def describe_user(uid: int) -> str:
    """Name of a user for messages: "user alice (uid 1000)", or "uid 1000" without a name."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except (KeyError, OverflowError):
        return f"uid {uid}"


def read_unknown_uid() -> int:
    """The user id that the kernel reports for users of another user namespace that this one does not have."""
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return 65534
