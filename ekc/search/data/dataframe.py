"""Trials as a data frame of pandas: one row a trial, figures first, then the numbers of its Program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ekc.errors import InvalidInput
from ekc.ir.program import Program
from ekc.search.data.trial import Trial


def make_dataframe(trials: Sequence[Trial], simulated: bool) -> Any:
    """A pandas data frame with one row for each trial. Raises `InvalidInput` where pandas is missing."""
    try:
        import pandas
    except ImportError as problem:
        raise InvalidInput("to_dataframe needs pandas: pip install pandas") from problem
    columns = list_columns(trials) | {"simulated": simulated}
    decisions = [list_decisions(t.schedule.program) for t in trials]
    return pandas.concat([pandas.DataFrame(columns), pandas.DataFrame(decisions)], axis=1)


COLUMNS = {
    "structure": "structure",
    "round": "round",
    "status": "status",
    "latency_s": "latency_s",
    "latency_low_s": "latency_interval_s.low",
    "latency_high_s": "latency_interval_s.high",
    "power_w": "power_w",
    "energy_j": "energy_j",
    "energy_low_j": "energy_interval_j.low",
    "energy_high_j": "energy_interval_j.high",
    "metered": "metered",
    "clock_mhz": "clock_mhz",
    "throttle": "throttle",
    "checked": "checked",
    "simulated": "simulated",
    "digest": "digest",
}
"""Columns of trials, and the attributes that they come from."""


def list_columns(trials: Sequence[Trial]) -> dict[str, list[Any]]:
    """Values of `COLUMNS`, an entry for each trial; None where it has none. Tuples are one text."""
    return {name: [_read_attribute(t, path) for t in trials] for name, path in COLUMNS.items()}


def _read_attribute(trial: Trial, path: str) -> Any:
    value: Any = trial
    for name in path.split("."):
        value = getattr(value, name, None)
    return ", ".join(value) if isinstance(value, tuple) else value


def list_decisions(program: Program) -> dict[str, int]:
    """The numbers of a Program by name. Of a loop: its iterations (`loop.i.0`); if more than 1, those that
    are written out (`unroll.k.1`) and the copies of its shared tiles (`stages.k.0`). Of a staging: elements
    of a vector (`vector.A.shared`), in shared memory also of padding, and the chunks of a swizzle. Of an
    output: elements of a vector if more than 1 (`vector.C`), and 1 where tensor cores or atomics are used."""
    found: dict[str, Any] = {}
    for nest in program.nests:
        for loop in nest.loops:
            found[f"loop.{loop.name}"] = loop.extent
            found |= {f"unroll.{loop.name}": loop.unroll} if loop.unroll != 1 else {}
            found |= {f"stages.{loop.name}": loop.stages} if loop.stages > 1 else {}
        for one in nest.stagings:
            found[f"vector.{one.name}"] = one.vector
            if one.scope == "shared":
                found |= {f"pad.{one.name}": one.pad, f"swizzle.{one.name}": one.swizzle}
        output = nest.output.name
        found |= {f"vector.{output}": nest.store_vector} if nest.store_vector > 1 else {}
        found |= {f"tensor_cores.{output}": 1} if nest.instruction else {}
        found |= {f"atomics.{output}": 1} if nest.is_atomic else {}
    return {name: int(value) for name, value in found.items()}
