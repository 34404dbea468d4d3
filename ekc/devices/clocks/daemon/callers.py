"""The process at the other end of a UNIX socket, as the kernel reports it."""

from __future__ import annotations

import contextlib
import pwd
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

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
