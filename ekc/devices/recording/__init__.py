"""Recordings: files of measured rows, and the device that replays one."""

from __future__ import annotations

from ekc.devices.recording.device import PREFIX, RecordedDevice
from ekc.devices.recording.reader import read
from ekc.devices.recording.rows import Origin, Recorded, Recording
from ekc.devices.recording.writer import Writer

__all__ = ["PREFIX", "Origin", "Recorded", "RecordedDevice", "Recording", "Writer", "read"]
