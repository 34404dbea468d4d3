"""The worker process: it owns the CUDA context, answers one request after the other, survives nothing.

Whatever the driver refuses ends it, for a context that has seen a fault may answer falsely ever after. The
parent starts another, by `python -m ekc.devices.cuda.worker INDEX MESSAGES LIFELINE`; the last two are file
descriptors that it inherits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property
from multiprocessing.connection import Connection
from typing import Any

from ekc.devices.cuda.calling import call_until, queued_s
from ekc.devices.cuda.driver import Driver, DriverError
from ekc.devices.cuda.facts import Facts
from ekc.devices.cuda.lifeline import die_with
from ekc.devices.cuda.messages import (
    Call,
    Describe,
    Execute,
    Fault,
    Outputs,
    Sample,
    Samplings,
    Started,
    Stop,
    Taking,
    Time,
)
from ekc.devices.cuda.stage import Stage
from ekc.devices.cuda.timing import Timer


class Worker:
    """Answers the requests of one parent about one GPU."""

    def __init__(self, connection: Connection, driver: Driver, index: int) -> None:
        self._connection, self._driver, self._index = connection, driver, index

    def answer(self, request: Any) -> Any:
        """The reply to a request."""
        match request:
            case Describe():
                return self._facts
            case Time(work, rules):
                self._stage.load(work)
                return self._timer.time(rules, lambda seconds: self._connection.send(Taking(seconds)))
            case Execute(work, arrays, blanks):
                return Outputs(self._stage.execute(work, arrays, blanks))
            case Sample(work, inputs, wanted):
                return Samplings(self._stage.sample(work, inputs, wanted))
            case Call(work):
                self._stage.load(work)
                with self._timer.unit() as unit:
                    self._connection.send(Started(queued_s(unit)))
                    calls = call_until(self._stage, unit, self._connection.poll)
                assert isinstance(self._connection.recv(), Stop)
                return calls
        raise AssertionError(f"a worker knows no {type(request).__name__}")

    @cached_property
    def _facts(self) -> Facts:
        return Facts.of(self._driver, self._index)

    @cached_property
    def _stage(self) -> Stage:
        """The context is made when the first kernel comes: to describe a GPU needs none."""
        self._driver.open(self._index)
        return Stage(self._driver)

    @cached_property
    def _timer(self) -> Timer:
        return Timer(self._stage, self._facts.l2_bytes)


def serve(connection: Connection, make: Callable[[], Driver], index: int) -> None:
    """Answer until the parent hangs up or the driver refuses."""
    worker: Worker | None = None
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            worker = worker or Worker(connection, make(), index)
            connection.send(worker.answer(request))
        except DriverError as fault:
            connection.send(Fault(str(fault)))
            return


def _main(index: int, messages: int, lifeline: int) -> None:
    from ekc.devices.cuda.bindings import Bindings

    die_with(lifeline)
    serve(Connection(messages), Bindings, index)


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
