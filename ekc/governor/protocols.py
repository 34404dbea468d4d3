"""Interfaces between the governor and a GPU, real or simulated: a probe measures, an actuator sets limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ekc.devices.clocks.limits import LIMITS, Limit, LimitTaken, OfferedSettings, Settings
from ekc.errors import ActuatorError, EkcError

if TYPE_CHECKING:
    from ekc.governor.samples import SensorSamples


__all__ = ["LIMITS", "Actuator", "Limit", "LimitTaken", "OfferedSettings", "Probe", "Settings"]


class Actuator(Protocol):
    """Sets the limits of one GPU. Raises `ActuatorError` with one line that says why, where it cannot."""

    @property
    def label(self) -> str:
        """Name for people, e.g. "NVML, GPU 0"; simulated ones say so."""

    @property
    def simulated(self) -> bool:
        """Whether the GPU is simulated."""

    def list_offered(self) -> OfferedSettings:
        """Values to which each limit can be set."""

    def settings(self) -> Settings:
        """Limits in force now."""

    def apply(self, settings: Settings) -> None:
        """Set all limits; None restores the previous value of a limit. Raises `LimitTaken` for one that
        others have set."""

    def taken_limits(self) -> frozenset[Limit]:
        """Limits that others have set meanwhile; they are theirs, and not in `list_offered` any more."""


class Probe(Protocol):
    """Measures one GPU and the job on it. Times are seconds on the probe's clock, virtual in a simulation."""

    @property
    def label(self) -> str:
        """Name for people, e.g. "NVML, GPU 0"; simulated ones say so."""

    @property
    def simulated(self) -> bool:
        """Whether the GPU is simulated."""

    def now(self) -> float:
        """Time in seconds on the probe's clock."""

    def record(self, seconds: float) -> SensorSamples:
        """Wait that long, less where the job ends, and return the sensor samples of that time."""

    def read_energy_j(self) -> float:
        """Total-energy counter of the board in joules."""

    def is_running(self) -> bool:
        """Whether the job is still running."""

    def read_step_count(self) -> float | None:
        """Training steps so far; None where no hooks count them."""

    def read_counters(self, seconds: float) -> dict[str, float]:
        """Mean of each of `ekc.governor.model_file.COUNTERS` over the next `seconds`, 0 to 100. Raises
        `CountersMissing`."""


class CountersMissing(EkcError):
    """Counters cannot be read: the card has none, or permission is missing."""


def is_board(name: str, product_name: str) -> bool:
    """Whether a board of this product name is one of a shorter name, such as "h200"."""
    short, product = ("".join(filter(str.isalnum, x.lower())) for x in (name, product_name))
    return short in product


class NullActuator:
    """Actuator of a job that gets advice only. `offered`: what the card has; nothing can be set."""

    label = "nothing (advice only)"

    def __init__(self, offered: OfferedSettings, simulated: bool = False) -> None:
        self.offered = offered
        self.simulated = simulated

    def list_offered(self) -> OfferedSettings:
        """No value can be set."""
        return OfferedSettings()

    def settings(self) -> Settings:
        """No limit is set."""
        return Settings()

    def taken_limits(self) -> frozenset[Limit]:
        """None is watched."""
        return frozenset()

    def apply(self, settings: Settings) -> None:
        """Raises `ActuatorError` for any limit."""
        if settings != Settings():
            raise ActuatorError(f"advice only: {settings} is not put in force")
