"""The worker process of one GPU: it owns the CUDA context and answers one request after the other.

Any error of the driver ends the worker: a context that has seen a fault may give wrong answers from then on.
The parent starts another, by `python -m ekc.devices.cuda.worker INDEX MESSAGES LIFELINE`; the last two are
file descriptors that it inherits.

While the parent meters, the worker calls a kernel back to back until a request to stop. Two batches are
queued at any time, so that the GPU never waits for the host between calls. Batches are short, so that the GPU
stops soon after the request.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property
from multiprocessing.connection import Connection
from typing import Any

from ekc.devices.cuda.device_attributes import GpuProperties
from ekc.devices.cuda.driver import Driver, DriverError
from ekc.devices.cuda.library_kernel import LibraryKernel
from ekc.devices.cuda.loaded_kernel import LoadedKernel
from ekc.devices.cuda.messages import STOP_CALLS, TimingRules, TimingSamples, Work, WorkerRequest
from ekc.devices.cuda.timing import KernelTimer, QueueUnit
from ekc.devices.metering.meter import LEAD_IN_S, CompletedCalls
from ekc.errors import DeviceError
from ekc.processes.child import ReplyEstimate, RequestFailure, exit_with_parent

BATCH_DURATION_S = 0.01
"""Seconds of a batch: a tenth of the interval at which energy counters tick."""


def call_back_to_back(
    loaded_kernel: LoadedKernel, unit: QueueUnit, should_stop: Callable[[], bool]
) -> CompletedCalls:
    """Queue batches until `should_stop()`; the number of calls, and the GPU's time for all of them.

    Calls of the first `LEAD_IN_S` are not counted where calls follow: the clock still changes then, and with
    it the time of a call.
    """
    driver, stream = loaded_kernel.driver, loaded_kernel.stream
    repeats = unit.count_repeats(BATCH_DURATION_S)
    begin, before, after = loaded_kernel.get_events(3)
    driver.record_event(begin, stream)
    batches, is_leading = 0, True

    def queue(end: int) -> None:
        for _ in range(repeats):
            unit.queue()
        driver.record_event(end, stream)

    queue(before)
    while True:
        queue(after)
        driver.wait_for_event(before)
        batches += 1
        if is_leading and driver.elapsed_s(begin, before) >= LEAD_IN_S:
            batches, is_leading, begin, before = 0, False, before, begin
        before, after = after, before
        if should_stop():
            break
    driver.wait_for_event(before)
    return CompletedCalls((batches + 1) * repeats * unit.calls, driver.elapsed_s(begin, before))


class GpuWorker:
    """Answers the requests of one parent about one GPU."""

    def __init__(self, connection: Connection, driver: Driver, index: int) -> None:
        self._connection, self._driver, self._index = connection, driver, index

    def answer(self, request: WorkerRequest) -> Any:
        """The reply to a request: by a method of the worker, or else of the loaded kernel."""
        answering = self if hasattr(type(self), request.method) else self._loaded_kernel
        return getattr(answering, request.method)(*request.arguments)

    def describe(self) -> GpuProperties:
        """The properties of the GPU."""
        return GpuProperties.query(self._driver, self._index)

    def time(self, work: Work, rules: TimingRules) -> TimingSamples:
        """Time a kernel; a reply that takes long is announced."""
        self._loaded_kernel.load_kernel(work)
        return self._timer.time(rules, lambda seconds: self._connection.send(ReplyEstimate(seconds)))

    def list_algorithms(self, kernel: LibraryKernel, count: int) -> tuple[LibraryKernel, ...] | str:
        """The algorithms that a library proposes for a call, in its order, or the reason why there are none.
        A library that is absent or refuses is no fault."""
        try:
            found = self._loaded_kernel.get_library(kernel).list_algorithms(kernel, count)
        except DeviceError as problem:
            return str(problem)
        return found or "the library proposes no algorithm"

    def call_until_stopped(self, work: Work) -> CompletedCalls:
        """Call a kernel back to back. A first reply has the seconds of work that is queued at any time, and
        still runs after the request to stop, which ends the calls; GPU events give their seconds."""
        self._loaded_kernel.load_kernel(work)
        with self._timer.prepare_unit() as unit:
            batch_s = unit.estimate_seconds(unit.count_repeats(BATCH_DURATION_S))
            self._connection.send(2 * batch_s)
            calls = call_back_to_back(self._loaded_kernel, unit, self._connection.poll)
        assert self._connection.recv() == STOP_CALLS
        return calls

    @cached_property
    def _loaded_kernel(self) -> LoadedKernel:
        """The context is made with the first kernel: describing a GPU needs none."""
        self._driver.push_context(self._index)
        return LoadedKernel(self._driver)

    @cached_property
    def _timer(self) -> KernelTimer:
        return KernelTimer(self._loaded_kernel, self.describe().l2_bytes)


def serve_requests(connection: Connection, open_driver: Callable[[], Driver], index: int) -> None:
    """Answer requests until the parent closes the connection or the driver refuses."""
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
            connection.send(RequestFailure(str(fault)))
            return


def _main(index: int, messages: int, lifeline: int) -> None:
    exit_with_parent(lifeline)
    serve_requests(Connection(messages), Driver, index)


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
