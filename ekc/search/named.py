"""Schedules on file by name: best, fastest, or a digest."""

from __future__ import annotations

from pathlib import Path

from ekc.devices.base import Device
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.ir.schedule import Schedule
from ekc.search.best import best, judged
from ekc.search.records import RecordStore

FEWEST_DIGITS = 4
"""Of a digest: fewer would be met by chance."""


def named(word: str, records: str | Path, device: Device, op: Operator | None = None) -> Schedule:
    """The schedule that a word stands for in a record file: "best" and "fastest" of an operator (of the only
    one measured on the device, if none is given), or the first digits of a digest.

    Raises `RecordError` for the file, `InvalidInput` where the word fits none, or more than one.
    """
    if word not in ("best", "fastest"):
        return _by_digest(word, records)
    op = op or _only_operator(word, records, device)
    if word == "best":
        return best(op, records, device.name).schedule
    return min(
        judged(op, records, device), key=lambda t: (t.latency_s or float("inf"), t.schedule.digest)
    ).schedule


def _only_operator(word: str, records: str | Path, device: Device) -> Operator:
    with RecordStore(records, create=False) as store:
        texts = {row.key.operator: row.schedule for row in store.rows(device=device.name, kind="metering")}
    operators = [Schedule.from_json(text).op for text in texts.values()]
    if len(operators) == 1:
        return operators[0]
    if not operators:
        raise InvalidInput(f"{word}: nothing was metered on {device.label} in {records}")
    names = "; ".join(str(op).splitlines()[0] for op in operators[:3])
    raise InvalidInput(
        f"{word}: {records} holds {len(operators)} operators ({names}{'; ...' * (len(operators) > 3)}); "
        "name one after A and B"
    )


def _by_digest(word: str, records: str | Path) -> Schedule:
    with RecordStore(records, create=False) as store:
        known = {row.key.schedule_digest: row.schedule for row in store.rows()}
    found = sorted(digest for digest in known if digest.startswith(word))
    if len(word) >= FEWEST_DIGITS and len(found) == 1:
        return Schedule.from_json(known[found[0]])
    if len(found) > 1:
        raise InvalidInput(f"{word!r} begins {len(found)} digests in {records}; give more of {found[0]}")
    raise InvalidInput(
        f"{word!r} is no schedule of {records}: give best, fastest, or {FEWEST_DIGITS} or more digits of one"
    )
