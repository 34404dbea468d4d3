"""What the user asked for."""

from __future__ import annotations

from dataclasses import dataclass

from ekc.arguments import format_value
from ekc.errors import InvalidInput
from ekc.governor.live.models import NO_MODEL, check_model
from ekc.governor.policy import Policy
from ekc.governor.protocols import Settings

ACTUATORS = ("auto", "nvml", "zeusd")


@dataclass(frozen=True)
class GovernorRequest:
    """How a real job is to be governed. Raises `InvalidInput` where there is no such actuator or model."""

    policy: Policy
    gpus: tuple[str, ...] = ()
    """UUIDs; empty for those that the job uses."""
    gpus_of: int | None = None
    """Process whose family's GPUs these are, if not the job."""
    actuator: str = "auto"
    advise: bool = False
    each: bool = False
    """A loop for each GPU; otherwise one for all of them together."""
    model: str = NO_MODEL
    """"none", "simulated", or a file that holds one."""
    previous_settings: Settings | None = None
    """Clock limits that hold already, since they cannot be read."""

    def __post_init__(self) -> None:
        if not isinstance(self.actuator, str) or self.actuator not in ACTUATORS:
            given = self.actuator if isinstance(self.actuator, str) else format_value(self.actuator)
            raise InvalidInput(f"--actuator {given}: it must be one of {', '.join(ACTUATORS)}")
        check_model(self.model)
