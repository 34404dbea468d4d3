"""Workers for tests, forked from one clean process that has imported everything, so that starting one takes
milliseconds. They are not forked from the test: its threads may hold a lock at that moment, which the child
would never see released."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from ekc.devices.cuda.driver import Driver
from ekc.devices.cuda.worker import serve_requests

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["__main__", "tests.scripted.cuda.faulty_driver"])


class Forked:
    """In place of `ekc.processes.child.ChildProcess`. `make` is pickled."""

    def __init__(self, make: Callable[[], Driver], index: int = 0) -> None:
        self.connection, theirs = Pipe()
        self._process = CONTEXT.Process(
            target=_serve, args=(theirs, make, index, dict(os.environ)), daemon=True
        )
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def wait_for_exit(self, seconds: float) -> int | None:
        self._process.join(seconds)
        return self._process.exitcode

    def detach(self) -> None:
        self.connection.close()

    def read_last_stderr_line(self) -> str:
        return ""


def _serve(
    theirs: Connection, make: Callable[[], Driver], index: int, environment: Mapping[str, str]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    serve_requests(theirs, make, index)
