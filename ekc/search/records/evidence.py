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

from ekc.devices.device import Device
from ekc.devices.recording import RecordedDevice, RecordedRow
from ekc.errors import InvalidInput
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.hardware.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.search.candidate import Candidate
from ekc.search.finals import REJECTED_VERDICTS
from ekc.search.models.analysed import Quantities, make_model_inputs
from ekc.search.records.conditions import describe_counts, get_present_conditions, group_rows
from ekc.search.records.store import RecordStore, to_canonical_json
from ekc.search.records.stored import make_unanalysed_candidate, rows_to_candidates


@dataclass(frozen=True, eq=False)
class MeasuredSet:
    """Everything on file of one operator on one device."""

    source: str
    """The file."""
    candidates: tuple[Candidate, ...]
    """What was timed and works; analysed."""
    quantities: Quantities
    """Of these, by quantity: one entry per candidate."""
    failures: Mapping[str, str]
    """By digest: why a schedule teaches nothing."""
    elsewhere: str = ""
    """How many more schedules the file holds that were measured under other conditions, and under which."""

    @cached_property
    def is_metered(self) -> NDArray[np.bool_]:
        """Which of the candidates were metered."""
        return np.array([c.metered for c in self.candidates], dtype=bool)

    def exclude(self, digests: Sequence[str]) -> MeasuredSet:
        """All but some schedules."""
        kept = np.array([c.schedule.digest not in digests for c in self.candidates], dtype=bool)
        return MeasuredSet(self.source, *self.select(kept), self.failures, self.elsewhere)

    def select(self, mask: NDArray[np.bool_]) -> tuple[tuple[Candidate, ...], Quantities]:
        """Some candidates, and their figures."""
        candidates = tuple(c for c, k in zip(self.candidates, mask, strict=True) if k)
        return candidates, {name: values[mask] for name, values in self.quantities.items()}

    def find_candidate(self, schedule: Schedule) -> Candidate | None:
        """The candidate of a schedule; None where it was never timed. Raises `InvalidInput` where it
        failed."""
        if schedule.digest in self.failures:
            why = self.failures[schedule.digest].splitlines()[0]
            raise InvalidInput(f"schedule {schedule.digest} has no energy to explain; it failed: {why}")
        return next((c for c in self.candidates if c.schedule.digest == schedule.digest), None)


def load_measured_set(op: Operator, device: Device, records: str | Path | None) -> MeasuredSet:
    """From the rows of a record file that were made under the conditions here, or from the recording that the
    device is.

    Raises `RecordError` for the file, `InvalidInput` where a device that is measured comes without records,
    or a recording with some.
    """
    if isinstance(device, RecordedDevice):
        if records is not None:
            raise InvalidInput(f"records: {device.label} holds its own figures; leave --records out")
        candidates = [make_recorded_candidate(row) for row in device.recording.find_rows(op)]
        return _make_measured_set(device.recording.path, candidates, device)
    if records is None:
        raise InvalidInput(
            f"{device.label} does not tell where its energy goes, and the account is learned from what was "
            "measured there: add --records FILE, as ekc tune --records writes it"
        )
    with RecordStore(records, create=False) as store:
        groups = group_rows(store.read_rows(operator=to_canonical_json(op.to_json())))
    here = get_present_conditions(device)
    found = _make_measured_set(str(records), rows_to_candidates(groups.get(here, ())), device)
    return replace(found, elsewhere=describe_counts(groups, here))


def make_recorded_candidate(row: RecordedRow) -> Candidate:
    """A row of a recording, with all its repeats."""
    candidate = make_unanalysed_candidate(row.schedule)
    candidate.timings, candidate.meterings = list(row.timings.values()), list(row.meterings.values())
    wrong = row.checked if row.checked.startswith(REJECTED_VERDICTS) else ""
    candidate.status, candidate.checked = row.failure or wrong or "ok", row.checked
    return candidate


def _make_measured_set(source: str, candidates: Sequence[Candidate], device: Device) -> MeasuredSet:
    good = tuple(c for c in candidates if c.ok)
    failures = {c.schedule.digest: c.status for c in candidates if c.status != "ok"}
    figures = analyse_schedules([c.schedule for c in good], device.limits)
    if good:
        seen = make_model_inputs(figures, device.peaks)
        for i, c in enumerate(good):
            c.features = seen.features[i]
            c.expected_latency_s, c.expected_power_w = (
                float(seen.expected_latency_s[i]),
                float(seen.expected_power_w[i]),
            )
    return MeasuredSet(source, good, figures, failures)


def analyse_schedules(schedules: Sequence[Schedule], limits: Limits) -> Quantities:
    """The analysis of schedules, by quantity: one entry each."""
    columns = [analyse_program(s.program, limits) for s in schedules]
    return {name: np.concatenate([c[name] for c in columns]) for name in (columns[0] if columns else ())}
