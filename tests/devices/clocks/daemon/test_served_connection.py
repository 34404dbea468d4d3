"""Bounds of a connection: long, malformed, slow and too many; none of them delays other clients."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from ekc.devices.clocks.daemon.messages import MAX_REPLY_BYTES, MAX_REQUEST_BYTES, MessageChannel
from ekc.devices.clocks.daemon.server import MAX_USER_CONNECTIONS
from tests.devices.clocks.daemon.helpers import ALICE, TIMEOUT_S, RunningDaemon, exchange, measure_seconds
from tests.devices.clocks.daemon.user_process import UserProcess

ALIVE = {"ok": True, "taken": {}}


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"x" * (MAX_REQUEST_BYTES + 1), "a message has more than 4096 bytes"),
        (b'{"do": "beat"\n', "a message is not JSON"),
        (b"[" * 4000 + b"\n", "a message is not JSON"),
        (b'{"do": NaN}\n', "NaN is no number of JSON"),
        (b"\xff\xfe\n", "a message is not JSON"),
        (b'["beat"]\n', "a message is no JSON object"),
    ],
)
def test_message_that_is_none_ends_the_connection(
    shared_daemon: RunningDaemon, sent: bytes, words: str
) -> None:
    with shared_daemon.connect() as client:
        client.sendall(sent)
        channel = MessageChannel(client, MAX_REPLY_BYTES)
        assert words in channel.receive(TIMEOUT_S)["ended"]
        assert client.recv(1) == b""
    assert shared_daemon.ask(do="beat") == ALIVE


@pytest.mark.parametrize(
    ("request_fields", "words"),
    [
        ({"do": "release"}, "do: 'release'; requests are check, lease, set, beat, end"),
        ({}, "do: 'None'; requests are"),
        ({"do": "lease"}, "gpus: give a list of UUIDs"),
        ({"do": "lease", "gpus": [0]}, "gpus: give a list of UUIDs"),
        ({"do": "lease", "gpus": ["GPU-x"]}, "GPU-x is no GPU that the daemon sees"),
        ({"do": "lease", "gpus": ["../../etc/passwd"]}, "is no GPU that the daemon sees"),
        ({"do": "set", "gpu": ["a"], "settings": {}}, "this connection has no lease of"),
    ],
)
def test_request_that_is_refused_leaves_the_connection(
    shared_daemon: RunningDaemon, request_fields: dict[str, object], words: str
) -> None:
    with shared_daemon.connect() as client:
        channel = MessageChannel(client, MAX_REPLY_BYTES)
        channel.send(request_fields)
        assert words in channel.receive(TIMEOUT_S)["refused"]
        channel.send({"do": "beat"})
        assert channel.receive(TIMEOUT_S) == ALIVE


def test_slow_client_is_ended_and_delays_no_other(shared_daemon: RunningDaemon) -> None:
    """A byte now and then is no sign of life."""
    with shared_daemon.connect() as slow:
        start_s, slowest_s, sent = time.monotonic(), 0.0, 0
        slow.settimeout(0.2)
        ended = b""
        while not ended and time.monotonic() < start_s + TIMEOUT_S:
            slow.sendall(b" ")
            sent += 1
            asked_s = time.monotonic()
            assert shared_daemon.ask(do="beat") == ALIVE
            slowest_s = max(slowest_s, time.monotonic() - asked_s)
            try:
                ended = slow.recv(1000)
            except TimeoutError:
                continue
        assert b"no complete message for 2.5 s" in ended
        assert sent > 1
        assert slowest_s < 2.0


def test_client_that_does_not_read_is_ended(shared_daemon: RunningDaemon) -> None:
    with shared_daemon.connect() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            deaf.sendall(b'{"do": "beat"}\n' * 1_000_000)
    assert shared_daemon.ask(do="beat") == ALIVE


def test_connections_of_a_user_are_limited(
    shared_daemon: RunningDaemon, enter: Callable[..., UserProcess]
) -> None:
    channels: list[MessageChannel] = []
    with ExitStack() as stack:
        refusal = ALIVE
        while refusal == ALIVE and len(channels) <= MAX_USER_CONNECTIONS:
            client = stack.enter_context(shared_daemon.connect())
            channels.append(MessageChannel(client, MAX_REPLY_BYTES))
            for channel in channels:
                refusal = exchange(channel, {"do": "beat"})
        words = f"uid {os.geteuid()} has {MAX_USER_CONNECTIONS} connections, its limit; close one"
        assert refusal == {"ended": words}
        assert enter(ALICE).ask(do="beat") == ALIVE
    measure_seconds(shared_daemon.boards, lambda _: shared_daemon.ask(do="beat") == ALIVE)
