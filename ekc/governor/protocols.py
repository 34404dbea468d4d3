"""What the governor asks of the world, real or simulated: a probe that watches, an actuator that sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ekc.devices.clocks.limits import Gears, Settings

if TYPE_CHECKING:
    from ekc.governor.samples import SensorSamples

__all__ = ["Actuator", "Gears", "Probe", "Settings"]


class Actuator(Protocol):
    """Sets the limits of one GPU. Raises `ActuatorError` where it cannot, with one line that says why."""

    @property
    def label(self) -> str:
        """For people, e.g. "NVML, GPU 0"; what is simulated says so."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether no real GPU is behind it."""
        ...

    def gears(self) -> Gears:
        """What can be set here."""
        ...

    def settings(self) -> Settings:
        """What is in force now."""
        ...

    def apply(self, settings: Settings) -> None:
        """Put all of it in force; None puts back what was in force before."""
        ...


class Probe(Protocol):
    """Watches one GPU and the job on it. Seconds are on the probe's clock; a simulation drives its own."""

    @property
    def label(self) -> str:
        """For people, e.g. "NVML, GPU 0"; what is simulated says so."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether no real GPU is behind it."""
        ...

    def now(self) -> float:
        """Seconds on the probe's clock."""
        ...

    def record(self, seconds: float) -> SensorSamples:
        """Wait that long (less where the job ends) and return what was sampled in that time."""
        ...

    def read_energy_j(self) -> float:
        """The board's total-energy counter."""
        ...

    def is_running(self) -> bool:
        """Whether the job is still there."""
        ...

    def read_step_count(self) -> float | None:
        """Training steps done so far, where hooks in the job count them."""
        ...

    def read_counters(self, seconds: float) -> dict[str, float] | None:
        """Mean counters of the next `seconds` (use of pipes, of memory; 0 to 100); None if not permitted."""
        ...
