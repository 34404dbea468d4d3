"""The parent's end of a worker: asks with a time limit, buries the dead, hires anew.

What goes wrong is one `DeviceError` for the request that met it: the driver's own words, "hung", or how the
process ended. The next request gets a fresh worker.

A worker's end of its lifeline: a pipe that its parent holds open as long as it lives.
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
from multiprocessing.connection import Connection
from typing import Any, Protocol

from ekc.devices.cuda.messages import DriverFault, LoadableKernel, TimingEstimate
from ekc.errors import DeviceError
from ekc.forks import detach_in_children, hold_forks

EXIT_TIMEOUT_S = 10.0
"""For a killed worker to end: the driver first takes the context down."""


@dataclass(frozen=True)
class WorkerTimeouts:
    """Seconds to wait for an answer before the worker counts as hung."""

    start_s: float = 60.0
    """To import and to load the driver; added to the first request."""
    reply_s: float = 60.0
    """Making the context, loading and a first call of a kernel; the samples have a time of their own."""
    transfer_bytes_per_s: float = 50e6
    """Inputs drawn and sent up, and outputs looked at, in bytes a second on a host that compiles on all its
    cores: time for them comes on top."""
    stop_s: float = 20.0
    """From `Stop` to the answer, beside what is queued."""

    def compute_timeout_s(self, request: Any) -> float:
        """For the answer to a request."""
        work: LoadableKernel | None = getattr(request, "compute_work", None)
        moved = getattr(request, "moved_bytes", work.input_bytes if work is not None else 0)
        return self.reply_s + moved / self.transfer_bytes_per_s


class ProcessHandle(Protocol):
    """A worker process."""

    connection: Connection

    def kill(self) -> None:
        """End it by force."""

    def wait_for_exit(self, seconds: float) -> int | None:
        """Its exit status (minus the signal that killed it), or None if it runs on after so long."""

    def read_last_stderr_line(self) -> str:
        """The last line it wrote to stderr."""

    def detach(self) -> None:
        """In a forked child: let go of its pipes, and leave it to our parent."""


class ChildProcess:
    """`python -m` in a session of its own: neither Ctrl-C nor the caller's `__main__` reaches it."""

    def __init__(self, index: int, module: str = "ekc.devices.cuda.worker") -> None:
        self._stderr_file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self.connection, theirs = Pipe()
        far, self._lifeline = os.pipe()
        descriptors = (theirs.fileno(), far)
        try:
            self._process = subprocess.Popen(
                # It imports what we would: without -P, what lies in the folder we run in came first.
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
        """See `Hand`."""
        self._process.kill()

    def wait_for_exit(self, seconds: float) -> int | None:
        """See `Hand`; what belongs to an ended process is let go."""
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._close_lifeline()
        return status

    def detach(self) -> None:
        """See `Hand`."""
        self.connection.close()
        self._close_lifeline()

    def _close_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def read_last_stderr_line(self) -> str:
        """See `Hand`."""
        self._stderr_file.seek(0)
        lines = self._stderr_file.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


class RemoteWorker:
    """One GPU's worker, hired when first asked."""

    def __init__(
        self, name: str, start_worker: Callable[[], ProcessHandle], timeouts: WorkerTimeouts | None = None
    ) -> None:
        self.name, self._start_worker, self.timeouts = name, start_worker, timeouts or WorkerTimeouts()
        self._processes: list[ProcessHandle] = []
        self._timeout_s = 0.0
        self._is_reply_pending = False
        """Whether an answer has been asked for and not fetched."""
        # Not a method: that would keep this object alive, and the worker with it.
        self._finalizer = weakref.finalize(self, _end_processes, self._processes)
        detach_in_children(self)

    def query(self, request: Any, timeout_s: float | None = None) -> Any:
        """The reply. Raises `DeviceError` when the driver refuses, the worker hangs or dies."""
        self.send(request, timeout_s)
        return self.receive()

    def send(self, request: Any, timeout_s: float | None = None) -> None:
        """Send a request, whose reply is to be fetched before the next; `seconds` are for that reply."""
        self._timeout_s = self.timeouts.compute_timeout_s(request) if timeout_s is None else timeout_s
        if self._is_reply_pending:
            # Ctrl-C came before that answer was fetched: it must not be taken for the one to this question.
            _end_processes(self._processes)
        if not self._processes:
            with (
                hold_forks()
            ):  # With its pipes open in a child that knows nothing of it, it would outlive us.
                self._processes.append(self._start_process())
            self._timeout_s += self.timeouts.start_s
        self._is_reply_pending = True
        # A worker that ended since can still be read: what it said last is the reason.
        with suppress(OSError):
            self._processes[0].connection.send(request)

    def receive(self) -> Any:
        """To what was posted; see `ask`."""
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

    def detach(self) -> None:
        """In a forked child: the worker is its parent's; who asks here gets another. With its pipes open here
        it would outlive that parent."""
        self._is_reply_pending = False
        while self._processes:
            self._processes.pop().detach()

    def _start_process(self) -> ProcessHandle:
        try:
            return self._start_worker()
        except OSError as problem:
            raise DeviceError(
                f"{self.name}: its worker process cannot be started ({problem.strerror or problem}); "
                "end other processes, or see ulimit -u and ulimit -n"
            ) from problem

    def _receive_reply(self, process: ProcessHandle, timeout_s: float) -> Any:
        try:
            reply = self._wait_for_message(process, timeout_s)
            if isinstance(reply, TimingEstimate):
                reply = self._wait_for_message(process, reply.seconds + self.timeouts.reply_s)
        except (EOFError, OSError):
            status = process.wait_for_exit(EXIT_TIMEOUT_S)
            words = process.read_last_stderr_line()
            told = f"; its last words: {words}" if words else ""
            raise DeviceError(f"{self.name}: the worker {_describe_exit(status)}{told}") from None
        if isinstance(reply, DriverFault):
            raise DeviceError(f"{self.name}: {reply.reason}")
        return reply

    def _wait_for_message(self, process: ProcessHandle, timeout_s: float) -> Any:
        if not process.connection.poll(timeout_s):
            raise DeviceError(f"{self.name} hung: no answer within {timeout_s:.4g} s; its worker was killed")
        return process.connection.recv()


def _end_processes(processes: list[ProcessHandle]) -> None:
    while processes:
        hand = processes.pop()
        hand.connection.close()
        hand.kill()
        hand.wait_for_exit(EXIT_TIMEOUT_S)


def _describe_exit(status: int | None) -> str:
    if status is None:
        return "went silent"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def exit_with_parent(lifeline: int) -> None:
    """End this process when the parent is gone, even while a kernel hangs: its end of the pipe closes."""

    def watch() -> None:
        with suppress(OSError):
            os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
