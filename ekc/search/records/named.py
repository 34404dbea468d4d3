"""Schedules on file by name: best, fastest, or a digest; out of a record file or a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ekc.devices.device import Device
from ekc.devices.recording import RecordedDevice
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.search.records.best import DEFAULT_RULE, SelectionRule, load_finalists
from ekc.search.records.conditions import describe_counts, get_present_conditions, group_rows
from ekc.search.records.evidence import make_recorded_candidate
from ekc.search.records.store import RecordStore
from ekc.search.records.stored import read_operator
from ekc.search.result import Trial

MIN_DIGEST_DIGITS = 4
"""Of a digest: fewer would be met by chance."""


def find_schedule(
    word: str,
    records: str | Path,
    device: Device,
    op: Operator | None = None,
    rule: SelectionRule = DEFAULT_RULE,
    any_toolchain: bool = False,
) -> Schedule:
    """The schedule that a word stands for in a record file: "best" and "fastest" of an operator (of the only
    one measured on the device, if none is given), or the first digits of a digest, whatever it was measured
    on. `any_toolchain`: see `best.best`.

    Raises `RecordError` for the file, `InvalidInput` where the word fits none, or more than one.
    """
    if word not in ("best", "fastest"):
        return _find_by_digest(word, records)
    op = op or _find_only_operator(word, records, device, any_toolchain)
    return _select_schedule(word, load_finalists(op, records, device, any_toolchain), rule)


def find_recorded_schedule(
    word: str, device: RecordedDevice, op: Operator | None = None, rule: SelectionRule = DEFAULT_RULE
) -> Schedule:
    """The same of a recording."""
    recording = device.recording
    if word not in ("best", "fastest"):
        return _match_digest(word, {row.digest: row.schedule_json for row in recording.rows}, recording.path)
    if op is None:
        metered = {row.operator for row in recording.rows if row.meterings}
        op = _require_single_operator(
            word, [recording.operators[n] for n in sorted(metered)], device, recording.path
        )
    found = [make_recorded_candidate(row) for row in recording.find_rows(op)]
    trials = [c.to_trial() for c in found if c.ok and c.metered]
    if not trials:
        raise InvalidInput(f"{word}: no schedule of {op.name} was metered in {recording.path}")
    return _select_schedule(word, trials, rule)


def _select_schedule(word: str, trials: Sequence[Trial], rule: SelectionRule) -> Schedule:
    best, fastest = rule.select_winners(trials)
    return (best if word == "best" else fastest).schedule


def _find_only_operator(word: str, records: str | Path, device: Device, any_toolchain: bool) -> Operator:
    with RecordStore(records, create=False) as store:
        groups = group_rows(store.read_rows(kind="metering"))
    here = get_present_conditions(device)
    rows = [
        row for there, some in groups.items() if any_toolchain or there.is_same_device(here) for row in some
    ]
    if not rows and groups:
        raise InvalidInput(
            f"{word}: nothing was metered on {device.label} in {records}; it holds schedules that were: "
            f"{describe_counts(groups, here)}; --any-toolchain takes one of the nearest"
        )
    texts = dict.fromkeys(row.key.operator for row in rows)
    return _require_single_operator(word, [read_operator(text, records) for text in texts], device, records)


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


def _find_by_digest(word: str, records: str | Path) -> Schedule:
    with RecordStore(records, create=False) as store:
        return _match_digest(
            word, {row.key.schedule_digest: row.schedule for row in store.read_rows()}, records
        )


def _match_digest(word: str, schedules_by_digest: Mapping[str, str], file: str | Path) -> Schedule:
    found = sorted(digest for digest in schedules_by_digest if digest.startswith(word))
    if len(word) >= MIN_DIGEST_DIGITS and len(found) == 1:
        return Schedule.from_json(schedules_by_digest[found[0]])
    if len(found) > 1:
        raise InvalidInput(f"{word!r} begins {len(found)} digests in {file}; give more of {found[0]}")
    raise InvalidInput(
        f"{word!r} is no schedule of {file}: give best, fastest, or {MIN_DIGEST_DIGITS} or more digits of one"
    )
