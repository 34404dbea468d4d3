"""A probe that writes what it samples into a book too."""

from __future__ import annotations

from collections.abc import Callable

from ekc.governor.live.book import Book
from ekc.governor.protocols import Probe
from ekc.governor.samples import Samples


class Noted:
    """The probe itself, but for `record`; `fresh` is called whenever the book has new samples."""

    def __init__(self, probe: Probe, book: Book, fresh: Callable[[Book], None]) -> None:
        self._probe = probe
        self._book = book
        self._fresh = fresh
        self.label = probe.label
        self.simulated = probe.simulated
        self.now = probe.now
        self.energy_j = probe.energy_j
        self.running = probe.running
        self.steps = probe.steps
        self.counters = probe.counters

    def record(self, seconds: float) -> Samples:
        """As the probe does."""
        samples = self._probe.record(seconds)
        self._book.note(samples)
        self._fresh(self._book)
        return samples
