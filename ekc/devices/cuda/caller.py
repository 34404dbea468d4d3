"""Keeps a kernel running in the worker while somebody in the parent reads sensors."""

from __future__ import annotations

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.cuda.messages import Call, Started, Stop, Work
from ekc.devices.cuda.remote import Remote
from ekc.devices.meter import Calls
from ekc.errors import DeviceError


class RemoteCaller:
    """A caller that lives in the worker of one GPU."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._running = False
        self._queued_s = 0.0

    def start(self, kernel: CompiledKernel) -> None:
        """Begin; back when the kernel runs. `DeviceError` when it faults."""
        started: Started = self._remote.ask(Call(Work.of(kernel)))
        self._running, self._queued_s = True, started.queued_s

    def stop(self) -> Calls:
        """End. `DeviceError` if the kernel faulted meanwhile, or nothing was started."""
        if not self._running:
            raise DeviceError(f"{self._remote.name}: no kernel is being called")
        self._running = False
        calls: Calls = self._remote.ask(Stop(), self._remote.patience.stop + self._queued_s)
        return calls
