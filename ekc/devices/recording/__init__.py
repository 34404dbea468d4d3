"""Recordings: files of measured rows, and the device that replays one."""

from ekc.devices.recording.reader import (
    TARGET_PREFIX,
    Origin,
    RecordedDevice,
    RecordedRow,
    Recording,
    read_recording,
)
from ekc.devices.recording.writer import RecordingWriter

__all__ = [
    "TARGET_PREFIX",
    "Origin",
    "RecordedDevice",
    "RecordedRow",
    "Recording",
    "RecordingWriter",
    "read_recording",
]
