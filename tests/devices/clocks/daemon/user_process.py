"""A process of another user with a connection to the daemon: forked, so that it needs no rights to files."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ekc.devices.clocks.daemon.messages import MAX_REPLY_BYTES, MessageChannel
from tests.devices.clocks.daemon.helpers import TIMEOUT_S, RunningDaemon, exchange

BEAT_S = 0.4


class UserProcess:
    """Sends requests to the daemon as a user, and a sign of life in between, until `close`."""

    def __init__(self, daemon: RunningDaemon, uid: int, groups: Sequence[int] = ()) -> None:
        self._pipe, inner = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._pipe.close()
                if uid != os.geteuid():
                    os.setgroups(list(groups))
                    os.setresgid(uid, uid, uid)
                    os.setresuid(uid, uid, uid)
                _forward_requests(daemon, inner)
            finally:
                os._exit(0)
        inner.close()
        self._channel = MessageChannel(self._pipe, MAX_REPLY_BYTES)

    def ask(self, **request: Any) -> dict[str, Any]:
        """The daemon's reply; {"ended": reason} where the connection is over."""
        self._channel.send(request)
        return self._channel.receive(TIMEOUT_S)

    def lease(self, *gpus: str) -> dict[str, Any]:
        return self.ask(do="lease", gpus=gpus)

    def set(self, gpu: str, **settings: Any) -> dict[str, Any]:
        return self.ask(do="set", gpu=gpu, settings=settings)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._pipe.close()


def _forward_requests(daemon: RunningDaemon, pipe: socket.socket) -> None:
    requests = MessageChannel(pipe, MAX_REPLY_BYTES)
    ended: dict[str, Any] = {}
    with daemon.connect() as connected:
        channel = MessageChannel(connected, MAX_REPLY_BYTES)
        while True:
            is_asked = bool(select.select([pipe], [], [], BEAT_S)[0])
            request = requests.receive(TIMEOUT_S) if is_asked else {"do": "beat"}
            reply = ended or exchange(channel, request)
            if "ended" in reply:
                ended = reply
            if is_asked:
                requests.send(reply)
