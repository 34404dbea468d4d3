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

from ekc.devices.cuda.remote import Remote
from ekc.errors import DeviceError
from ekc.ir.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.serialize import operator_from_json
from ekc.search.jobs import HUNG_S, Done, Job, Shown
from ekc.search.space.part import Part

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """What names a part of a space to another process."""

    op: str
    """As JSON text."""
    limits: Limits
    number: int


class Aside:
    """Asks one part of a space of an operator in a worker, the others here. Once that worker failed, all."""

    def __init__(self, worker: Remote, op: Operator, limits: Limits, number: int) -> None:
        """`number`: of the part, the last one."""
        self._worker, self._place = worker, Place(json.dumps(op.to_json()), limits, number)
        self._shown: Shown = {}
        self._failed = self._awaited = False
        # It imports and records while we do.
        self._post(Part.prepare, ())

    def each(
        self, parts: Sequence[Part], what: Callable[..., T], given: Sequence[tuple[Any, ...]]
    ) -> list[T]:
        """What a method says of each of the parts, called with what is given for it."""
        before = self._reply()
        if before is not None:
            before.open(self._shown)
        self._post(what, given[-1])
        found = [what(part, *own) for part, own in zip(parts[:-1], given, strict=False)]
        done = self._reply()
        return [*found, what(parts[-1], *given[-1]) if done is None else done.open(self._shown)]

    def _post(self, what: Callable[..., Any], given: tuple[Any, ...]) -> None:
        if self._failed:
            return
        try:
            self._worker.post(Job(_asked, (self._place, what, *given)), HUNG_S)
            self._awaited = True
        except DeviceError as problem:
            self._close(problem)

    def _reply(self) -> Done | None:
        """None where nothing was asked, and where the worker failed, which says nothing of the genomes."""
        if not self._awaited:
            return None
        self._awaited = False
        try:
            done: Done = self._worker.reply()
        except DeviceError as problem:
            self._close(problem)
            return None
        if isinstance(done.error, MemoryError):
            self._close(done.error)
            return None
        return done

    def _close(self, problem: Exception) -> None:
        self._failed = True
        self._worker.close()
        why = str(problem) or type(problem).__name__
        warnings.warn(f"{why}; its part is done here, more slowly", RuntimeWarning, stacklevel=2)


def _asked(place: Place, what: Callable[..., T], *given: Any) -> T:
    """In the worker."""
    return what(_part(place), *given)


@cache
def _part(place: Place) -> Part:
    """Made once in a worker, which serves one run."""
    from ekc.search.space.space import Space

    return Space(operator_from_json(json.loads(place.op)), place.limits).parts[place.number]
