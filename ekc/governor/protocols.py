"""What the governor asks of the world, real or simulated: a probe that watches, an actuator that sets.

An actuator that sets nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ekc.devices.clocks.limits import Gears, Settings
from ekc.errors import ActuatorError

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


class NullActuator:
    """For a job that is only watched: no gears, and whatever is asked for beyond "as it is" is refused.

    `could`: what the card could be set to, for advice.
    """

    label = "nothing (advice only)"

    def __init__(self, possible_gears: Gears, simulated: bool = False) -> None:
        self.possible_gears = possible_gears
        self.simulated = simulated

    def gears(self) -> Gears:
        """None."""
        return Gears()

    def settings(self) -> Settings:
        """As it is."""
        return Settings()

    def apply(self, settings: Settings) -> None:
        """Raises `ActuatorError` unless nothing is asked for."""
        if settings != Settings():
            raise ActuatorError(f"advice only: {settings} is not put in force")
