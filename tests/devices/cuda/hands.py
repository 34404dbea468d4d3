"""Workers for tests: processes forked from the test, so that starting one costs milliseconds."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing import Pipe

from ekc.devices.cuda.driver import Driver
from ekc.devices.cuda.worker import serve


class Forked:
    """See `ekc.devices.cuda.remote.Hand`."""

    def __init__(self, make: Callable[[], Driver], index: int = 0) -> None:
        self.connection, theirs = Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(
            target=_serve, args=(self.connection, theirs, make, index), daemon=True
        )
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def ended(self, seconds: float) -> int | None:
        self._process.join(seconds)
        return self._process.exitcode

    def last_words(self) -> str:
        return ""


def _serve(ours, theirs, make: Callable[[], Driver], index: int) -> None:  # type: ignore[no-untyped-def]
    ours.close()
    serve(theirs, make, index)
