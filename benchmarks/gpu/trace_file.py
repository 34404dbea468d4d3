"""Traces of a GPU's sensors under training jobs whose steps are known: gzip of one JSON object.

`format` and `version`; `device`, `simulated`, `created`; `traces`, a list of objects: `name`, `step_s` (when
each step began, on the clock of `time_s`), `sensor_s` (each power reading is a mean over so many seconds),
`reached_hz` (readings a second: fewer than asked for where they cost too much), `power_limit_w`, and by
sample `time_s`, `power_w`, `sm_util`, `memory_util` (percent), `clock_mhz`. Values that a card does
not report are NaN.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.errors import RecordError
from ekc.governor.samples import SensorSamples

KIND, VERSION = "ekc traces", 1
COLUMNS = ("time_s", "power_w", "sm_util", "memory_util", "clock_mhz")
DIGITS = 4
"""Decimal places: a tenth of a millisecond, and finer than any sensor."""


@dataclass(frozen=True)
class Trace:
    """One job."""

    name: str
    samples: SensorSamples
    step_s: NDArray[np.float64]

    @property
    def reached_hz(self) -> float:
        """Readings a second; NaN where there are not two."""
        at = self.samples.time_s
        return float((len(at) - 1) / (at[-1] - at[0])) if len(at) > 1 else float("nan")

    @property
    def period_s(self) -> float:
        """Median time of a step: one that was held up is no other period."""
        return float(np.median(np.diff(self.step_s)))


def write_traces(path: Path, device: str, simulated: bool, created: str, traces: Sequence[Trace]) -> None:
    """Write all traces in one step."""
    data = {
        "format": KIND,
        "version": VERSION,
        **{"device": device, "simulated": simulated, "created": created},
        "traces": [_to_json(trace) for trace in traces],
    }
    aside = path.with_name(f".{path.name}")
    aside.write_bytes(gzip.compress(json.dumps(data).encode(), mtime=0))
    aside.replace(path)


def read_traces(path: Path) -> tuple[dict[str, Any], list[Trace]]:
    """(header, traces). Raises `RecordError`."""
    try:
        data = json.loads(gzip.decompress(path.read_bytes()))
    except OSError as problem:
        raise RecordError(f"{path} cannot be read: {problem.strerror or problem}") from None
    except (ValueError, EOFError) as problem:
        raise RecordError(f"{path} is no file of traces: {problem}") from None
    if not isinstance(data, dict) or data.get("format") != KIND:
        raise RecordError(f"{path} is no file of traces: it does not say {KIND!r}")
    if data["version"] != VERSION:
        raise RecordError(f"{path} holds traces of version {data['version']}; this reads {VERSION}")
    return data, [_from_json(one) for one in data.pop("traces")]


def _to_json(trace: Trace) -> dict[str, Any]:
    samples = trace.samples
    columns = {name: np.round(getattr(samples, name), DIGITS).tolist() for name in COLUMNS}
    return {
        "name": trace.name,
        "step_s": np.round(trace.step_s, DIGITS).tolist(),
        "sensor_s": samples.sensor_s,
        "reached_hz": round(trace.reached_hz, DIGITS),
        "power_limit_w": samples.power_limit_w,
        **columns,
    }


def _from_json(data: dict[str, Any]) -> Trace:
    columns = (np.array(data[name], dtype=np.float64) for name in COLUMNS)
    samples = SensorSamples(*columns, data["power_limit_w"], data["sensor_s"])
    return Trace(data["name"], samples, np.array(data["step_s"], dtype=np.float64))
