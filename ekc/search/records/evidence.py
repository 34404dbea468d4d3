"""What was measured of an operator on a device: out of a record file, or of a recording.

Each schedule comes with the figures of its analysis, so that models can learn from it what it measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ekc.devices.base import Device
from ekc.devices.recording import Recorded, RecordedDevice
from ekc.errors import InvalidInput
from ekc.ir.analysis.analysis import analyse
from ekc.ir.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.schedule import Schedule
from ekc.search.candidate import Candidate
from ekc.search.finals import REFUSED
from ekc.search.models.analysed import Figures, analysed
from ekc.search.records.conditions import group_rows, list_counts, present_conditions
from ekc.search.records.store import RecordStore, canonical_json
from ekc.search.records.stored import on_file, stored_candidates


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything on file of one operator on one device."""

    source: str
    """The file."""
    candidates: tuple[Candidate, ...]
    """What was timed and works; analysed."""
    figures: Figures
    """Of these, by quantity: one entry per candidate."""
    failures: Mapping[str, str]
    """By digest: why a schedule teaches nothing."""
    elsewhere: str = ""
    """How many more schedules the file holds that were measured under other conditions, and under which."""

    @cached_property
    def metered(self) -> NDArray[np.bool_]:
        """Which of the candidates were metered."""
        return np.array([c.metered for c in self.candidates], dtype=bool)

    def without(self, digests: Sequence[str]) -> Evidence:
        """All but some schedules."""
        kept = np.array([c.schedule.digest not in digests for c in self.candidates], dtype=bool)
        return Evidence(self.source, *self.rows(kept), self.failures, self.elsewhere)

    def rows(self, kept: NDArray[np.bool_]) -> tuple[tuple[Candidate, ...], Figures]:
        """Some candidates, and their figures."""
        candidates = tuple(c for c, k in zip(self.candidates, kept, strict=True) if k)
        return candidates, {name: values[kept] for name, values in self.figures.items()}

    def of(self, schedule: Schedule) -> Candidate | None:
        """The candidate of a schedule; None where it was never timed. Raises `InvalidInput` where it
        failed."""
        if schedule.digest in self.failures:
            why = self.failures[schedule.digest].splitlines()[0]
            raise InvalidInput(f"schedule {schedule.digest} has no energy to explain; it failed: {why}")
        return next((c for c in self.candidates if c.schedule.digest == schedule.digest), None)


def evidence(op: Operator, device: Device, records: str | Path | None) -> Evidence:
    """From the rows of a record file that were made under the conditions here, or from the recording that the
    device is.

    Raises `RecordError` for the file, `InvalidInput` where a device that is measured comes without records,
    or a recording with some.
    """
    if isinstance(device, RecordedDevice):
        if records is not None:
            raise InvalidInput(f"records: {device.label} holds its own figures; leave --records out")
        candidates = [recorded_candidate(row) for row in device.recording.of(op)]
        return _evidence(device.recording.path, candidates, device)
    if records is None:
        raise InvalidInput(
            f"{device.label} does not tell where its energy goes, and the account is learned from what was "
            "measured there: add --records FILE, as ekc tune --records writes it"
        )
    with RecordStore(records, create=False) as store:
        groups = group_rows(store.rows(operator=canonical_json(op.to_json())))
    here = present_conditions(device)
    found = _evidence(str(records), stored_candidates(groups.get(here, ())), device)
    return replace(found, elsewhere=list_counts(groups, here))


def recorded_candidate(row: Recorded) -> Candidate:
    """A row of a recording, with all its repeats."""
    candidate = on_file(row.schedule)
    candidate.timings, candidate.meterings = list(row.timings.values()), list(row.meterings.values())
    wrong = row.checked if row.checked.startswith(REFUSED) else ""
    candidate.status, candidate.checked = row.failure or wrong or "ok", row.checked
    return candidate


def _evidence(source: str, candidates: Sequence[Candidate], device: Device) -> Evidence:
    good = tuple(c for c in candidates if c.ok)
    failures = {c.schedule.digest: c.status for c in candidates if c.status != "ok"}
    figures = figures_of([c.schedule for c in good], device.limits)
    if good:
        seen = analysed(figures, device.peaks)
        for i, c in enumerate(good):
            c.row = seen.features[i]
            c.prior_latency_s, c.prior_power_w = float(seen.latency_s[i]), float(seen.power_w[i])
    return Evidence(source, good, figures, failures)


def figures_of(schedules: Sequence[Schedule], limits: Limits) -> Figures:
    """The analysis of schedules, by quantity: one entry each."""
    columns = [analyse(s.program, limits) for s in schedules]
    return {name: np.concatenate([c[name] for c in columns]) for name in (columns[0] if columns else ())}
