"""A daemon as systemd starts it, from the ExecStart line of its unit file, and clients of several users."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ekc.devices.clocks.daemon.messages import MAX_REPLY_BYTES, ConnectionEnded, MessageChannel
from ekc.devices.clocks.daemon.server import format_unit
from tests.scripted.nvml.boards import ScriptedBoards

ALICE, BOB, CAROL, GPU_GROUP = 64001, 64002, 64003, 64009
"""User ids and a group id that no account of a test machine has."""
TIMEOUT_S = 30.0

CLIENT_SCRIPT = """
import sys, time
from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.limits import Settings
from ekc.devices.clocks.open import choose_actuator
from ekc.errors import EkcError
try:
    with LeaseKeeper([choose_actuator("daemon", gpu) for gpu in sys.argv[2:]], on_message=print) as keeper:
        for actuator in keeper.actuators:
            actuator.apply(Settings(sm_mhz=int(sys.argv[1])))
        print("set", flush=True)
        sys.stdin.readline()
except EkcError as problem:
    print(problem, flush=True)
"""
"""Leases GPUs, sets their SM clock, and holds it until its input ends."""


class RunningDaemon:
    """A daemon over scripted boards, until `close`."""

    def __init__(self, boards: ScriptedBoards, allow: str) -> None:
        self.boards = boards
        self.socket_path = boards.folder / "governor.sock"
        self.allow_file = boards.folder / "allow.toml"
        self.log_file = boards.folder / "daemon.log"
        self.notify_path = boards.folder / "notify.sock"
        self.write_allow_list(allow)
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(self.notify_path))
        self._notify.settimeout(0.5)
        self.start()

    def write_allow_list(self, text: str) -> None:
        self.allow_file.write_text(text)
        self.allow_file.chmod(0o644)

    def start(self, **environment: str) -> None:
        """Start it by the unit's ExecStart line; returns when it has said that it is ready."""
        unit = format_unit("service", self.socket_path, self.allow_file)
        (command,) = (x.removeprefix("ExecStart=") for x in unit.splitlines() if x.startswith("ExecStart="))
        names = {"NOTIFY_SOCKET": str(self.notify_path), "WATCHDOG_USEC": "1000000"} | environment
        with open(self.log_file, "ab") as log:
            self.process = subprocess.Popen(
                shlex.split(command),
                env=self.boards.environment | names,
                cwd=self.boards.folder,
                stderr=log,
                start_new_session=True,
            )
        self.wait_for_state("READY=1")

    def wait_for_state(self, state: str) -> None:
        """Wait until the daemon tells its service manager this."""
        end_s, heard = time.monotonic() + TIMEOUT_S, ""
        while state not in heard.splitlines():
            assert self.process.poll() is None or state == "STOPPING=1", self.read_log()
            assert time.monotonic() < end_s, self.read_log()
            with suppress(TimeoutError):
                heard = self._notify.recv(4096).decode()

    def find_guards(self) -> list[int]:
        """Process ids of its guards."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for file in children for pid in file.read_text().split()]

    def kill(self, with_guards: bool = False) -> None:
        """Kill it with -9."""
        for pid in (self.find_guards() if with_guards else []) + [self.process.pid]:
            # A guard ends when its client does.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """End it with SIGTERM; returns its exit status."""
        self.process.terminate()
        return self.process.wait(TIMEOUT_S)

    def read_log(self) -> str:
        return self.log_file.read_text()

    def wait_for_log(self, words: str) -> None:
        assert self.boards.wait_for(lambda _: words in self.read_log(), TIMEOUT_S) < TIMEOUT_S, (
            self.read_log()
        )

    def connect(self) -> socket.socket:
        """A connection of this process."""
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(TIMEOUT_S)
        client.connect(str(self.socket_path))
        return client

    def ask(self, **request: Any) -> dict[str, Any]:
        """The reply to one request on a connection of its own."""
        with self.connect() as client:
            return exchange(MessageChannel(client, MAX_REPLY_BYTES), request)

    def start_client(self, *words: str) -> Client:
        """A client of this user that sets the SM clock to `words[0]` MHz on the GPUs `words[1:]`."""
        return Client(self, ["-c", CLIENT_SCRIPT, *words])

    def close(self) -> None:
        """Kill it and its guards, which else still write to the folder."""
        if self.process.poll() is None:
            ends = []
            for pid in self.find_guards():
                with suppress(ProcessLookupError):
                    ends.append(os.pidfd_open(pid))
            self.kill(with_guards=True)
            for end in ends:
                select.select([end], [], [], TIMEOUT_S)
                os.close(end)
        self._notify.close()


class Client:
    """A client process."""

    def __init__(self, daemon: RunningDaemon, words: Sequence[str]) -> None:
        boards = daemon.boards
        boards.extra["EKC_GOVERNOR_SOCKET"] = str(daemon.socket_path)
        self.process = boards.start_python(
            *words, stdin=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return str(self.process.stdout.readline()).rstrip("\n")

    def end(self) -> str:
        """End it normally; returns its remaining output."""
        return str(self.process.communicate("\n", timeout=TIMEOUT_S)[0])

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def start_as_user(boards: ScriptedBoards, uid: int, *words: str) -> subprocess.Popen[str]:
    """A Python process of another user, who may read the folder of Python. Needs root and setpriv."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("processes of other users need root, and setpriv of util-linux")
    identity = ("--reuid", str(uid), "--regid", str(uid), "--clear-groups")
    rights = ("--inh-caps", "-all,+dac_read_search", "--ambient-caps", "-all,+dac_read_search")
    return subprocess.Popen(
        ["setpriv", *identity, *rights, sys.executable, *words],
        env=boards.environment,
        cwd=boards.folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def measure_seconds(boards: ScriptedBoards, condition: Any, seconds: float = TIMEOUT_S) -> float:
    """Seconds until a condition is true."""
    start_s = time.monotonic()
    assert boards.wait_for(condition, seconds) < seconds
    return time.monotonic() - start_s


def exchange(channel: MessageChannel, request: dict[str, Any]) -> dict[str, Any]:
    """The reply to a request; {"ended": reason} where the connection is over."""
    with suppress(ConnectionEnded):
        channel.send(request)
    try:
        return channel.receive(TIMEOUT_S)
    except ConnectionEnded as end:
        return {"ended": str(end)}
