"""The record store of a run, and the space and the measurer of its operator on a device."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ekc.devices.device import Device
from ekc.devices.observer import Observer
from ekc.devices.recording import RecordedDevice
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.search.cost_model.features import ModelInputs
from ekc.search.data.population import ScheduleSpace
from ekc.search.database.conditions import describe_unused
from ekc.search.database.database import RecordStore, to_canonical_json
from ekc.search.loop.measure import Measurer
from ekc.search.replay.recorded_schedules import RecordedMeasurer, make_recorded_schedule_space
from ekc.search.space.evolving_space import EvolvingSpace
from ekc.search.space.space import Space
from ekc.search.space.user_structures import make_user_space


def open_record_store(device: Device, records: str | Path | None) -> RecordStore:
    """Open the record file of runs on a device; without one, a store in memory. Raises `InvalidInput` for a
    recording, on which nothing is measured, and `RecordError` for the file."""
    if isinstance(device, RecordedDevice) and records is not None:
        raise InvalidInput(f"records: {device.label} is replayed, so nothing is measured; leave them out")
    return RecordStore(records)


def open_space(
    op: Operator,
    device: Device,
    objective: str,
    store: RecordStore,
    observers: Sequence[Observer] = (),
    structures: Any = None,
    evolve: bool = False,
) -> tuple[ScheduleSpace[ModelInputs], Measurer]:
    """Open the search space of an operator and the measurer of a device; on a recording the recorded
    schedules are the space. `structures`, `evolve`: `space` and `evolve` of `ekc.tune`. Warns of stored
    figures of this device that cannot be used. Raises `InvalidInput`."""
    if isinstance(device, RecordedDevice):
        if observers:
            raise InvalidInput(
                f"observers: {device.label} is replayed, so nothing is measured; leave them out"
            )
        if structures is not None:
            raise InvalidInput(f"space: {device.label} has its recorded schedules alone; leave space out")
        if evolve:
            raise InvalidInput(f"evolve: {device.label} has its recorded schedules alone; leave evolve out")
        return make_recorded_schedule_space(op, device, objective), RecordedMeasurer(device)
    unused = describe_unused(
        store.count_schedules(operator=to_canonical_json(op.to_json()), kind="timing"), device
    )
    if unused:
        warnings.warn(
            f"records: {store.path} holds schedules of {op.name} that were timed on {device.label}: "
            f"{unused}; they are not used, and all is measured here",
            RuntimeWarning,
            stacklevel=2,
        )
    kind = EvolvingSpace if evolve else Space
    if structures is None:
        return kind(op, device.limits), Measurer(device, store, observers=observers)
    space = make_user_space(op, device.limits, structures, kind)
    return space, Measurer(device, store, observers=observers)
