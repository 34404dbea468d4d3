"""Writing a recording: each event is in the file before the next measurement begins. A file is continued if
it is a recording of this device in its present state."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Device, Measurement, Metering, PhysicalDevice, Timing
from ekc.devices.measurement_json import measurement_to_json
from ekc.devices.recording.reader import (
    FORMAT_NAME,
    FORMAT_VERSION,
    Origin,
    Recording,
    pack_line,
    parse_recording,
    read_content,
    unpack_members,
)
from ekc.errors import RecordError
from ekc.forks import detach_in_children
from ekc.ir.schedule.schedule import Schedule
from ekc.version import __version__

MATCHED_FACTS = ("name", "driver", "clock_regime", "data_policy", "arch")
"""Facts that recording and device must share, beside the power cap and the GPU itself."""


def count_complete_bytes(path: Path, data: bytes) -> int:
    """Bytes of a file in complete members. Raises `RecordError` where there are none."""
    try:
        good = unpack_members(data).complete_bytes
    except ValueError as problem:
        raise RecordError(f"{path} is not a recording of ekc, or is damaged: {problem}") from None
    if not good:
        raise RecordError(f"{path} has no complete first line of a recording: delete it or choose another")
    return good


def check_same_device(recording: Recording, device: Device) -> None:
    """Raises `RecordError` for a recording of another device."""
    facts = [(name, getattr(recording.origin, name), getattr(device, name)) for name in MATCHED_FACTS]
    facts.append(("power cap", recording.origin.peaks.board_power_w, device.peaks.board_power_w))
    for name, then, now in facts:
        if then != now:
            raise RecordError(
                f"recording {recording.path} is of {name} {then!r}, {device.label} has {now!r}: "
                f"begin another file"
            )
    mine = device.uuids if isinstance(device, PhysicalDevice) else recording.gpu_uuids
    if others := recording.gpu_uuids.difference(mine):
        raise RecordError(
            f"recording {recording.path} is of GPU {min(others)}, {device.label} is {', '.join(mine)}: "
            f"begin another file"
        )


SAMPLE_DIGITS = 7
"""Significant digits of a sample: more than any timer or meter has."""


class RecordingWriter:
    """Appends to a recording of `device`; an existing file is continued, by one writer at a time.

    Raises `RecordError` for a file of another device, driver, clock or power cap, for one that is no
    recording, which is not changed, and for one that cannot be written.
    """

    def __init__(self, path: str | Path, device: Device) -> None:
        self._path = Path(path)
        try:
            self._file = self._path.open("ab", buffering=0)
        except OSError as problem:
            raise RecordError(f"recording {path} cannot be written: {problem.strerror}") from None
        try:
            self._lock_file()
            existing = self._read_existing(device)
            self._operators = list(existing.operator_texts) if existing else []
            self._written_digests = set(existing.by_digest) if existing else set()
            if existing is None:
                self._add_event(make_header(describe_origin(device)))
        except BaseException:
            self.close()
            raise
        detach_in_children(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. All events are already in it."""
        # Unlock explicitly: a child that was forked meanwhile shares the lock, and would keep it.
        with suppress(OSError, ValueError):
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()

    def detach(self) -> None:
        """In a forked child: the file and its lock belong to the parent."""
        self._file.close()

    def add_schedule(
        self, schedule: Schedule, structure: str, figures: Mapping[str, Any], kernel: CompiledKernel | None
    ) -> None:
        """Add a schedule before it is measured, once; `kernel` is None where it could not be compiled,
        `figures` are the result of `ekc.ir.analysis.analysis.analyse_program`."""
        if schedule.digest in self._written_digests:
            return
        data = json.loads(schedule.to_json())
        self._add_event(
            {
                "event": "schedule",
                "digest": schedule.digest,
                "operator": self._add_operator(data.pop("operator")),
                "structure": structure,
                "schedule": data,
                "figures": {name: float(value[0]) for name, value in figures.items()},
                "resources": [asdict(r) for r in kernel.resources] if kernel else [],
                "launches": _describe_launches(kernel) if kernel else [],
            }
        )
        self._written_digests.add(schedule.digest)

    def add_timing(self, schedule: Schedule, timing: Timing, repeat: int = 0) -> None:
        """Add a timing of a schedule that was added."""
        self._add_measurement("timing", schedule, timing, "samples_s", repeat)

    def add_metering(self, schedule: Schedule, metering: Metering, repeat: int = 0) -> None:
        """Add a metering of a schedule that was added."""
        self._add_measurement("metering", schedule, metering, "samples_w", repeat)

    def add_failure(self, schedule: Schedule, status: str) -> None:
        """Add the reason why a schedule has no figures."""
        self._add_event({"event": "failure", "digest": schedule.digest, "status": status})

    def add_check(self, schedule: Schedule, verdict: str) -> None:
        """Add the verdict of the correctness check."""
        self._add_event({"event": "check", "digest": schedule.digest, "verdict": verdict})

    def _add_measurement(
        self, event: str, schedule: Schedule, measurement: Measurement, samples: str, repeat: int
    ) -> None:
        values = measurement_to_json(measurement)
        values[samples] = [float(f"{x:.{SAMPLE_DIGITS}g}") for x in values[samples]]
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._add_event(
            {"event": event, "digest": schedule.digest, "repeat": repeat, "created": now, event: values}
        )

    def _add_operator(self, data: Any) -> int:
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        if text not in self._operators:
            self._add_event({"event": "operator", "operator": data})
            self._operators.append(text)
        return self._operators.index(text)

    def _add_event(self, event: Mapping[str, Any]) -> None:
        member = pack_line(json.dumps(event, separators=(",", ":")).encode() + b"\n")
        try:
            self._append_member(member)
        except OSError as problem:
            raise RecordError(f"recording {self._path} cannot be written: {problem.strerror}") from None

    def _append_member(self, member: bytes) -> None:
        """Append a member completely or not at all."""
        before = os.fstat(self._file.fileno())
        if not before.st_nlink:
            raise OSError(errno.ENOENT, "it was deleted meanwhile")
        try:
            if self._file.write(member) != len(member):
                # A full disk takes a part of the bytes without an error.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with suppress(OSError):
                self._file.truncate(before.st_size)
            raise

    def _lock_file(self) -> None:
        """Lock the file: two writers would number operators alike. Some file systems have no locks."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordError(
                f"recording {self._path} is being written already: wait, or record to another file"
            ) from None
        except OSError:
            return

    def _read_existing(self, device: Device) -> Recording | None:
        """The existing recording; None for an empty file. An event that was cut short is removed, but only
        from a recording of this device."""
        data = read_content(self._path)
        if not data:
            return None
        good = count_complete_bytes(self._path, data)
        existing = parse_recording(self._path, data[:good])
        check_same_device(existing, device)
        if good < len(data):
            self._file.truncate(good)
        return existing


def describe_origin(device: Device) -> Origin:
    """Origin of a recording of a device that begins now."""
    facts: dict[str, Any] = {
        "ekc_version": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return Origin(**{x.name: getattr(device, x.name) for x in fields(Origin) if x.name not in facts}, **facts)


def make_header(origin: Origin) -> dict[str, Any]:
    """First line of a file."""
    facts = dict(vars(origin))
    facts["limits"] = asdict(origin.limits)
    facts["peaks"] = vars(origin.peaks) | {"flops_by_type": dict(origin.peaks.flops_by_type)}
    written = {name: facts.pop(name) for name in ("ekc_version", "created")}
    return {"format": FORMAT_NAME, "version": FORMAT_VERSION, **written, "device": facts}


def _describe_launches(kernel: CompiledKernel) -> list[dict[str, Any]]:
    facts = ("name", "grid", "block", "shared_bytes")
    return [{fact: getattr(launch, fact) for fact in facts} for launch in kernel.launches]
