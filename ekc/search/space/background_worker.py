"""A second process that computes one partition of a space while this process computes the other.

Breeding is many short array operations, and Python runs one of them at a time. A population is therefore
divided by structure, and one half is computed on another core.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from ekc.errors import DeviceError
from ekc.ir.hardware.target import Limits
from ekc.ir.operator import Operator, operator_from_json
from ekc.processes.child import RemoteWorker
from ekc.processes.jobs import JOB_TIMEOUT_S, JobOutcome, ShownWarnings, WorkerJob
from ekc.search.space.partition import SpacePartition, make_partition

T = TypeVar("T")


@dataclass(frozen=True)
class PartitionKey:
    """Plain values from which another process makes the same partition."""

    operator_json: str
    """JSON text of the operator."""
    limits: Limits
    """Limits of the target."""
    index: int
    """Index of the partition in the space."""


class BackgroundWorker:
    """Runs the last partition of a space in a worker process and the others here. Once the worker has failed,
    all of them run here."""

    def __init__(self, worker: RemoteWorker, op: Operator, limits: Limits, index: int) -> None:
        """`index`: index of the last partition, the one that the worker runs."""
        self._worker, self._key = worker, PartitionKey(json.dumps(op.to_json()), limits, index)
        self._shown_warnings: ShownWarnings = {}
        self._has_failed = self._is_awaiting = False
        # The worker imports modules and records its traces while this process does the same.
        self._submit(SpacePartition.record_traces, ())

    def map_partitions(
        self,
        partitions: Sequence[SpacePartition],
        method: Callable[..., T],
        arguments: Sequence[tuple[Any, ...]],
    ) -> list[T]:
        """Call a method of each partition with its own arguments; the results in order."""
        recorded = self._receive()
        if recorded is not None:
            recorded.unwrap(self._shown_warnings)
        self._submit(method, arguments[-1])
        results = [
            method(partition, *values) for partition, values in zip(partitions[:-1], arguments, strict=False)
        ]
        outcome = self._receive()
        last = (
            method(partitions[-1], *arguments[-1])
            if outcome is None
            else outcome.unwrap(self._shown_warnings)
        )
        return [*results, last]

    def _submit(self, method: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if self._has_failed:
            return
        try:
            self._worker.send(WorkerJob(_call_partition, (self._key, method, *arguments)), JOB_TIMEOUT_S)
            self._is_awaiting = True
        except DeviceError as problem:
            self._stop(problem)

    def _receive(self) -> JobOutcome | None:
        """The outcome of the submitted call; None if there was none, or if the worker process failed."""
        if not self._is_awaiting:
            return None
        self._is_awaiting = False
        try:
            outcome: JobOutcome = self._worker.receive()
        except DeviceError as problem:
            self._stop(problem)
            return None
        if isinstance(outcome.error, MemoryError):
            self._stop(outcome.error)
            return None
        return outcome

    def _stop(self, problem: Exception) -> None:
        self._has_failed = True
        self._worker.close()
        reason = str(problem) or type(problem).__name__
        warnings.warn(f"{reason}; its part is done here, more slowly", RuntimeWarning, stacklevel=2)


def _call_partition(key: PartitionKey, method: Callable[..., T], *arguments: Any) -> T:
    """Call a method of a partition; runs in the worker."""
    return method(_get_partition(key), *arguments)


@cache
def _get_partition(key: PartitionKey) -> SpacePartition:
    """The partition of a key, made once in a worker, which serves one run."""
    return make_partition(operator_from_json(json.loads(key.operator_json)), key.limits, key.index)
