"""The daemon's process: its socket, its connections, its end, and what it tells systemd."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from types import FrameType

from ekc.devices.clocks.daemon.allow_list import make_job_folder, read_allow_list
from ekc.devices.clocks.daemon.messages import MAX_REQUEST_BYTES, ConnectionEnded, MessageChannel
from ekc.devices.clocks.daemon.served_connection import DaemonServices, ServedConnection
from ekc.devices.clocks.restore import restore_all
from ekc.devices.nvml.library import explain_refusal
from ekc.errors import EkcError, InvalidInput
from ekc.processes.process_facts import read_caller

MAX_USER_CONNECTIONS = 16
MAX_CONNECTIONS = 256
STOP_TIMEOUT_S = 10.0
"""Seconds for all settings to go back at the end; the guards and the next start go on after that."""
RESTORE_RETRY_S = 5.0
RESTORE_TRIES = 12
IDLE_S = 1.0
"""Longest wait of the main thread."""


def run_daemon(socket_path: Path, allow_file: Path) -> int:
    """Serve until SIGTERM or SIGINT; SIGHUP reads the allow-list again. Returns exit status 1 where settings
    could not be put back. Raises `InvalidInput` for a bad allow-list, socket or lease folder."""
    restoring = threading.Thread(target=_restore_stale_leases, name="ekc-restore", daemon=True)
    restoring.start()
    try:
        daemon = GovernorDaemon(allow_file)
        make_job_folder()
        if refusal := explain_refusal():
            log(f"{refusal}; the driver will refuse")
        with _open_listener(socket_path) as listener:
            return daemon.serve(listener)
    except InvalidInput:
        restoring.join(STOP_TIMEOUT_S)  # Whatever keeps the daemon from serving, the settings go back.
        raise


class GovernorDaemon:
    """The connections of all clients. Raises `InvalidInput` for a bad allow-list."""

    def __init__(self, allow_file: Path) -> None:
        self._allow_file = allow_file
        self._connections: set[ServedConnection] = set()
        self._lock = threading.Lock()
        self._services = DaemonServices(read_allow_list(allow_file), log)
        self._received_signals: list[int] = []

    def serve(self, listener: socket.socket) -> int:
        """Accept connections until a signal ends the daemon; 1 where settings could not be put back."""
        listener.setblocking(False)
        interval_s = min(IDLE_S, (read_watchdog_interval_s() or 2 * IDLE_S) / 2)
        with _wake_on_signals(self._receive_signal) as wake_up, selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(wake_up, selectors.EVENT_READ)
            log(f"listens at {listener.getsockname()}, with {self._allow_file}")
            notify("READY=1")
            while not self._handle_signals():
                for key, _ in selector.select(interval_s):
                    if key.fileobj is listener:
                        self._accept(listener)
                    else:
                        wake_up.recv(MAX_REQUEST_BYTES)
                notify("WATCHDOG=1")
            notify("STOPPING=1")
            listener.close()
            return self._end_all_connections()

    def _receive_signal(self, number: int, frame: FrameType | None) -> None:
        self._received_signals.append(number)

    def _handle_signals(self) -> bool:
        """Reload the allow-list on SIGHUP; whether another signal ends the daemon."""
        while self._received_signals:
            if self._received_signals.pop(0) != signal.SIGHUP:
                return True
            try:
                self._services.allow_list = read_allow_list(self._allow_file)
                log(f"{self._allow_file} was read again; it counts from the next request on")
            except InvalidInput as problem:
                log(f"the allow-list stays as it was: {problem}")
        return False

    def _accept(self, listener: socket.socket) -> None:
        try:
            connected, _ = listener.accept()
        except OSError:
            return  # The client has gone again, or there are no descriptors: the next round tries again.
        connection = ServedConnection(connected, read_caller(connected), self._services)
        uid = connection.caller.uid
        with self._lock:
            number = sum(x.caller.uid == uid for x in self._connections)
            is_full = len(self._connections) >= MAX_CONNECTIONS
            if number < MAX_USER_CONNECTIONS and not is_full:
                self._connections.add(connection)
        if number >= MAX_USER_CONNECTIONS:
            _refuse(connected, f"uid {uid} has {number} connections, its limit; close one")
        elif is_full:
            _refuse(connected, f"the daemon has {MAX_CONNECTIONS} connections, its limit; try again later")
        else:
            name = f"ekc-client-{connection.caller.pid}"
            threading.Thread(target=self._serve, args=(connection,), name=name, daemon=True).start()

    def _serve(self, connection: ServedConnection) -> None:
        try:
            connection.run()
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _end_all_connections(self) -> int:
        """End all connections at once; 1 where settings are not back."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.end("the daemon ends")
        end_s = time.monotonic() + STOP_TIMEOUT_S
        problems = []
        for connection in connections:
            if not connection.finished.wait(max(0.0, end_s - time.monotonic())):
                problems.append(
                    f"the settings of {connection.caller} are not back after {STOP_TIMEOUT_S:g} s"
                )
            problems += connection.problems
        for problem in problems:
            log(problem)
        return int(bool(problems))


