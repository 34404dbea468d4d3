"""Reading a recording: gzip of JSON lines. `docs/recordings.md` describes every field.

The first line says what the file is; each further line is one event (operator, schedule, timing, metering,
failure, check), in the order they happened.
"""

from __future__ import annotations

import codecs
import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ekc.codegen.compiled import Resources
from ekc.devices.base import Metering, Timing
from ekc.devices.plain import read_as, read_metering, read_timing
from ekc.devices.recording.members import unpack
from ekc.devices.recording.rows import Figure, Origin, Recorded, Recording
from ekc.errors import RecordError
from ekc.version import __version__

KIND = "ekc recording"
VERSION = 1
"""Of the format. Raise it when a reader of today could not make sense of the file."""
STORE = b"SQLite format 3"
"""How the other kind of file begins that figures are kept in."""


def read(path: str | Path) -> Recording:
    """The whole file. A last event that was cut short (a run that was killed) is left out, with a warning.

    Raises `RecordError`, one line, for a file that is absent, no recording, of another format version, or
    damaged.
    """
    path = Path(path)
    return parsed(path, content(path))


def parsed(path: Path, data: bytes) -> Recording:
    """The recording that the bytes of a file are; likewise."""
    lines = _lines(path, data)
    origin = origin_of(path, next(lines, {}))
    return _Reading(path, origin).take(lines)


def content(path: Path) -> bytes:
    """The bytes of the file. Raises `RecordError`."""
    try:
        return path.read_bytes()
    except OSError as problem:
        raise RecordError(f"recording {path} cannot be read: {problem.strerror}{_near(path)}") from None


def _near(path: Path) -> str:
    import difflib

    names = [p.name for p in path.parent.glob("*.gz")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""


def _lines(path: Path, data: bytes) -> Iterator[dict[str, Any]]:
    if data.startswith(STORE):
        raise RecordError(f"{path} is a file of --records and no recording: --records and `ekc best` read it")
    if data.removeprefix(codecs.BOM_UTF8).startswith(b"{"):
        raise RecordError(f"{path} is not compressed, as a recording is; gzip it")
    try:
        found = unpack(data)
        if found.good < len(data) and found.text:
            warnings.warn(f"{path}: the last event was cut short and is left out", stacklevel=4)
        for number, line in enumerate(found.text.splitlines(), 1):
            event = json.loads(line)
            if not isinstance(event, dict):
                raise ValueError(f"line {number} is no JSON object")
            yield event
    except (ValueError, RecursionError) as problem:
        raise RecordError(f"{path} is not a recording of ekc, or is damaged: {problem}") from None


def origin_of(path: Path, head: Mapping[str, Any]) -> Origin:
    """Where the recording was made, from its first line. Raises `RecordError` for another format."""
    if head.get("format") != KIND:
        raise RecordError(f"{path} is not a recording of ekc: its first line does not say {KIND!r}")
    if head.get("version") != VERSION:
        raise RecordError(
            f"{path} is a recording of format {head.get('version')}; this is ekc {__version__}, which reads "
            f"format {VERSION}: record again, or use the ekc that wrote it ({head.get('ekc_version')})"
        )
    try:
        told = {name: head[name] for name in ("ekc_version", "created")}
        return read_as(Origin, {**head["device"], **told})
    except (KeyError, TypeError, ValueError) as problem:
        raise RecordError(
            f"{path} is damaged: its first line does not describe a device ({problem})"
        ) from None


class _Reading:
    """Events put together into rows."""

    def __init__(self, path: Path, origin: Origin) -> None:
        self._path, self._origin = path, origin
        self._operators: list[str] = []
        self._rows: dict[str, dict[str, Any]] = {}
        self._timings: dict[str, dict[int, Timing]] = {}
        self._meterings: dict[str, dict[int, Metering]] = {}

    def take(self, events: Iterator[dict[str, Any]]) -> Recording:
        for number, event in enumerate(events, 2):
            try:
                self._event(event)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as problem:
                told = f"{type(problem).__name__}: {problem}"
                raise RecordError(
                    f"{self._path}, line {number}: not an event of a recording ({told})"
                ) from None
        rows = tuple(self._row(digest, facts) for digest, facts in self._rows.items())
        return Recording(str(self._path), self._origin, tuple(self._operators), rows)

    def _event(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "operator":
                self._operators.append(json.dumps(event["operator"], sort_keys=True, separators=(",", ":")))
            case "schedule":
                self._schedule(event)
            case "timing":
                timing = self._of_origin(read_timing(event["timing"]))
                self._timings[event["digest"]][_count(event, "repeat")] = timing
            case "metering":
                metering = self._of_origin(read_metering(event["metering"]))
                self._meterings[event["digest"]][_count(event, "repeat")] = metering
            case "failure":
                self._rows[event["digest"]]["failure"] = _text(event, "status")
            case "check":
                self._rows[event["digest"]]["checked"] = _text(event, "verdict")
            case other:
                raise ValueError(f"there is no event {other!r}")

    def _of_origin(self, measured: Figure) -> Figure:
        """A simulated figure must not pass for a measured one, nor the other way round."""
        if measured.conditions.simulated != self._origin.simulated:
            raise ValueError(f"simulated is {measured.conditions.simulated}, the first line says otherwise")
        return measured

    def _schedule(self, event: dict[str, Any]) -> None:
        digest, number = event["digest"], _count(event, "operator")
        schedule = event["schedule"] | {"operator": json.loads(self._operators[number])}
        # In the order in which a schedule writes itself: its digest is that of the text.
        text = json.dumps({name: schedule[name] for name in ("format", "operator", "steps")})
        self._rows[digest] = {
            "operator": number,
            "structure": _text(event, "structure"),
            "schedule_json": text,
            "figures": {name: float(value) for name, value in event["figures"].items()},
            "resources": tuple(read_as(Resources, r) for r in event["resources"]),
            "launches": tuple(event["launches"]),
            "failure": "",
            "checked": "",
        }
        self._timings[digest], self._meterings[digest] = {}, {}

    def _row(self, digest: str, facts: dict[str, Any]) -> Recorded:
        return Recorded(
            digest=digest, timings=self._timings[digest], meterings=self._meterings[digest], **facts
        )


def _count(event: Mapping[str, Any], name: str) -> int:
    """A number from 0 on; a list is never indexed from its end."""
    number = event[name]
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"{name} is {number!r:.40}, which is no whole number from 0 on")
    return number


def _text(event: Mapping[str, Any], name: str) -> str:
    text = event[name]
    if not isinstance(text, str):
        raise ValueError(f"{name} is {text!r:.40}, which is no text")
    return text
