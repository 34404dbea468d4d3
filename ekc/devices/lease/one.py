"""One governor per GPU, whoever runs it.

The lock is a Unix socket in the abstract namespace: no file stays behind, the kernel ends it with the
process however that ends, and it tells who holds it. Containers with a network of their own have a
namespace of their own, and do not see each other.
"""

from __future__ import annotations

import contextlib
import socket
import struct

from ekc.errors import ActuatorError


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
