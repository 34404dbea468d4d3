"""`ekc.features`: the features of schedules as named values, with the facts of their device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ekc import devices
from ekc.argument_checks import format_value
from ekc.errors import InvalidInput
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.search.cost_model.boosted_prior import list_device_facts
from ekc.search.cost_model.feature_table import DEVICE_FACTS, FEATURE_NAMES, FEATURES, DeviceFact, Feature
from ekc.search.cost_model.features import compute_features

Values = NDArray[np.float64]


@overload
def features() -> tuple[Feature | DeviceFact, ...]: ...
@overload
def features(of: Schedule, /, *, target: str = "auto") -> dict[str, float]: ...
@overload
def features(
    of: Operator, population: Sequence[Schedule], /, *, target: str = "auto"
) -> dict[str, Values]: ...
def features(
    of: Schedule | Operator | None = None,
    population: Sequence[Schedule] | None = None,
    /,
    *,
    target: str = "auto",
) -> tuple[Feature | DeviceFact, ...] | dict[str, float] | dict[str, Values]:
    """High-level features of schedules: what the models of the search see before anything is compiled.

    >>> ekc.features(schedule, target="a100")["shared_load_wavefronts"]     # one schedule: name -> value
    >>> ekc.features(op, [schedule, other], target="a100")["dram_bytes"]    # some: name -> array [schedules]
    >>> [(f.name, f.unit, f.meaning) for f in ekc.features()]               # what they are

    The values depend on the limits of the target where they say how many blocks are resident. The names that
    begin with `device_` are facts of the target. Raises `InvalidInput` for what is no schedule or operator,
    an empty list, and schedules of another operator; `DeviceError` for an unknown target.
    """
    if of is None:
        return (*FEATURES, *DEVICE_FACTS)
    if isinstance(of, Schedule):
        return {name: float(values[0]) for name, values in _compute([of], target).items()}
    if not isinstance(of, Operator):
        raise InvalidInput(f"features: {format_value(of)} is no ekc.Schedule and no operator; give one")
    for one in population or ():
        if not isinstance(one, Schedule):
            raise InvalidInput(f"features: {format_value(one)} is no schedule; give a list of ekc.Schedule")
        if one.op != of:
            raise InvalidInput(
                f"features: a schedule of {one.op.name} is not of {of.name}; call features for each operator"
            )
    if not population:
        raise InvalidInput(f"features: no schedules of {of.name} are given; give one at least")
    return _compute(population, target)


def _compute(schedules: Sequence[Schedule], target: str) -> dict[str, Values]:
    device = devices.open(target)
    analyses = [analyse_program(s.program, device.limits) for s in schedules]
    quantities = {name: np.concatenate([a[name] for a in analyses]) for name in analyses[0]}
    values = dict(zip(FEATURE_NAMES, compute_features(quantities), strict=True))
    facts = list_device_facts(device.peaks, device.limits.sms)
    return values | {name: np.full(len(schedules), value) for name, value in facts.items()}
