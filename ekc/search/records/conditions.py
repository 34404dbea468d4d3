"""The conditions that rows were made under: whether they answer here, and what else a file holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ekc.codegen.generate import toolchain
from ekc.devices.base import Device
from ekc.search.records.rows import Key, Row

MOST_LISTED = 3
"""Conditions named in one line."""


@dataclass(frozen=True)
class Conditions:
    """A device and the programs that its figures depend on, besides operator and schedule."""

    device: str
    simulated: bool
    clock_regime: str
    data_policy: str
    driver: str
    nvrtc: str
    """NVRTC and generator, as `codegen.generate.toolchain` has them."""

    def __str__(self) -> str:
        return ", ".join([self.label, *self._parts().values()])

    @property
    def label(self) -> str:
        """The device, and whether it is simulated."""
        return f"{self.device}{' (simulated)' if self.simulated else ''}"

    def is_on(self, other: Conditions) -> bool:
        """Whether the device is the same."""
        return (self.device, self.simulated) == (other.device, other.simulated)

    def agreement(self, other: Conditions) -> tuple[bool, ...]:
        """Which parts are the same, the weightiest first: the greater, the nearer."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return tuple(mine == theirs for mine, theirs in pairs)

    def describe(self, other: Conditions) -> str:
        """The parts in which this differs from other conditions; clocks, data and driver of another device
        are always its own."""
        mine, theirs = self._parts(), other._parts()
        if self.is_on(other):
            return ", ".join(text for name, text in mine.items() if text != theirs[name])
        compiler = [mine["nvrtc"]] if self.nvrtc != other.nvrtc else []
        return ", ".join([f"on {self.label}", *compiler])

    def describe_against(self, others: Iterable[Conditions]) -> str:
        """The parts in which any other conditions on this device differ; "" where there are none."""
        theirs = [other._parts() for other in others if other.is_on(self)]
        return ", ".join(
            text for name, text in self._parts().items() if any(other[name] != text for other in theirs)
        )

    def _parts(self) -> dict[str, str]:
        return {
            "nvrtc": f"NVRTC {self.nvrtc}",
            "driver": self.driver if self.simulated else f"driver {self.driver}",
            "clock_regime": f"clocks {self.clock_regime}",
            "data_policy": f"data {self.data_policy}",
        }


def read_conditions(key: Key) -> Conditions:
    """Those of a row."""
    return Conditions(*(key.device, key.simulated, key.clock_regime, key.data_policy, key.driver, key.nvrtc))


def present_conditions(device: Device) -> Conditions:
    """Those that a measurement on this device would have now."""
    return Conditions(
        *(device.name, device.simulated, device.clock_regime, device.data_policy),
        *(device.driver, toolchain()),
    )


def group_rows(rows: Iterable[Row]) -> dict[Conditions, list[Row]]:
    """Rows by their conditions; those measured last come last."""
    found: dict[Conditions, list[Row]] = {}
    for row in rows:
        there = read_conditions(row.key)
        so_far = found.pop(there, [])
        so_far.append(row)
        found[there] = so_far
    return found


def order_by_nearness(found: Iterable[Conditions], here: Conditions) -> list[Conditions]:
    """The nearest first; of equally near ones the one measured last."""
    newest_first = list(found)[::-1]
    return sorted(newest_first, key=lambda there: there.agreement(here), reverse=True)


def describe_unused(groups: Mapping[Conditions, Sequence[Row]], device: Device) -> tuple[str, str]:
    """Schedules on file that a run on the device cannot use, as (those of this device under other conditions,
    those of other devices); "" for none, and for both where some were measured under the conditions here."""
    here = present_conditions(device)
    if here in groups:
        return "", ""
    near = {there: rows for there, rows in groups.items() if there.is_on(here)}
    far = {there: rows for there, rows in groups.items() if not there.is_on(here)}
    needed = here.describe_against(near)
    return (f"{list_counts(near, here)}, and none with {needed}" if near else ""), list_counts(far, here)


def list_counts(groups: Mapping[Conditions, Sequence[Row]], here: Conditions) -> str:
    """How many schedules rows of other conditions are of, such as "40 with NVRTC 13.0, generator 3 and 12 on
    h100 (simulated)"; "" where all conditions are those here."""
    texts = []
    for there in order_by_nearness((c for c in groups if c != here), here):
        schedules = len({row.key.schedule_digest for row in groups[there]})
        text = there.describe(here)
        texts.append(f"{schedules} {text if text.startswith('on ') else f'with {text}'}")
    if len(texts) > MOST_LISTED:
        texts[MOST_LISTED - 1 :] = [f"more under {len(texts) - MOST_LISTED + 1} other conditions"]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
