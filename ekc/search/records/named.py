"""Schedules on file by name: best, fastest, or a digest; out of a record file or a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ekc.devices.base import Device
from ekc.devices.recording import RecordedDevice
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.ir.schedule import Schedule
from ekc.search.records.best import USUAL, Rule, judged
from ekc.search.records.conditions import group_rows, list_counts, present_conditions
from ekc.search.records.evidence import recorded_candidate
from ekc.search.records.store import RecordStore
from ekc.search.records.stored import read_operator
from ekc.search.result import Trial

FEWEST_DIGITS = 4
"""Of a digest: fewer would be met by chance."""


def named(
    word: str,
    records: str | Path,
    device: Device,
    op: Operator | None = None,
    rule: Rule = USUAL,
    any_toolchain: bool = False,
) -> Schedule:
    """The schedule that a word stands for in a record file: "best" and "fastest" of an operator (of the only
    one measured on the device, if none is given), or the first digits of a digest, whatever it was measured
    on. `any_toolchain`: see `best.best`.

    Raises `RecordError` for the file, `InvalidInput` where the word fits none, or more than one.
    """
    if word not in ("best", "fastest"):
        return _by_digest(word, records)
    op = op or _only_operator(word, records, device, any_toolchain)
    return _of(word, judged(op, records, device, any_toolchain), rule)


def named_in_recording(
    word: str, device: RecordedDevice, op: Operator | None = None, rule: Rule = USUAL
) -> Schedule:
    """The same of a recording."""
    recording = device.recording
    if word not in ("best", "fastest"):
        return _by_digits(word, {row.digest: row.schedule_json for row in recording.rows}, recording.path)
    if op is None:
        metered = {row.operator for row in recording.rows if row.meterings}
        op = _the_one(word, [recording.operators[n] for n in sorted(metered)], device, recording.path)
    found = [recorded_candidate(row) for row in recording.of(op)]
    trials = [c.trial() for c in found if c.ok and c.metered]
    if not trials:
        raise InvalidInput(f"{word}: no schedule of {op.name} was metered in {recording.path}")
    return _of(word, trials, rule)


def _of(word: str, trials: Sequence[Trial], rule: Rule) -> Schedule:
    best, fastest = rule.winners(trials)
    return (best if word == "best" else fastest).schedule


def _only_operator(word: str, records: str | Path, device: Device, any_toolchain: bool) -> Operator:
    with RecordStore(records, create=False) as store:
        groups = group_rows(store.rows(kind="metering"))
    here = present_conditions(device)
    rows = [row for there, some in groups.items() if any_toolchain or there.is_on(here) for row in some]
    if not rows and groups:
        raise InvalidInput(
            f"{word}: nothing was metered on {device.label} in {records}; it holds schedules that were: "
            f"{list_counts(groups, here)}; --any-toolchain takes one of the nearest"
        )
    texts = dict.fromkeys(row.key.operator for row in rows)
    return _the_one(word, [read_operator(text, records) for text in texts], device, records)


def _the_one(word: str, operators: Sequence[Operator], device: Device, file: str | Path) -> Operator:
    if len(operators) == 1:
        return operators[0]
    if not operators:
        raise InvalidInput(f"{word}: nothing was metered on {device.label} in {file}")
    names = "; ".join(str(op).splitlines()[0] for op in operators[:3])
    raise InvalidInput(
        f"{word}: {file} holds {len(operators)} operators ({names}{'; ...' * (len(operators) > 3)}); "
        "name one after A and B"
    )


def _by_digest(word: str, records: str | Path) -> Schedule:
    with RecordStore(records, create=False) as store:
        return _by_digits(word, {row.key.schedule_digest: row.schedule for row in store.rows()}, records)


def _by_digits(word: str, known: Mapping[str, str], file: str | Path) -> Schedule:
    found = sorted(digest for digest in known if digest.startswith(word))
    if len(word) >= FEWEST_DIGITS and len(found) == 1:
        return Schedule.from_json(known[found[0]])
    if len(found) > 1:
        raise InvalidInput(f"{word!r} begins {len(found)} digests in {file}; give more of {found[0]}")
    raise InvalidInput(
        f"{word!r} is no schedule of {file}: give best, fastest, or {FEWEST_DIGITS} or more digits of one"
    )
