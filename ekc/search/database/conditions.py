"""Conditions of stored measurements: whether they are those here, and the other conditions in a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ekc.codegen.generate import describe_toolchain
from ekc.devices.device import Device

MAX_LISTED = 3
"""Conditions named in one line, at most."""


@dataclass(frozen=True)
class RecordConditions:
    """The conditions of a measurement, besides operator and schedule."""

    device: str
    simulated: bool
    clock_regime: str
    """Clock setting, such as "fixed 1410 MHz"."""
    data_policy: str
    driver: str
    """Version of the driver, or of the simulator."""
    nvrtc: str
    """Versions of NVRTC and of the generator, from `codegen.generate.describe_toolchain`."""

    def __str__(self) -> str:
        return ", ".join([self.label, *self._describe_parts().values()])

    @property
    def label(self) -> str:
        """Name of the device, with "(simulated)" if it is."""
        return f"{self.device}{' (simulated)' if self.simulated else ''}"

    def is_same_device(self, other: RecordConditions) -> bool:
        """Whether the device is the same."""
        return (self.device, self.simulated) == (other.device, other.simulated)

    def compute_agreement(self, other: RecordConditions) -> tuple[bool, ...]:
        """Compute which parts are equal, the most important first. A greater tuple is nearer."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return tuple(mine == theirs for mine, theirs in pairs)

    def describe_difference(self, other: RecordConditions) -> str:
        """Describe the parts that differ from other conditions. For another device: the device and NVRTC, as
        its clocks, data and driver always differ."""
        mine, theirs = self._describe_parts(), other._describe_parts()
        if self.is_same_device(other):
            return ", ".join(text for name, text in mine.items() if text != theirs[name])
        compiler = [mine["nvrtc"]] if self.nvrtc != other.nvrtc else []
        return ", ".join([f"on {self.label}", *compiler])

    def describe_differences(self, others: Iterable[RecordConditions]) -> str:
        """Describe the parts in which any other conditions on this device differ; "" if none does."""
        theirs = [other._describe_parts() for other in others if other.is_same_device(self)]
        mine = self._describe_parts().items()
        return ", ".join(text for name, text in mine if any(other[name] != text for other in theirs))

    def _describe_parts(self) -> dict[str, str]:
        return {
            "nvrtc": f"NVRTC {self.nvrtc}",
            "driver": self.driver if self.simulated else f"driver {self.driver}",
            "clock_regime": f"clocks {self.clock_regime}",
            "data_policy": f"data {self.data_policy}",
        }


def get_present_conditions(device: Device) -> RecordConditions:
    """Return the conditions of a measurement on this device now."""
    policies = device.clock_regime, device.data_policy
    return RecordConditions(device.name, device.simulated, *policies, device.driver, describe_toolchain())


def sort_by_nearness(
    conditions: Iterable[RecordConditions], here: RecordConditions
) -> list[RecordConditions]:
    """Sort conditions by their agreement with those here, nearest first; ties by the last measurement."""
    newest_first = list(conditions)[::-1]
    return sorted(newest_first, key=lambda there: there.compute_agreement(here), reverse=True)


def describe_unused(counts: Mapping[RecordConditions, int], device: Device) -> str:
    """Describe stored schedules of a device, counted by conditions, that a run there cannot use, as they were
    measured under others; "" if some were measured under the conditions here."""
    here = get_present_conditions(device)
    near = {there: count for there, count in counts.items() if there.is_same_device(here)}
    if here in counts or not near:
        return ""
    return f"{describe_counts(near, here)}, and none with {here.describe_differences(near)}"


def describe_counts(counts: Mapping[RecordConditions, int], here: RecordConditions) -> str:
    """Describe the numbers of schedules with rows under other conditions: "40 with NVRTC 13.0, generator 3
    and 12 on h100 (simulated)"; "" if all rows were measured under those here."""
    texts = []
    for there in sort_by_nearness((c for c in counts if c != here), here):
        text = there.describe_difference(here)
        texts.append(f"{counts[there]} {text if text.startswith('on ') else f'with {text}'}")
    if len(texts) > MAX_LISTED:
        texts[MAX_LISTED - 1 :] = [f"more under {len(texts) - MAX_LISTED + 1} other conditions"]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
