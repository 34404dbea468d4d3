"""What the governor asks of the world, real or simulated: a probe that watches, an actuator that sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ekc.governor.samples import Samples  # The guard of a lease lives without NumPy.


@dataclass(frozen=True)
class Settings:
    """Limits set on one GPU, clocks as upper ones; None where nothing is set, and what was before holds."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None


@dataclass(frozen=True)
class Gears:
    """What an actuator can set, each ascending; empty where it cannot set that at all."""

    sm_mhz: tuple[int, ...] = ()
    memory_mhz: tuple[int, ...] = ()
    power_w: tuple[float, ...] = ()


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

    def record(self, seconds: float) -> Samples:
        """Wait that long (less where the job ends) and return what was sampled in that time."""
        ...

    def energy_j(self) -> float:
        """The board's total-energy counter."""
        ...

    def running(self) -> bool:
        """Whether the job is still there."""
        ...

    def steps(self) -> float | None:
        """Training steps done so far, where hooks in the job count them."""
        ...

    def counters(self, seconds: float) -> dict[str, float] | None:
        """Mean counters of the next `seconds` (use of pipes, of memory; 0 to 100); None if not permitted."""
        ...
