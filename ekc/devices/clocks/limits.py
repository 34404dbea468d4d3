"""What real actuators have in common: the limits of one GPU, set one by one, from any process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

Limit = Literal["sm_mhz", "memory_mhz", "power_w"]
LIMITS: Final[tuple[Limit, ...]] = ("sm_mhz", "memory_mhz", "power_w")
"""The fields of `Settings`, in the order in which they are set."""


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


@dataclass(frozen=True)
class ActuatorReference:
    """How another process opens the same actuator. No secret is in it: tokens stay in the environment."""

    kind: str
    """"nvml" or "zeusd"."""
    gpu: str
    """UUID."""
    address: str = ""
    """Of a daemon: the path of its socket, or host:port."""


class LimitSetter(Protocol):
    """The limits of one GPU. Nothing but a lease (`ekc.devices.clocks.lease`) may call `put`."""

    @property
    def label(self) -> str:
        """For people, e.g. "NVML, GPU 0"."""
        ...

    @property
    def reference(self) -> ActuatorReference:
        """How another process opens it."""
        ...

    def gears(self) -> Gears:
        """What can be set here."""
        ...

    def settings(self) -> Settings:
        """What can be read of the limits in force; clock limits cannot, and are None."""
        ...

    def check_permission(self) -> None:
        """Set something to what it is already. Raises `ActuatorError` where we may not."""
        ...

    def set_limit(self, limit: Limit, value: float | None) -> None:
        """Set one limit; None resets it to the driver's default. Raises `ActuatorError`."""
        ...
