"""Whether a file may be continued: it is a recording, and of this device as it is now."""

from __future__ import annotations

from pathlib import Path

from ekc.devices.base import Device, OnGpus
from ekc.devices.recording.members import unpack
from ekc.devices.recording.rows import Recording
from ekc.errors import RecordError

SAME = ("name", "driver", "clock_regime", "data_policy", "arch")
"""What recording and device must have in common, beside the power cap and the GPU itself."""


def whole(path: Path, data: bytes) -> int:
    """How many bytes of a file are whole members. Raises `RecordError` where none are."""
    try:
        good = unpack(data).good
    except ValueError as problem:
        raise RecordError(f"{path} is not a recording of ekc, or is damaged: {problem}") from None
    if not good:
        raise RecordError(f"{path} holds not even the first line of a recording: delete it or choose another")
    return good


def check_same(known: Recording, device: Device) -> None:
    """Raises `RecordError` for a recording of another device."""
    told = [(name, getattr(known.origin, name), getattr(device, name)) for name in SAME]
    told.append(("power cap", known.origin.peaks.board_power_w, device.peaks.board_power_w))
    for name, then, now in told:
        if then != now:
            raise RecordError(
                f"recording {known.path} is of {name} {then!r}, {device.label} has {now!r}: "
                f"begin another file"
            )
    mine = device.uuids if isinstance(device, OnGpus) else known.gpus
    if others := known.gpus.difference(mine):
        raise RecordError(
            f"recording {known.path} is of GPU {min(others)}, {device.label} is {', '.join(mine)}: "
            f"begin another file"
        )
