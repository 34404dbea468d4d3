"""Reads sensors again and again, in a thread of its own that takes little time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")
MAX_CORE_SHARE = 0.005
"""Of one core: where readings cost more than this, they are made less often."""
EXIT_TIMEOUT_S = 1.0
"""A driver that does not answer is not waited for longer than this."""


class SensorSampler(Generic[T]):
    """`with Sampler(read, 0.1) as sampler: ...`; then `sampler.rows`: (second of the reading, what was read).

    A reading that comes late is not made up for. What `read` raises ends the sampling and stays in `failure`.
    `due_s`: when (by `time.monotonic`) the first reading may be made; afterwards, when the next one might.
    """

    def __init__(self, read: Callable[[], T], interval_s: float, due_s: float = 0.0) -> None:
        self.rows: list[tuple[float, T]] = []
        self.failure: Exception | None = None
        self.core_s = 0.0
        """Processor time of the readings."""
        self.due_s = due_s
        self._read_start_s: float | None = None
        """Since when a reading is under way."""
        self._read, self._interval_s = read, interval_s
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ekc-sampler", daemon=True)

    def compute_pending_s(self) -> float:
        """For how long a reading has been under way."""
        asked_s = self._read_start_s
        return 0.0 if asked_s is None else time.monotonic() - asked_s

    def __enter__(self) -> SensorSampler[T]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_event.set()
        self._thread.join(max(0.0, EXIT_TIMEOUT_S - self.compute_pending_s()))

    def _run(self) -> None:
        begun = time.thread_time()
        self.due_s = max(self.due_s, time.monotonic())
        try:
            while not self._stop_event.wait(max(0.0, self.due_s - time.monotonic())):
                self._read_start_s = before = time.monotonic()
                value = self._read()
                self._read_start_s = None
                self.rows.append((0.5 * (before + time.monotonic()), value))
                self.core_s = time.thread_time() - begun
                self.due_s = max(self.due_s + self._compute_spacing_s(), time.monotonic())
        except Exception as problem:  # Whoever waits for the rows raises it.
            self.failure = problem

    def _compute_spacing_s(self) -> float:
        return max(self._interval_s, self.core_s / len(self.rows) / MAX_CORE_SHARE)
