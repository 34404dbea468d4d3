"""The common interface of actuators: the limits of one GPU, set one by one, from any process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

Limit = Literal["sm_mhz", "memory_mhz", "power_w"]
LIMITS: Final[tuple[Limit, ...]] = ("sm_mhz", "memory_mhz", "power_w")
"""The fields of `Settings`, in the order in which they are set."""


@dataclass(frozen=True)
class Settings:
    """Limits of one GPU, clocks as upper limits. None for a limit that keeps its previous value."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None


@dataclass(frozen=True)
class Gears:
    """Values that an actuator can set, each tuple ascending; empty for a limit that it cannot set."""

    sm_mhz: tuple[int, ...] = ()
    memory_mhz: tuple[int, ...] = ()
    power_w: tuple[float, ...] = ()


@dataclass(frozen=True)
class ActuatorReference:
    """Data with which another process opens the same actuator. No secret: tokens stay in the environment."""

    kind: str
    """"nvml", "daemon" or "zeusd"."""
    gpu: str
    """UUID of the GPU."""
    address: str = ""
    """Address of a daemon: the path of its socket, or host:port."""


class LimitSetter(Protocol):
    """Sets the limits of one GPU. Only a lease (`ekc.devices.clocks.lease`) may call `set_limit`."""

    @property
    def label(self) -> str:
        """Name for messages, e.g. "NVML, GPU 0"."""

    @property
    def reference(self) -> ActuatorReference:
        """Reference for another process."""

    def gears(self) -> Gears:
        """Values that can be set here."""

    def settings(self) -> Settings:
        """Limits in force, as far as they can be read; clock limits cannot, and are None."""

    def check_permission(self) -> None:
        """Set a limit to its present value. Raises `ActuatorError` where this process may not."""

    def set_limit(self, limit: Limit, value: float | None) -> None:
        """Set one limit; None resets it to the default of the driver. Raises `ActuatorError`."""
