"""Recordings in the JSON that Kernel Tuner and its peers exchange: the "T4" results schema, version 1.0.0.

One object: `schema_version`, and `results`, a list with an object for each configuration tried:
`configuration` (settings by name), `times` (milliseconds; `runtimes` holds every sample), `invalidity`
("correct", "compile", "runtime", "correctness", "constraints", "timeout"), `correctness` (0 or 1),
`measurements` (name, value, unit) and `objectives` (names of measurements). Source: the results-schema.json
that Kernel Tuner ships, from github.com/odgaard/TuningSchema.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ekc.devices.recording import RecordedRow, Recording
from ekc.errors import InvalidInput
from ekc.file_limits import parse_json
from ekc.ir.operator import Operator
from ekc.search.data.result import COMPILE_FAILURE_PREFIX, REJECTED_VERDICTS
from ekc.search.replay.table_space import MeasurementTable, make_table, parse_figure

SCHEMA_VERSION = "1.0.0"
FIGURE_UNITS = {"time": "ms", "energy": "J", "power": "W"}
"""Exported measurements by name, and their units."""


def to_t4(recording: Recording, op: Operator | None = None) -> dict[str, Any]:
    """Export the rows of an operator, or of the only recorded one.

    `configuration` holds the numbers of the schedule, step by step, and the schedule itself as text, which
    others may ignore. Raises `RecordError` for an operator that is not recorded, `InvalidInput` where none of
    several is named.
    """
    if op is None:
        if len(recording.operators) != 1:
            names = "; ".join(str(one).splitlines()[0] for one in recording.operators)
            raise InvalidInput(f"{recording.path} holds several operators, name one of {names}")
        op = recording.operators[0]
    # The source of the figures is no part of the schema, which allows further keys.
    origin = {"device": recording.origin.description, "simulated": recording.origin.simulated}
    source = origin | {"operator": op.to_json(), "written_by": f"ekc {recording.origin.ekc_version}"}
    # A killed run may leave a schedule without figures, which is no failure.
    results = [_row_to_json(row) for row in recording.find_rows(op) if row.timings or row.failure]
    return {"schema_version": SCHEMA_VERSION, "results": results, "ekc": source}


def _row_to_json(row: RecordedRow) -> dict[str, Any]:
    timing = row.find_timing() if row.timings else None
    metering = row.find_metering() if row.meterings else None
    measured = []
    if timing is not None:
        measured.append(("time", 1e3 * timing.latency_s))
    if metering is not None:
        measured += [("energy", metering.energy_j), ("power", metering.power_w)]
    return {
        "configuration": _make_configuration(row),
        "times": {"runtimes": [1e3 * s for s in timing.samples_s] if timing else []},
        "invalidity": _get_invalidity(row),
        "correctness": int(not row.checked.startswith(REJECTED_VERDICTS)),
        "measurements": [{"name": n, "value": v, "unit": FIGURE_UNITS[n]} for n, v in measured],
        "objectives": ["energy" if metering else "time"],
    }


def _make_configuration(row: RecordedRow) -> dict[str, Any]:
    """Make settings by name: the structure, and each number of a step, named by step and loop or tensor."""
    found: dict[str, Any] = {"structure": row.structure}
    for number, step in enumerate(json.loads(row.schedule_json)["steps"]):
        found |= _collect_numbers(f"{number}.{step.get('step', '')}", step)
    return found | {"schedule": row.schedule_json}


def _collect_numbers(name: str, value: Any) -> dict[str, int]:
    """Collect the integers of a step by their path."""
    if isinstance(value, bool) or not isinstance(value, (int, list, dict)):
        return {}
    if isinstance(value, int):
        return {name: value}
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    return {
        path: number
        for key, part in inside
        for path, number in _collect_numbers(f"{name}.{key}", part).items()
    }


def _get_invalidity(row: RecordedRow) -> str:
    if row.checked.startswith(REJECTED_VERDICTS):
        return "correctness"
    if row.timings:
        return "correct"
    return "compile" if row.failure.startswith(COMPILE_FAILURE_PREFIX) else "runtime"


def from_t4(text: str, figure: str = "time") -> MeasurementTable:
    """Read a T4 file of any tuner as a table for `ekc.search.replay.replay`.

    figure: the measurement to minimise. Settings are the numbers of `configuration`; texts become numbers in
    the order in which they first appear; a failed result has no figure. Raises `InvalidInput` for text that
    is not T4 of a version 1, has no such measurement, or has it in several units."""
    results = _parse_results(text)
    if not results:
        raise InvalidInput("T4: the file holds no result")
    measured = [_read_figure(one, figure) for one in results]
    worked = [(value, unit) for value, unit in measured if math.isfinite(value)]
    if not worked:
        measurements = dict.fromkeys(str(m.get("name")) for one in results for m in one["measurements"])
        listed = ", ".join(measurements) or "nothing"
        raise InvalidInput(f"T4: no result that worked has a figure {figure!r} above 0; measured: {listed}")
    units = list(dict.fromkeys(unit for _, unit in worked))
    if len(units) > 1:
        raise InvalidInput(f"T4: {figure!r} comes in several units, {units[0]!r} and {units[1]!r}; keep one")
    settings = [{k: v for k, v in one["configuration"].items() if k != "schedule"} for one in results]
    names = list(dict.fromkeys(name for one in settings for name in one))
    columns = {name: _encode_column([one.get(name) for one in settings]) for name in names}
    figures = [str(value) for value, _ in measured]
    if len(results) < 2 or not names:
        raise InvalidInput("T4: there is nothing to choose; a search needs two results or more that differ")
    return replace(make_table(columns | {_FIGURE_COLUMN: figures}, names, _FIGURE_COLUMN), unit=units[0])


_FIGURE_COLUMN = " figure"
"""Column of the figures; no setting has this name."""


def _parse_results(text: str) -> list[dict[str, Any]]:
    try:
        # Some editors write a byte-order mark first.
        data = parse_json(text.removeprefix("\ufeff"))
    except ValueError as problem:
        raise InvalidInput(f"T4: not JSON ({problem})") from None
    if not isinstance(data, dict) or not isinstance(data.get("results"), list):
        raise InvalidInput("T4: the JSON needs schema_version and a list of results")
    if not re.match(r"1\.", str(data.get("schema_version"))):
        raise InvalidInput(
            f"T4: schema_version is {data.get('schema_version')!r}; this reads {SCHEMA_VERSION}"
        )
    for number, one in enumerate(data["results"]):
        if not isinstance(one, dict) or not isinstance(one.get("configuration"), dict):
            raise InvalidInput(f"T4: result {number} has no configuration")
        # Some tuners write null, or no key, if nothing was measured.
        one["measurements"] = measurements = one.get("measurements") or []
        if not isinstance(measurements, list) or any(not isinstance(m, dict) for m in measurements):
            raise InvalidInput(f"T4: measurements of result {number} are no list of objects")
    found: list[dict[str, Any]] = data["results"]
    return found


def _encode_column(values: list[Any]) -> list[str]:
    """Encode a column as numbers. Other values are numbered from 0 in the order in which they occur."""
    if all(isinstance(v, (int, float)) for v in values):
        return [str(float(v)) for v in values]
    codes: dict[str, int] = {}
    return [str(codes.setdefault(json.dumps(v), len(codes))) for v in values]


def _read_figure(result: Mapping[str, Any], name: str) -> tuple[float, str]:
    """Read a figure and its unit; NaN for a failed result."""
    found = [m for m in result["measurements"] if m.get("name") == name]
    if result.get("invalidity") != "correct" or not found:
        return float("nan"), ""
    return parse_figure(str(found[0].get("value"))), str(found[0].get("unit") or "")
