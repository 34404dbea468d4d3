"""The limits of one GPU as values: settings, readings, what can be set, and how another process sets them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Final, Literal

from ekc.errors import ActuatorError

Limit = Literal["sm_mhz", "memory_mhz", "power_w"]
LIMITS: Final[tuple[Limit, ...]] = ("sm_mhz", "memory_mhz", "power_w")
"""The fields of `Settings`, in the order in which they are set."""
LIMIT_NAMES: Final[dict[Limit, str]] = {
    "sm_mhz": "the SM clock",
    "memory_mhz": "the memory clock",
    "power_w": "the power cap",
}
"""Names of the limits for people."""
_UNITS: Final[dict[Limit, str]] = {"sm_mhz": "whole MHz", "memory_mhz": "whole MHz", "power_w": "W"}
MAX_LIMIT = 1_000_000
"""MHz and watts that no board has."""


@dataclass(frozen=True)
class Settings:
    """Limits of one GPU, clocks as upper limits. None for a limit that keeps its previous value."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None


def parse_settings(values: Mapping[str, Any]) -> Settings:
    """Settings from a file or a message, whoever wrote it. A missing limit is None, other keys are ignored.
    Raises `ValueError` for values that are no limits."""
    found: dict[str, Any] = {limit: values.get(limit) for limit in LIMITS}
    for limit in LIMITS:
        value, kinds = found[limit], (int, float) if limit == "power_w" else (int,)
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value < MAX_LIMIT):
            raise ValueError(f"{limit} is {repr(value)[:40]}; give {_UNITS[limit]} above 0")
    return Settings(**found)


def format_settings(settings: Settings) -> str:
    """Settings for people, e.g. "SM up to 1410 MHz, cap 250 W"."""
    parts = []
    if settings.sm_mhz is not None:
        parts.append(f"SM up to {settings.sm_mhz} MHz")
    if settings.memory_mhz is not None:
        parts.append(f"memory {settings.memory_mhz} MHz")
    if settings.power_w is not None:
        parts.append(f"cap {settings.power_w:g} W")
    return ", ".join(parts) or "limits as before"


@dataclass(frozen=True)
class LimitReading:
    """Limits and clocks that a board shows at one moment; None where it shows nothing."""

    power_w: float | None
    """Power cap in force."""
    default_power_w: float | None
    sm_mhz: float | None
    """Present clock."""
    memory_mhz: float | None
    is_busy: bool
    """Whether kernels run most of the time."""
    is_throttled: bool
    """Whether the driver gives a reason for a low clock other than a clock limit, or gives no reasons."""


@dataclass(frozen=True)
class OfferedSettings:
    """Values that an actuator can set, each tuple ascending; empty for a limit that it cannot set."""

    sm_mhz: tuple[int, ...] = ()
    memory_mhz: tuple[int, ...] = ()
    power_w: tuple[float, ...] = ()


def select_offered(
    offered: OfferedSettings, lowest: Settings, highest: Settings, taken: Set[Limit]
) -> OfferedSettings:
    """Values between two settings, of the limits that others have not taken; none once others have set a
    clock."""
    if taken - {"power_w"}:
        return OfferedSettings()
    values: dict[str, Any] = {}
    for limit in LIMITS:
        low, high = getattr(lowest, limit) or 0, getattr(highest, limit)
        allowed = (x for x in getattr(offered, limit) if low <= x and (high is None or x <= high))
        values[limit] = () if limit in taken else tuple(allowed)
    return OfferedSettings(**values)


@dataclass(frozen=True)
class ActuatorReference:
    """Data with which another process opens the same actuator. No secret: tokens stay in the environment."""

    kind: str
    """"nvml", "daemon" or "zeusd"."""
    gpu: str
    """UUID of the GPU."""
    address: str = ""
    """Address of a daemon: the path of its socket, or host:port."""


class LimitTaken(ActuatorError):
    """Others have set a limit while it was governed: it is theirs from then on, and is not set any more."""
