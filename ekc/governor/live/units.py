"""What a session governs: the GPUs of a job, each for itself or all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.nvml_limits import NvmlLimitReader
from ekc.governor.live.group import GroupActuator, GroupProbe, intersect_gears
from ekc.governor.live.session import GovernedUnit
from ekc.governor.protocols import Probe
from ekc.governor.sets_nothing import NullActuator

ProbeFactory = Callable[[str], Probe]
"""Makes the probe of a GPU, named by UUID."""


def make_governed_units(keeper: LeaseKeeper, make_probe: ProbeFactory, each: bool) -> list[GovernedUnit]:
    """Under lease: one unit, or with `each` one per GPU."""
    gpus = [actuator.lease.reference.gpu for actuator in keeper.actuators]
    if each or len(gpus) == 1:
        return [
            GovernedUnit(format_gpu_names(g), make_probe(g), a)
            for g, a in zip(gpus, keeper.actuators, strict=True)
        ]
    return [
        GovernedUnit(
            format_gpu_names(*gpus), _make_group_probe(gpus, make_probe), GroupActuator(keeper.actuators)
        )
    ]


def make_watched_units(gpus: Sequence[str], make_probe: ProbeFactory, each: bool) -> list[GovernedUnit]:
    """For advice: the same, and nothing can be set."""
    if each or len(gpus) == 1:
        return [
            GovernedUnit(format_gpu_names(gpu), make_probe(gpu), NullActuator(NvmlLimitReader(gpu).gears()))
            for gpu in gpus
        ]
    could = intersect_gears([NvmlLimitReader(gpu).gears() for gpu in gpus])
    return [GovernedUnit(format_gpu_names(*gpus), _make_group_probe(gpus, make_probe), NullActuator(could))]


def format_gpu_names(*gpus: str) -> str:
    """For people: "GPU 0", "GPUs 0, 1"."""
    numbers = [str(NvmlLimitReader(gpu).index) for gpu in gpus]
    return f"GPU{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def _make_group_probe(gpus: Sequence[str], make_probe: ProbeFactory) -> Probe:
    return GroupProbe([make_probe(gpu) for gpu in gpus])
