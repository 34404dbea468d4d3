"""Whether a file may be continued: it is a recording, and of this device as it is now."""

from __future__ import annotations

from pathlib import Path

from ekc.devices.base import Device, PhysicalDevice
from ekc.devices.recording.members import unpack_members
from ekc.devices.recording.rows import Recording
from ekc.errors import RecordError

MATCHED_FACTS = ("name", "driver", "clock_regime", "data_policy", "arch")
"""What recording and device must have in common, beside the power cap and the GPU itself."""


def count_complete_bytes(path: Path, data: bytes) -> int:
    """How many bytes of a file are whole members. Raises `RecordError` where none are."""
    try:
        good = unpack_members(data).complete_bytes
    except ValueError as problem:
        raise RecordError(f"{path} is not a recording of ekc, or is damaged: {problem}") from None
    if not good:
        raise RecordError(f"{path} holds not even the first line of a recording: delete it or choose another")
    return good


def check_same_device(recording: Recording, device: Device) -> None:
    """Raises `RecordError` for a recording of another device."""
    told = [(name, getattr(recording.origin, name), getattr(device, name)) for name in MATCHED_FACTS]
    told.append(("power cap", recording.origin.peaks.board_power_w, device.peaks.board_power_w))
    for name, then, now in told:
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
