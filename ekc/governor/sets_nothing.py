"""An actuator that sets nothing."""

from __future__ import annotations

from ekc.errors import ActuatorError
from ekc.governor.protocols import Gears, Settings


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
