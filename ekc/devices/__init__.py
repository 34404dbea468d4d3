"""Devices: open one by name, then time and meter compiled kernels on it."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from ekc.errors import DeviceError

if TYPE_CHECKING:
    from ekc.devices.base import Device

__all__ = ["open"]

DEFAULT = "a100"
"""What "auto" opens where there is no GPU."""


def open(target: str = "auto") -> Device:
    """A device: "auto", "cuda:N", the name of a simulated GPU such as "a100", or "recorded:FILE".

    Raises `DeviceError` when there is no such device here; the message names the nearest choice. Raises
    `RecordError` for a file that is no recording.
    """
    from ekc.devices import specs
    from ekc.devices.simulated import SimulatedDevice

    if not isinstance(target, str):
        raise DeviceError(f"target {target!r} is not a name; choose auto, cuda:N or a simulated device")
    if target.startswith("recorded:"):
        from ekc.devices.recording import RecordedDevice

        return RecordedDevice.open(target)
    if target == "cuda" or target.startswith("cuda:"):
        raise DeviceError(_no_cuda(target))
    # This version drives no real GPU yet, so "auto" means the simulated default everywhere.
    spec = specs.get(DEFAULT if target == "auto" else target)
    if spec is None:
        raise DeviceError(_unknown(target, specs.names()))
    return SimulatedDevice(spec)


def _no_cuda(target: str) -> str:
    """Why a CUDA device cannot be opened, in one line."""
    from ekc.devices import nvml

    index = target.removeprefix("cuda").removeprefix(":") or "0"
    choice = f"use a simulated device, such as --target {DEFAULT}"
    if not index.isdecimal():
        return f"no device {target!r}: the index must be a number, as in cuda:0; or {choice}"
    found = nvml.gpus()
    if isinstance(found, nvml.Absent):
        return f"no device {target!r} here: {found.reason}; {choice}"
    if int(index) >= found:
        return f"no device {target!r} here: there are {found} GPU(s), cuda:0 to cuda:{found - 1}; {choice}"
    return f"{target!r} exists, but cuda:N devices arrive in a later version of ekc; {choice}"


def _unknown(target: str, names: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(target.lower(), ("auto", "cuda:0", *names), n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    choices = f"auto, cuda:N, recorded:FILE, or simulated {', '.join(names)}"
    return f"unknown device {target!r}: choose {choices}{hint}"
