"""A child process that answers requests: started when first asked, with a time limit for each reply.

A failure is one `DeviceError` for the request that met it: the worker's own words, "hung", or how the process
ended. The next request gets a new process. A child holds one end of a pipe, its lifeline; the parent holds
the other end open, so the child notices when the parent ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any

from ekc.errors import DeviceError
from ekc.forks import detach_in_children, hold_forks
from ekc.tables import format_rounded

EXIT_TIMEOUT_S = 10.0
"""Seconds for a killed process to end: a GPU driver first destroys the context."""


@dataclass(frozen=True)
class RequestFailure:
    """Reply of a worker that cannot answer a request; the worker ends after it."""

    reason: str


@dataclass(frozen=True)
class ReplyEstimate:
    """Precedes a reply that takes long: the parent waits so many seconds more for it."""

    seconds: float


@dataclass(frozen=True)
class WorkerTimeouts:
    """Seconds to wait for a reply before the worker counts as hung."""

    start_s: float = 60.0
    """Seconds to start: imports, and loading a GPU driver. Added to the first request."""
    reply_s: float = 60.0
    """Seconds for any reply: on a GPU the context, loading and a first call of a kernel. A reply that takes
    longer is announced by a `ReplyEstimate`."""
    transfer_bytes_per_s: float = 50e6
    """Bytes a second at which inputs are drawn and sent and outputs are read, while the host compiles on all
    cores. The time for the `moved_bytes` of a request is added to `reply_s`."""
    stop_s: float = 20.0
    """Seconds for a kernel that runs back to back to stop, beside the calls that are queued."""

    def compute_timeout_s(self, request: Any) -> float:
        """Seconds to wait for the reply to a request."""
        moved: int = getattr(request, "moved_bytes", 0)
        return self.reply_s + moved / self.transfer_bytes_per_s


class ChildProcess:
    """`python -m MODULE INDEX MESSAGES LIFELINE` in a session of its own: neither Ctrl-C nor the caller's
    `__main__` reaches it. MESSAGES and LIFELINE are file descriptors that it inherits."""

    def __init__(self, module: str, index: int = 0) -> None:
        self._stderr_file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self.connection, theirs = Pipe()
        far, self._lifeline = os.pipe()
        descriptors = (theirs.fileno(), far)
        try:
            self._process = subprocess.Popen(
                # The child imports the same modules; without -P the working folder would come first.
                [sys.executable, "-P", "-m", module, str(index), *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=self._stderr_file,
                stderr=self._stderr_file,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
                start_new_session=True,
            )
        except OSError:
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(far)

    def kill(self) -> None:
        """End the process by force."""
        self._process.kill()

    def wait_for_exit(self, seconds: float) -> int | None:
        """Exit status (minus the signal that killed it); None where the process still runs after so long.
        Closes the lifeline of an ended process."""
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._close_lifeline()
        return status

    def detach(self) -> None:
        """In a forked copy of the parent: close the pipes; the process belongs to the original."""
        self.connection.close()
        self._close_lifeline()

    def _close_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def read_last_stderr_line(self) -> str:
        """The last line that the process wrote to stderr."""
        self._stderr_file.seek(0)
        lines = self._stderr_file.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


class RemoteWorker:
    """A worker that is started by the first request, and started again after a failure."""

    def __init__(
        self, name: str, start_worker: Callable[[], ChildProcess], timeouts: WorkerTimeouts | None = None
    ) -> None:
        self.name, self._start_worker, self.timeouts = name, start_worker, timeouts or WorkerTimeouts()
        self._processes: list[ChildProcess] = []
        self._timeout_s = 0.0
        self._is_reply_pending = False
        """Whether a reply was asked for and not received."""
        # A function, not a method: a method would keep this object alive, and its process with it.
        self._finalizer = weakref.finalize(self, _end_processes, self._processes)
        detach_in_children(self)

    def query(self, request: Any, timeout_s: float | None = None) -> Any:
        """The reply. Raises `DeviceError` when the driver refuses, the worker hangs or dies."""
        self.send(request, timeout_s)
        return self.receive()

    def send(self, request: Any, timeout_s: float | None = None) -> None:
        """Send a request; its reply must be received before the next request is sent."""
        self._timeout_s = self.timeouts.compute_timeout_s(request) if timeout_s is None else timeout_s
        if self._is_reply_pending:
            # Ctrl-C came before that reply was received: it must not be taken for the reply to this request.
            _end_processes(self._processes)
        if not self._processes:
            # A child that is forked now would hold the pipes open, and the worker would outlive this process.
            with hold_forks():
                self._processes.append(self._start_process())
            self._timeout_s += self.timeouts.start_s
        self._is_reply_pending = True
        # The messages of a worker that ended since can still be read: the last one is the reason.
        with suppress(OSError):
            self._processes[0].connection.send(request)

    def receive(self) -> Any:
        """The reply to the request that was sent. Raises as `query` does."""
        try:
            reply = self._receive_reply(self._processes[0], self._timeout_s)
        except BaseException:
            _end_processes(self._processes)
            raise
        self._is_reply_pending = False
        return reply

    def close(self) -> None:
        """End the worker."""
        _end_processes(self._processes)

    def kill(self) -> None:
        """End the process, from another thread than the one that waits for its reply: that one gets a
        `DeviceError`."""
        for process in tuple(self._processes):
            process.kill()

    def detach(self) -> None:
        """In a forked child: the worker belongs to the parent; a request here starts another. With its pipes
        open here the worker would outlive the parent."""
        self._is_reply_pending = False
        while self._processes:
            self._processes.pop().detach()

    def _start_process(self) -> ChildProcess:
        try:
            return self._start_worker()
        except OSError as problem:
            raise DeviceError(
                f"{self.name}: its worker process cannot be started ({problem.strerror or problem}); "
                "end other processes, or see ulimit -u and ulimit -n"
            ) from problem

    def _receive_reply(self, process: ChildProcess, timeout_s: float) -> Any:
        try:
            reply = self._wait_for_message(process, timeout_s)
            if isinstance(reply, ReplyEstimate):
                reply = self._wait_for_message(process, reply.seconds + self.timeouts.reply_s)
        except (EOFError, OSError):
            status = process.wait_for_exit(EXIT_TIMEOUT_S)
            words = process.read_last_stderr_line()
            last_line = f"; its last words: {words}" if words else ""
            raise DeviceError(f"{self.name}: the worker {_describe_exit(status)}{last_line}") from None
        if isinstance(reply, RequestFailure):
            raise DeviceError(f"{self.name}: {reply.reason}")
        return reply

    def _wait_for_message(self, process: ChildProcess, timeout_s: float) -> Any:
        if not process.connection.poll(timeout_s):
            raise DeviceError(
                f"{self.name} hung: no answer within {format_rounded(timeout_s, 4)} s; its worker was killed"
            )
        return process.connection.recv()


def _end_processes(processes: list[ChildProcess]) -> None:
    while processes:
        process = processes.pop()
        process.connection.close()
        process.kill()
        process.wait_for_exit(EXIT_TIMEOUT_S)


def _describe_exit(status: int | None) -> str:
    if status is None:
        return "went silent"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def exit_with_parent(lifeline: int) -> None:
    """End this process when its parent ends and so closes the pipe, even while a kernel hangs."""

    def watch() -> None:
        with suppress(OSError):
            os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
