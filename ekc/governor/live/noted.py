"""A probe that writes what it samples into a book too."""

from __future__ import annotations

from collections.abc import Callable

from ekc.governor.live.book import GovernorLog
from ekc.governor.protocols import Probe
from ekc.governor.samples import SensorSamples


class RecordingProbe:
    """The probe itself, but for `record`; `fresh` is called whenever the book has new samples."""

    def __init__(
        self, probe: Probe, governor_log: GovernorLog, on_samples: Callable[[GovernorLog], None]
    ) -> None:
        self._probe = probe
        self._governor_log = governor_log
        self._on_samples = on_samples
        self.label = probe.label
        self.simulated = probe.simulated
        self.now = probe.now
        self.read_energy_j = probe.read_energy_j
        self.is_running = probe.is_running
        self.read_step_count = probe.read_step_count
        self.read_counters = probe.read_counters

    def record(self, seconds: float) -> SensorSamples:
        """As the probe does."""
        samples = self._probe.record(seconds)
        self._governor_log.add_samples(samples)
        self._on_samples(self._governor_log)
        return samples
