"""What a session governs: the GPUs of a job, each for itself or all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekc.devices.lease import Keeper
from ekc.devices.limits.nvml_board import NvmlBoard
from ekc.governor.live.group import GroupActuator, GroupProbe, common_gears
from ekc.governor.live.session import Unit
from ekc.governor.protocols import Probe
from ekc.governor.sets_nothing import SetsNothing

ProbeOf = Callable[[str], Probe]
"""Makes the probe of a GPU, named by UUID."""


def governed(keeper: Keeper, probe_of: ProbeOf, each: bool) -> list[Unit]:
    """Under lease: one unit, or with `each` one per GPU."""
    gpus = [actuator.lease.reference.gpu for actuator in keeper.actuators]
    if each or len(gpus) == 1:
        return [Unit(name(g), probe_of(g), a) for g, a in zip(gpus, keeper.actuators, strict=True)]
    return [Unit(name(*gpus), _together(gpus, probe_of), GroupActuator(keeper.actuators))]


def watched(gpus: Sequence[str], probe_of: ProbeOf, each: bool) -> list[Unit]:
    """For advice: the same, and nothing can be set."""
    if each or len(gpus) == 1:
        return [Unit(name(gpu), probe_of(gpu), SetsNothing(NvmlBoard(gpu).gears())) for gpu in gpus]
    could = common_gears([NvmlBoard(gpu).gears() for gpu in gpus])
    return [Unit(name(*gpus), _together(gpus, probe_of), SetsNothing(could))]


def name(*gpus: str) -> str:
    """For people: "GPU 0", "GPUs 0, 1"."""
    numbers = [str(NvmlBoard(gpu).index) for gpu in gpus]
    return f"GPU{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def _together(gpus: Sequence[str], probe_of: ProbeOf) -> Probe:
    return GroupProbe([probe_of(gpu) for gpu in gpus])
