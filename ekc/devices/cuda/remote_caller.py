"""Keeps a kernel running in the worker while the parent reads sensors."""

from __future__ import annotations

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.cuda.messages import CallsStarted, LoadableKernel, StartCallsRequest, StopCallsRequest
from ekc.devices.metering.meter import CompletedCalls
from ekc.errors import DeviceError
from ekc.processes.child import RemoteWorker


class RemoteKernelRunner:
    """A `KernelRunner` in the worker of one GPU."""

    def __init__(self, remote: RemoteWorker) -> None:
        self._remote = remote
        self._is_running = False
        self._queued_s = 0.0

    def start(self, kernel: CompiledKernel) -> None:
        """Start to call the kernel; returns when it runs. `DeviceError` when it faults."""
        started: CallsStarted = self._remote.query(StartCallsRequest(LoadableKernel.from_kernel(kernel)))
        self._is_running, self._queued_s = True, started.queued_s

    def stop(self) -> CompletedCalls:
        """Stop the calls. `DeviceError` if the kernel faulted meanwhile, or nothing was started."""
        if not self._is_running:
            raise DeviceError(f"{self._remote.name}: no kernel runs; call start() first")
        self._is_running = False
        calls: CompletedCalls = self._remote.query(
            StopCallsRequest(), self._remote.timeouts.stop_s + self._queued_s
        )
        return calls
