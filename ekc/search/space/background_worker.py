"""A second process that works on one part of a space while this one works on the other.

Breeding is many short array operations, of which Python lets only one thread at a time do one. A population
is therefore divided by structure, and the other half goes where another core is.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from ekc.errors import DeviceError
from ekc.ir.hardware.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.serialize import operator_from_json
from ekc.processes.child import RemoteWorker
from ekc.processes.jobs import JOB_TIMEOUT_S, JobOutcome, ShownWarnings, WorkerJob
from ekc.search.space.partition import SpacePartition, make_partition

T = TypeVar("T")


@dataclass(frozen=True)
class PartitionKey:
    """What names a part of a space to another process."""

    operator_json: str
    """As JSON text."""
    limits: Limits
    index: int


class BackgroundWorker:
    """Asks one part of a space of an operator in a worker, the others here. Once that worker failed, all."""

    def __init__(self, worker: RemoteWorker, op: Operator, limits: Limits, index: int) -> None:
        """`number`: of the part, the last one."""
        self._worker, self._key = worker, PartitionKey(json.dumps(op.to_json()), limits, index)
        self._shown_warnings: ShownWarnings = {}
        self._has_failed = self._is_awaiting = False
        # It imports and records while we do.
        self._submit(SpacePartition.record_traces, ())

    def map_partitions(
        self,
        partitions: Sequence[SpacePartition],
        method: Callable[..., T],
        arguments: Sequence[tuple[Any, ...]],
    ) -> list[T]:
        """What a method says of each of the parts, called with what is given for it."""
        before = self._receive()
        if before is not None:
            before.unwrap(self._shown_warnings)
        self._submit(method, arguments[-1])
        found = [method(part, *own) for part, own in zip(partitions[:-1], arguments, strict=False)]
        done = self._receive()
        return [
            *found,
            method(partitions[-1], *arguments[-1]) if done is None else done.unwrap(self._shown_warnings),
        ]

    def _submit(self, method: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if self._has_failed:
            return
        try:
            self._worker.send(WorkerJob(_call_partition, (self._key, method, *arguments)), JOB_TIMEOUT_S)
            self._is_awaiting = True
        except DeviceError as problem:
            self._stop(problem)

    def _receive(self) -> JobOutcome | None:
        """None where nothing was asked, and where the worker failed, which says nothing of the genomes."""
        if not self._is_awaiting:
            return None
        self._is_awaiting = False
        try:
            done: JobOutcome = self._worker.receive()
        except DeviceError as problem:
            self._stop(problem)
            return None
        if isinstance(done.error, MemoryError):
            self._stop(done.error)
            return None
        return done

    def _stop(self, problem: Exception) -> None:
        self._has_failed = True
        self._worker.close()
        why = str(problem) or type(problem).__name__
        warnings.warn(f"{why}; its part is done here, more slowly", RuntimeWarning, stacklevel=2)


def _call_partition(key: PartitionKey, method: Callable[..., T], *arguments: Any) -> T:
    """In the worker."""
    return method(_get_partition(key), *arguments)


@cache
def _get_partition(key: PartitionKey) -> SpacePartition:
    """The partition of a key, made once in a worker, which serves one run."""
    return make_partition(operator_from_json(json.loads(key.operator_json)), key.limits, key.index)
