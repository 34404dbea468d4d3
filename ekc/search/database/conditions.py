"""Conditions of stored measurements: whether they are those here, and the other conditions in a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ekc.codegen.generate import describe_toolchain
from ekc.devices.device import Device
from ekc.search.database.rows import RecordConditions

MAX_LISTED = 3
"""Conditions named in one line, at most."""


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


def describe_unused(counts: Mapping[RecordConditions, int], device: Device) -> tuple[str, str]:
    """Describe stored schedules, counted by conditions, that a run on the device cannot use: (those of this
    device under other conditions, those of other devices). Both are "" if some were measured under the
    conditions here."""
    here = get_present_conditions(device)
    if here in counts:
        return "", ""
    near = {there: count for there, count in counts.items() if there.is_same_device(here)}
    far = {there: count for there, count in counts.items() if not there.is_same_device(here)}
    needed = here.describe_differences(near)
    return (f"{describe_counts(near, here)}, and none with {needed}" if near else ""), describe_counts(
        far, here
    )


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
