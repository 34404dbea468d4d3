"""Messages between a client and the daemon: JSON objects, one a line, over a UNIX socket."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from ekc.errors import EkcError, InvalidInput

MAX_REQUEST_BYTES = 4096
MAX_REPLY_BYTES = 1 << 18
SILENCE_TIMEOUT_S = 2.5
"""Seconds without a request after which a client counts as stopped or dead."""
SEND_TIMEOUT_S = 1.0
"""Seconds for a message to be taken by a peer that does not read."""


class ConnectionEnded(EkcError):
    """The peer has closed the connection; the text is the reason."""


class PeerSilent(ConnectionEnded):
    """The peer has sent nothing in time."""


class MessageChannel:
    """One end of a connection. Use it from one thread at a time."""

    def __init__(self, connected: socket.socket, max_bytes: int) -> None:
        self._socket = connected
        self._max_bytes = max_bytes
        self._received = b""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. Raises `ConnectionEnded`, also where the peer does not read."""
        try:
            self._socket.settimeout(SEND_TIMEOUT_S)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except TimeoutError as problem:
            raise ConnectionEnded("it does not read its replies") from problem
        except OSError as problem:
            raise ConnectionEnded(f"it closed the connection ({problem.strerror})") from problem

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next message, complete within `seconds`. Raises `ConnectionEnded`, and `InvalidInput` for a
        message that is too long or no JSON object."""
        end_s = time.monotonic() + seconds
        while b"\n" not in self._received:
            if len(self._received) > self._max_bytes:
                raise InvalidInput(f"a message has more than {self._max_bytes} bytes; send fewer GPUs")
            self._receive_bytes(end_s - time.monotonic(), seconds)
        line, _, self._received = self._received.partition(b"\n")
        if len(line) > self._max_bytes:
            raise InvalidInput(f"a message has {len(line)} bytes, at most {self._max_bytes}; send fewer GPUs")
        return _parse_message(line)

    def _receive_bytes(self, left_s: float, seconds: float) -> None:
        silence = f"no complete message for {seconds:g} s"
        if left_s <= 0:
            raise PeerSilent(silence)
        try:
            self._socket.settimeout(left_s)
            received = self._socket.recv(MAX_REQUEST_BYTES)
        except TimeoutError as problem:
            raise PeerSilent(silence) from problem
        except OSError as problem:
            raise ConnectionEnded(f"the connection broke ({problem.strerror})") from problem
        if not received:
            raise ConnectionEnded("it closed the connection")
        self._received += received


def _parse_message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(f"a message is not JSON ({problem}); send one object a line") from problem
    if not isinstance(message, dict):
        raise InvalidInput("a message is no JSON object; send one object a line")
    return message


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