def _restore_stale_leases() -> None:
    """Restore what a daemon left that was killed with its guards; repeat for a minute what fails."""
    lines: set[str] = set()
    for _ in range(RESTORE_TRIES):
        try:
            results = restore_all()
        except EkcError as problem:
            log(f"stale leases: {problem}")
            return
        for line in [str(result) for result in results]:
            if line not in lines:
                lines.add(line)
                log(f"stale lease: {line}")
        if not any(result.problem for result in results):
            return
        time.sleep(RESTORE_RETRY_S)


@contextmanager
def _open_listener(path: Path) -> Iterator[socket.socket]:
    """The socket that systemd passed, or a new one at the path. Raises `InvalidInput`."""
    passed = take_passed_socket()
    if passed is not None:
        with passed:
            yield passed
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            _remove_dead_socket(path)
            listener.bind(str(path))
            path.chmod(0o666)  # The allow-list says who may do what.
        except OSError as problem:
            reason = problem.strerror or problem
            raise InvalidInput(f"--socket: cannot listen at {path} ({reason}); give another") from problem
        listener.listen(socket.SOMAXCONN)
        own = path.lstat()
        try:
            yield listener
        finally:
            with suppress(OSError):
                if os.path.samestat(path.lstat(), own):
                    path.unlink()


def _remove_dead_socket(path: Path) -> None:
    """Remove the socket of a daemon that was killed. Raises `InvalidInput` where one answers."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidInput(f"--socket: {path} is no socket; give another path, or remove it")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
                return
        raise InvalidInput(f"--socket: another daemon listens at {path}; end it first, or give another path")


@contextmanager
def _wake_on_signals(handler: signal._HANDLER) -> Iterator[socket.socket]:
    """Handle SIGTERM, SIGINT and SIGHUP; yields a socket that becomes readable with each signal."""
    wake_up, writer = socket.socketpair()
    wake_up.setblocking(False)
    writer.setblocking(False)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    previous_handlers = {number: signal.signal(number, handler) for number in numbers}
    previous_descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield wake_up
    finally:
        signal.set_wakeup_fd(previous_descriptor)
        for number, previous in previous_handlers.items():
            signal.signal(number, previous)
        wake_up.close()
        writer.close()


def _refuse(connected: socket.socket, reason: str) -> None:
    with connected, suppress(ConnectionEnded):
        MessageChannel(connected, MAX_REQUEST_BYTES).send({"ended": reason})


def log(line: str) -> None:
    """A line to stderr, which systemd writes to the journal."""
    with suppress(OSError):
        print(f"ekc govern --daemon: {line}", file=sys.stderr, flush=True)


FIRST_PASSED_DESCRIPTOR = 3


def notify(*states: str) -> None:
    """Tell the service manager "READY=1", "STOPPING=1" and so on; nothing without one (NOTIFY_SOCKET)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    name = f"\0{address[1:]}" if address[0] == "@" else address
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
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
