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

from ekc.devices.cuda.calling import call_back_to_back, compute_queued_s
from ekc.devices.cuda.driver import Driver, DriverError
from ekc.devices.cuda.facts import GpuProperties
from ekc.devices.cuda.lifeline import exit_with_parent
from ekc.devices.cuda.messages import (
    CallsStarted,
    DescribeRequest,
    DriverFault,
    ExecuteReply,
    ExecuteRequest,
    SampleReply,
    SampleRequest,
    StartCallsRequest,
    StopCallsRequest,
    TimingEstimate,
    TimingRequest,
)
from ekc.devices.cuda.stage import LoadedKernel
from ekc.devices.cuda.timing import KernelTimer


class GpuWorker:
    """Answers the requests of one parent about one GPU."""

    def __init__(self, connection: Connection, driver: Driver, index: int) -> None:
        self._connection, self._driver, self._index = connection, driver, index

    def answer(self, request: Any) -> Any:
        """The reply to a request."""
        match request:
            case DescribeRequest():
                return self._properties
            case TimingRequest(work, rules):
                self._loaded_kernel.load_kernel(work)
                return self._timer.time(rules, lambda seconds: self._connection.send(TimingEstimate(seconds)))
            case ExecuteRequest(work, arrays, blanks):
                return ExecuteReply(self._loaded_kernel.execute(work, arrays, blanks))
            case SampleRequest(work, inputs, wanted):
                return SampleReply(self._loaded_kernel.sample(work, inputs, wanted))
            case StartCallsRequest(work):
                self._loaded_kernel.load_kernel(work)
                with self._timer.prepare_unit() as unit:
                    self._connection.send(CallsStarted(compute_queued_s(unit)))
                    calls = call_back_to_back(self._loaded_kernel, unit, self._connection.poll)
                assert isinstance(self._connection.recv(), StopCallsRequest)
                return calls
        raise AssertionError(f"a worker knows no {type(request).__name__}")

    @cached_property
    def _properties(self) -> GpuProperties:
        return GpuProperties.query(self._driver, self._index)

    @cached_property
    def _loaded_kernel(self) -> LoadedKernel:
        """The context is made when the first kernel comes: to describe a GPU needs none."""
        self._driver.push_context(self._index)
        return LoadedKernel(self._driver)

    @cached_property
    def _timer(self) -> KernelTimer:
        return KernelTimer(self._loaded_kernel, self._properties.l2_bytes)


def serve_requests(connection: Connection, open_driver: Callable[[], Driver], index: int) -> None:
    """Answer until the parent hangs up or the driver refuses."""
    worker: GpuWorker | None = None
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            worker = worker or GpuWorker(connection, open_driver(), index)
            connection.send(worker.answer(request))
        except DriverError as fault:
            connection.send(DriverFault(str(fault)))
            return


def _main(index: int, messages: int, lifeline: int) -> None:
    from ekc.devices.cuda.bindings import CudaBindings

    exit_with_parent(lifeline)
    serve_requests(Connection(messages), CudaBindings, index)


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
