"""Reads sensors again and again, in a thread of its own that takes little time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")
MOST_SHARE = 0.005
"""Of one core: where readings cost more than this, they are made less often."""
LEAVING_S = 1.0
"""A driver that does not answer is not waited for longer than this."""


class Sampler(Generic[T]):
    """`with Sampler(read, 0.1) as sampler: ...`; then `sampler.rows`: (second of the reading, what was read).

    A reading that comes late is not made up for. What `read` raises ends the sampling and stays in `failure`.
    """

    def __init__(self, read: Callable[[], T], interval_s: float) -> None:
        self.rows: list[tuple[float, T]] = []
        self.failure: Exception | None = None
        self.core_s = 0.0
        """Processor time of the readings."""
        self._read, self._interval_s = read, interval_s
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ekc-sampler", daemon=True)

    def __enter__(self) -> Sampler[T]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave.set()
        self._thread.join(LEAVING_S)

    def _run(self) -> None:
        due, begun = time.monotonic(), time.thread_time()
        try:
            while not self._leave.wait(max(0.0, due - time.monotonic())):
                before = time.monotonic()
                value = self._read()
                self.rows.append((0.5 * (before + time.monotonic()), value))
                self.core_s = time.thread_time() - begun
                due = max(due + self._spacing_s(), time.monotonic())
        except Exception as problem:  # Whoever waits for the rows raises it.
            self.failure = problem

    def _spacing_s(self) -> float:
        return max(self._interval_s, self.core_s / len(self.rows) / MOST_SHARE)
