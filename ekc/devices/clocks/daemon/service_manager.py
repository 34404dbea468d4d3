"""The service manager, systemd: passed sockets, readiness, signs of life, and the unit files."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from importlib import resources
from pathlib import Path

FIRST_PASSED_DESCRIPTOR = 3
UNITS = ("service", "socket")


def notify(*states: str) -> None:
    """Tell the service manager "READY=1", "STOPPING=1" and so on; nothing without one (NOTIFY_SOCKET)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    name = f"\0{address[1:]}" if address[0] == "@" else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        # A service manager that went away must not end the daemon.
        sender.setblocking(False)
        sender.sendto("\n".join(states).encode(), name)


def read_watchdog_interval_s() -> float | None:
    """Seconds within which the service manager expects a sign of life; None where it expects none."""
    if os.environ.get("WATCHDOG_PID") not in (None, str(os.getpid())):
        return None
    try:
        return int(os.environ["WATCHDOG_USEC"]) / 1e6 or None
    except (KeyError, ValueError):
        return None


def take_passed_socket() -> socket.socket | None:
    """The listening socket that the service manager has opened for this process; None without one."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        return None
    os.set_inheritable(FIRST_PASSED_DESCRIPTOR, False)
    return socket.socket(fileno=FIRST_PASSED_DESCRIPTOR)


def format_unit(kind: str, socket_path: Path, allow_file: Path) -> str:
    """The text of a unit file, "service" or "socket", for this installation of ekc."""
    text = (resources.files(__package__) / f"ekc-governor.{kind}").read_text("utf-8")
    values = {
        "@PROGRAM@": f"{sys.executable} -m ekc govern --daemon",
        "@SOCKET@": str(socket_path),
        "@ALLOW@": str(allow_file),
    }
    for name, value in values.items():
        text = text.replace(name, value)
    return text
