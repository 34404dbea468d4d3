"""Devices: open one by name, then time and meter compiled kernels on it."""

from __future__ import annotations

import difflib
import warnings
from typing import TYPE_CHECKING

from ekc.errors import DeviceError

if TYPE_CHECKING:
    from ekc.devices.device import Device

__all__ = ["open"]

DEFAULT_TARGET = "a100"
"""Device of target "auto" where there is no GPU."""
NO_RESIDUAL = "no-residual"
"""Suffix of a simulated device that follows its models exactly."""
COLD = "cold"
"""Suffix of a device whose L2 is overwritten before each timed call."""


def open(target: str = "auto") -> Device:
    """Open a device: "auto", "cuda:N" (all forms: `cuda/device.py`), a simulated GPU such as "a100", or
    "recorded:FILE". "a100@no-residual" follows its models exactly, without the seeded residual
    (docs/explanation/simulated-devices.md): kernels can be compared without chance. Timed calls find a warm
    L2, with "a100@cold" a cold one; "a100@cold@no-residual" is both.

    "auto" is the first GPU, where there is one; a warning says where that is uncertain. Raises `DeviceError`
    for an unknown device; the message names the nearest choice. Raises `RecordError` for a file that is no
    recording.
    """
    if not isinstance(target, str):
        from ekc.argument_checks import format_value

        raise DeviceError(
            f"target {format_value(target)} is not a name; choose auto, cuda:N or a simulated device"
        )
    if target.startswith("recorded:"):
        from ekc.devices.recording import RecordedDevice

        return RecordedDevice.open(target)
    if target == "cuda" or target.startswith(("cuda:", "cuda@")):
        return _open_cuda(target)
    if target == "auto":
        from ekc.devices import nvml

        found = nvml.count_gpus()
        if not isinstance(found, nvml.GpuAbsence):
            return _open_cuda("cuda:0")
        if found.is_uncertain:
            warnings.warn(f"target auto is a simulated {DEFAULT_TARGET}: {found.reason}", stacklevel=2)
    return _open_simulated(DEFAULT_TARGET if target == "auto" else target)


def _open_simulated(target: str) -> Device:
    from ekc.devices.simulated import specs
    from ekc.devices.simulated.device import SimulatedDevice

    name, *options = target.split("@")
    spec = specs.find_spec(name)
    if spec is None:
        raise DeviceError(_describe_unknown_target(target, specs.list_names()))
    if not {COLD, NO_RESIDUAL}.issuperset(options):
        choices = f"{name}, {name}@{COLD} or {name}@{NO_RESIDUAL}"
        raise DeviceError(f"unknown device {target!r}: choose {choices}")
    return SimulatedDevice(
        spec, has_residual=NO_RESIDUAL not in options, l2="cold" if COLD in options else "warm"
    )


def _open_cuda(target: str) -> Device:
    """Open a real GPU; an error says why it cannot be opened and which device to use instead."""
    from ekc.devices import nvml
    from ekc.devices.cuda.device import open_cuda, parse_target

    choice = f"or use a simulated device, such as --target {DEFAULT_TARGET}"
    try:
        target_gpus, found = parse_target(target), nvml.count_gpus()
        if isinstance(found, nvml.GpuAbsence):
            raise DeviceError(f"no device {target!r}: {found.reason}")
        target_gpus.choose_gpus(found, target)
        return open_cuda(target)
    except DeviceError as problem:
        raise DeviceError(f"{problem}; {choice}") from problem


def _describe_unknown_target(target: str, names: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(
        target.partition("@")[0].lower(), ("auto", "cuda:0", *names), n=1, cutoff=0.5
    )
    hint = f"; did you mean {close[0]!r}?" if close else ""
    choices = f"auto, cuda:N, recorded:FILE, or simulated {', '.join(names)}"
    return f"unknown device {target!r}: choose {choices}{hint}"
