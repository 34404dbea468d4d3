"""Trials as a data frame of pandas: one row a trial, figures first, then the numbers of its Program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ekc.errors import InvalidInput
from ekc.ir.program import Program
from ekc.search.data.trial import Trial


def make_dataframe(trials: Iterable[Trial], simulated: bool) -> Any:
    """A pandas data frame with one row for each trial. Raises `InvalidInput` where pandas is missing."""
    try:
        import pandas
    except ImportError as problem:
        raise InvalidInput("to_dataframe needs pandas: pip install pandas") from problem
    return pandas.DataFrame([_list_columns(t, simulated) for t in trials])


def _list_columns(trial: Trial, simulated: bool) -> dict[str, Any]:
    """Values of a trial by column; numbers of its Program last."""
    latency, energy = trial.latency_interval_s, trial.energy_interval_j
    return {
        "structure": trial.structure,
        "round": trial.round,
        "status": trial.status,
        "latency_s": trial.latency_s,
        "latency_low_s": latency.low if latency else None,
        "latency_high_s": latency.high if latency else None,
        "power_w": trial.power_w,
        "energy_j": trial.energy_j,
        "energy_low_j": energy.low if energy else None,
        "energy_high_j": energy.high if energy else None,
        "metered": trial.metered,
        "clock_mhz": trial.clock_mhz,
        "throttle": ", ".join(trial.throttle),
        "checked": trial.checked,
        "simulated": simulated,
        "digest": trial.schedule.digest,
    } | list_decisions(trial.schedule.program)


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
