"""Measured schedules of an operator on a device, from a record file or a recording.

`load_measured_set` reads all of them with the quantities of their analysis, for models to learn from.
`find_schedule` and `find_recorded_schedule` find one by name: "best", "fastest", or a digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import Device, Quantities
from ekc.devices.recording import RecordedDevice, RecordedRow
from ekc.errors import InvalidInput
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.search.cost_model.features import make_model_inputs
from ekc.search.data.candidate import Candidate
from ekc.search.data.result import REJECTED_VERDICTS
from ekc.search.data.selection import DEFAULT_RULE, SelectionRule
from ekc.search.database.conditions import describe_counts, get_present_conditions
from ekc.search.database.database import RecordStore, to_canonical_json
from ekc.search.database.query import (
    list_metered_operators,
    load_winners,
    make_unanalysed_candidate,
    require_schedule,
    rows_to_candidates,
)
from ekc.search.database.rows import group_rows


@dataclass(frozen=True, eq=False)
class MeasuredSet:
    """All measurements in a file of one operator on one device."""

    source: str
    """Path of the file."""
    candidates: tuple[Candidate, ...]
    """Schedules that were timed and did not fail, with their model inputs."""
    quantities: Quantities
    """Analysis of the candidates by quantity, one entry per candidate."""
    failures: Mapping[str, str]
    """Failures of the other schedules, by digest."""
    elsewhere: str = ""
    """Number and conditions of schedules in the file that were measured under other conditions."""

    @cached_property
    def is_metered(self) -> NDArray[np.bool_]:
        """Whether each candidate was metered."""
        return np.array([c.metered for c in self.candidates], dtype=bool)

    def exclude(self, digests: Sequence[str]) -> MeasuredSet:
        """Return the set without some schedules."""
        kept = np.array([c.schedule.digest not in digests for c in self.candidates], dtype=bool)
        return MeasuredSet(self.source, *self.select(kept), self.failures, self.elsewhere)

    def select(self, mask: NDArray[np.bool_]) -> tuple[tuple[Candidate, ...], Quantities]:
        """Select some candidates and their quantities."""
        candidates = tuple(c for c, k in zip(self.candidates, mask, strict=True) if k)
        return candidates, {name: values[mask] for name, values in self.quantities.items()}

    def find_candidate(self, schedule: Schedule) -> Candidate | None:
        """Find the candidate of a schedule; None if it was not timed. Raises `InvalidInput` if it failed."""
        if schedule.digest in self.failures:
            why = self.failures[schedule.digest].splitlines()[0]
            raise InvalidInput(f"schedule {schedule.digest} has no energy to explain; it failed: {why}")
        return next((c for c in self.candidates if c.schedule.digest == schedule.digest), None)


def load_measured_set(op: Operator, device: Device, records: str | Path | None) -> MeasuredSet:
    """Load the rows of a record file that were measured under the conditions here, or the recording that
    the device replays.

    Raises `RecordError` for the file, `InvalidInput` for a real device without records or a recording with
    some.
    """
    if isinstance(device, RecordedDevice):
        if records is not None:
            raise InvalidInput(f"records: {device.label} holds its own figures; leave --records out")
        candidates = [make_recorded_candidate(row) for row in device.recording.find_rows(op)]
        return make_measured_set(device.recording.path, candidates, device)
    if records is None:
        raise InvalidInput(
            f"{device.label} does not tell where its energy goes, and the account is learned from what was "
            "measured there: add --records FILE, as ekc tune --records writes it"
        )
    with RecordStore(records, create=False) as store:
        text = to_canonical_json(op.to_json())
        groups, counts = group_rows(store.read_rows(operator=text)), store.count_schedules(operator=text)
    here = get_present_conditions(device)
    found = make_measured_set(str(records), rows_to_candidates(groups.get((text, here), ())), device)
    return replace(found, elsewhere=describe_counts(counts, here))


def make_recorded_candidate(row: RecordedRow) -> Candidate:
    """Make a candidate of a row of a recording, with all its repeats."""
    candidate = make_unanalysed_candidate(row.schedule)
    candidate.timings, candidate.meterings = list(row.timings.values()), list(row.meterings.values())
    wrong = row.checked if row.checked.startswith(REJECTED_VERDICTS) else ""
    candidate.status, candidate.checked = row.failure or wrong or "ok", row.checked
    return candidate


def make_measured_set(source: str, candidates: Sequence[Candidate], device: Device) -> MeasuredSet:
    """Make the set of some candidates: analyses those that were timed."""
    good = tuple(c for c in candidates if c.ok)
    failures = {c.schedule.digest: c.status for c in candidates if c.status != "ok"}
    figures = analyse_schedules([c.schedule for c in good], device.limits)
    if good:
        inputs = make_model_inputs(figures, device.prior)
        for i, c in enumerate(good):
            c.features = inputs.features[i]
            c.expected_latency_s = float(inputs.expected_latency_s[i])
            c.expected_power_w = float(inputs.expected_power_w[i])
            c.standby_w = float(inputs.standby_w[i])
    return MeasuredSet(source, good, figures, failures)


def analyse_schedules(schedules: Sequence[Schedule], limits: LaunchLimits) -> Quantities:
    """Analyse schedules. Returns arrays by quantity, with one entry per schedule."""
    columns = [analyse_program(s.program, limits) for s in schedules]
    return {name: np.concatenate([c[name] for c in columns]) for name in (columns[0] if columns else ())}


MIN_DIGEST_DIGITS = 4
"""First digits of a digest that identify a schedule, at least."""


def find_schedule(
    word: str,
    records: str | Path,
    device: Device,
    op: Operator | None = None,
    rule: SelectionRule = DEFAULT_RULE,
    any_toolchain: bool = False,
) -> Schedule:
    """Find a schedule of a record file: the "best" or "fastest" of an operator (by default the only one
    measured on the device), or one by the first digits of its digest, on any device. `any_toolchain`: see
    `query.best`.

    Raises `RecordError` for the file, `InvalidInput` if the word fits no schedule, or more than one.
    """
    if word not in ("best", "fastest"):
        with RecordStore(records, create=False) as store:
            numbers = store.find_digests(word)
            return require_schedule(store.read_row(numbers[_match_digest(word, numbers, records)]))
    op = op or _find_only_operator(word, records, device, any_toolchain)
    best, fastest = load_winners(op, records, device, rule, any_toolchain)
    return (best if word == "best" else fastest).schedule


def find_recorded_schedule(
    word: str, device: RecordedDevice, op: Operator | None = None, rule: SelectionRule = DEFAULT_RULE
) -> Schedule:
    """Find a schedule of a recording, as `find_schedule`."""
    recording = device.recording
    if word not in ("best", "fastest"):
        rows = recording.by_digest
        return rows[_match_digest(word, rows, recording.path)].schedule
    if op is None:
        metered = sorted({row.operator for row in recording.rows if row.meterings})
        operators = [recording.operators[n] for n in metered]
        op = _require_single_operator(word, operators, device, recording.path)
    found = [make_recorded_candidate(row) for row in recording.find_rows(op)]
    trials = [c.to_trial() for c in found if c.ok and c.metered]
    if not trials:
        raise InvalidInput(f"{word}: no schedule of {op.name} was metered in {recording.path}")
    best, fastest = rule.select_winners(trials)
    return (best if word == "best" else fastest).schedule


def _find_only_operator(word: str, records: str | Path, device: Device, any_toolchain: bool) -> Operator:
    with RecordStore(records, create=False) as store:
        counts = store.count_schedules(kind="metering")
        here = get_present_conditions(device)
        wanted = [there for there in counts if any_toolchain or there.is_same_device(here)]
        operators = list_metered_operators(store, wanted)
    if not operators and counts:
        raise InvalidInput(
            f"{word}: nothing was metered on {device.label} in {records}; it holds schedules that were: "
            f"{describe_counts(counts, here)}; --any-toolchain takes one of the nearest"
        )
    return _require_single_operator(word, operators, device, records)


def _require_single_operator(
    word: str, operators: Sequence[Operator], device: Device, file: str | Path
) -> Operator:
    if len(operators) == 1:
        return operators[0]
    if not operators:
        raise InvalidInput(f"{word}: nothing was metered on {device.label} in {file}")
    names = "; ".join(str(op).splitlines()[0] for op in operators[:3])
    raise InvalidInput(
        f"{word}: {file} holds {len(operators)} operators ({names}{'; ...' * (len(operators) > 3)}); "
        "name one after A and B"
    )


def _match_digest(word: str, digests: Iterable[str], file: str | Path) -> str:
    found = sorted(digest for digest in digests if digest.startswith(word))
    if len(word) >= MIN_DIGEST_DIGITS and len(found) == 1:
        return found[0]
    if len(found) > 1:
        raise InvalidInput(f"{word!r} begins {len(found)} digests in {file}; give more of {found[0]}")
    raise InvalidInput(
        f"{word!r} is no schedule of {file}: give best, fastest, or {MIN_DIGEST_DIGITS} or more digits of one"
    )
