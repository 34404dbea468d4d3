"""Devices: open one by name, then time and meter compiled kernels on it."""

from __future__ import annotations

import difflib
import warnings
from typing import TYPE_CHECKING

from ekc.errors import DeviceError

if TYPE_CHECKING:
    from ekc.devices.base import Device

__all__ = ["open"]

DEFAULT = "a100"
"""What "auto" opens where there is no GPU."""
PLAIN = "no-residual"
"""Asks for a simulated device that does as its models explain."""


def open(target: str = "auto") -> Device:
    """A device: "auto", "cuda:N" (all forms: `cuda/target.py`), a simulated GPU such as "a100", or
    "recorded:FILE". "a100@no-residual" is one that does as its models explain, without the seeded part that
    they do not (docs/simulated-devices.md): kernels can be compared without luck.

    "auto" is the first GPU, where there is one; where nobody can tell, a warning says so. Raises
    `DeviceError` when there is no such device here; the message names the nearest choice. Raises
    `RecordError` for a file that is no recording.
    """
    if not isinstance(target, str):
        from ekc.ir.arguments import show

        raise DeviceError(f"target {show(target)} is not a name; choose auto, cuda:N or a simulated device")
    if target.startswith("recorded:"):
        from ekc.devices.recording import RecordedDevice

        return RecordedDevice.open(target)
    if target == "cuda" or target.startswith(("cuda:", "cuda@")):
        return _cuda(target)
    if target == "auto":
        from ekc.devices import nvml

        found = nvml.gpus()
        if not isinstance(found, nvml.Absent):
            return _cuda("cuda:0")
        if found.unsure:
            warnings.warn(f"target auto is a simulated {DEFAULT}: {found.reason}", stacklevel=2)
    return _simulated(DEFAULT if target == "auto" else target)


def _simulated(target: str) -> Device:
    from ekc.devices import specs
    from ekc.devices.simulated import SimulatedDevice

    name, at, how = target.partition("@")
    spec = specs.get(name)
    if spec is None:
        raise DeviceError(_unknown(target, specs.names()))
    if at and how != PLAIN:
        raise DeviceError(f"unknown device {target!r}: choose {name} or {name}@{PLAIN}")
    return SimulatedDevice(spec, residual=not at)


def _cuda(target: str) -> Device:
    """A real GPU; where it cannot be had, the line says why and what can be had."""
    from ekc.devices import nvml
    from ekc.devices.cuda.opening import open_cuda
    from ekc.devices.cuda.target import parse

    choice = f"or use a simulated device, such as --target {DEFAULT}"
    try:
        wanted, found = parse(target), nvml.gpus()
        if isinstance(found, nvml.Absent):
            raise DeviceError(f"no device {target!r}: {found.reason}")
        wanted.of(found, target)
        return open_cuda(target)
    except DeviceError as problem:
        raise DeviceError(f"{problem}; {choice}") from problem


def _unknown(target: str, names: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(
        target.partition("@")[0].lower(), ("auto", "cuda:0", *names), n=1, cutoff=0.5
    )
    hint = f"; did you mean {close[0]!r}?" if close else ""
    choices = f"auto, cuda:N, recorded:FILE, or simulated {', '.join(names)}"
    return f"unknown device {target!r}: choose {choices}{hint}"
