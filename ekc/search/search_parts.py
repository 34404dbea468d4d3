"""The parts of a tuning run on a device or a recording: search space, measurer, forecast of the duration."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ekc.devices.device import Device
from ekc.devices.recording import RecordedDevice
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.search.cost_model.features import ModelInputs
from ekc.search.data.options import TuneOptions
from ekc.search.data.population import ScheduleSpace
from ekc.search.database.conditions import describe_unused
from ekc.search.database.database import RecordStore, to_canonical_json
from ekc.search.forecast import forecast_run
from ekc.search.loop.measure import Measurer
from ekc.search.replay.recorded_schedules import RecordedMeasurer, make_recorded_schedule_space
from ekc.search.space.space import Space


@dataclass(frozen=True)
class SearchParts:
    """Search space and measurer of a run, and the forecast of its duration."""

    space: ScheduleSpace[ModelInputs]
    measurer: Measurer
    forecast: Callable[[], str]
    """Forecasts the run as text. It compiles a few schedules."""


def open_record_store(device: Device, records: str | Path | None) -> RecordStore:
    """Open the record file of runs on a device; without one, a store in memory. Raises `InvalidInput` for a
    recording, on which nothing is measured, and `RecordError` for the file."""
    if isinstance(device, RecordedDevice) and records is not None:
        raise InvalidInput(f"records: {device.label} is replayed, so nothing is measured; leave them out")
    return RecordStore(records)


def open_search_parts(op: Operator, device: Device, options: TuneOptions, store: RecordStore) -> SearchParts:
    """Open the search space of an operator on a device; on a recording the recorded schedules are the space.
    Warns of stored figures of this device that cannot be used. Raises `InvalidInput`."""
    if isinstance(device, RecordedDevice):
        recorded = make_recorded_schedule_space(op, device, options.objective)
        forecast = f"replay of {len(recorded.rows)} recorded schedules"
        return SearchParts(recorded, RecordedMeasurer(device), lambda: forecast)
    space, measurer = Space(op, device.limits), Measurer(device, store)
    counts = store.count_schedules(operator=to_canonical_json(op.to_json()), kind="timing")
    near, far = describe_unused(counts, device)
    if near:
        warnings.warn(
            f"records: {store.path} holds schedules of {op.name} that were timed on {device.label}: "
            f"{near}; they are not used, and all is measured here",
            RuntimeWarning,
            stacklevel=2,
        )
    on_file = f"; on file: {far}" if far else ""
    return SearchParts(space, measurer, lambda: str(forecast_run(space, measurer, options)) + on_file)
