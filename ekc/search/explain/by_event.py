"""The energy difference of two schedules on a simulated device, by the events of its model.

The account is exact, as the model of the device computed both energies from these events. On a real GPU they
are unknown: see `by_feature.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

from ekc.codegen.generate import compile_schedule
from ekc.devices.device import Device
from ekc.devices.simulated.device import EnergyBreakdown, SimulatedDevice
from ekc.errors import InvalidInput
from ekc.ir.schedule.schedule import Schedule


@dataclass(frozen=True)
class CauseEnergy:
    """Count and energy of one kind of event in both schedules."""

    cause: str
    unit: str
    count_a: float
    count_b: float
    energy_a_j: float
    energy_b_j: float

    @property
    def difference_j(self) -> float:
        """Joules of B minus joules of A for this cause."""
        return self.energy_b_j - self.energy_a_j


@dataclass(frozen=True)
class SimulatedExplanation:
    """Two schedules of one operator on one device; the lines add up to the difference of their energies."""

    device: str
    """Label of the device, such as "a100 (simulated)"."""
    a: EnergyBreakdown
    b: EnergyBreakdown
    lines: tuple[CauseEnergy, ...]
    """Causes, the largest difference first."""

    @property
    def difference_j(self) -> float:
        """Joules per call of B minus those of A."""
        return self.b.energy_j - self.a.energy_j

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        figures = ("latency_s", "power_w", "energy_j", "clock_mhz")
        a, b = ({figure: getattr(side, figure) for figure in figures} for side in (self.a, self.b))
        lines = [vars(line) | {"difference_j": line.difference_j} for line in self.lines]
        return {"a": a, "b": b, "difference_j": self.difference_j, "causes": lines}


def explain(a: Schedule, b: Schedule, device: Device) -> SimulatedExplanation:
    """Explain the energy difference of two schedules on a simulated device, cause by cause.

    Raises `InvalidInput` for schedules of different operators and for a device that is not simulated,
    `ScheduleError` for a schedule that is illegal on the device.
    """
    check_same_operator(a, b)
    if not can_explain(device):
        raise InvalidInput(f"{device.label} does not tell where its energy goes; simulated devices do")
    one, other = (device.break_down_energy(compile_schedule(s, device.arch, device.limits)) for s in (a, b))
    lines = [
        CauseEnergy(x.name, x.unit, x.count, y.count, x.joules, y.joules)
        for x, y in zip(one.causes, other.causes, strict=True)
    ]
    lines.sort(key=lambda x: -abs(x.difference_j))
    return SimulatedExplanation(device.label, one, other, tuple(lines))


def can_explain(device: Device) -> TypeGuard[SimulatedDevice]:
    """Whether a device can break down its energy; the recording of a simulated one cannot."""
    return isinstance(device, SimulatedDevice)


def check_same_operator(a: Schedule, b: Schedule) -> None:
    """Raises `InvalidInput` for schedules of different operators."""
    if a.op != b.op:
        raise InvalidInput(
            f"A is a schedule of {_format_operator(a)}, B of {_format_operator(b)}; "
            "two of one operator compare"
        )


def _format_operator(schedule: Schedule) -> str:
    return str(schedule.op).splitlines()[0]
