"""The user's request: objective, slowdown budget, GPUs and how to set their clocks. No NumPy is imported,
since the job has not started yet."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ekc.argument_checks import format_value, is_number
from ekc.errors import InvalidInput
from ekc.governor.protocols import Settings

OBJECTIVES = ("energy", "edp", "ed2p", "speed")


@dataclass(frozen=True)
class Policy:
    """Objective and budget of a job.

    `energy`: least joules per step within `max_slowdown`. `edp`, `ed2p`: least joules times seconds, or
    seconds squared, per step. `speed`: fewest seconds per step that still save `min_saving` of the joules.
    """

    objective: str = "energy"
    max_slowdown: float = 0.05
    """Largest slowdown as a share of the default's time per step (0.05: 5 % slower), for `energy` only."""
    min_saving: float = 0.05
    """Least saving, as a share of the default's joules per step. Limits `speed` only."""
    remaining_s: float | None = None
    """Remaining seconds of the job; None to expect that it runs as long again as it has."""

    def __post_init__(self) -> None:
        if not isinstance(self.objective, str) or self.objective not in OBJECTIVES:
            given = format_value(self.objective)
            raise InvalidInput(f"objective: no objective {given}; objectives are {', '.join(OBJECTIVES)}")
        if not is_number(self.max_slowdown) or not 0 <= self.max_slowdown <= 1:
            raise InvalidInput(
                f"max_slowdown: {_format_value(self.max_slowdown)}, from 0 to 1; 0.05 is 5 % slower"
            )
        if not is_number(self.min_saving) or not 0 <= self.min_saving < 1:
            raise InvalidInput(
                f"min_saving: {_format_value(self.min_saving)}, from 0 to below 1; 0.05 is 5 % of the joules"
            )
        left_s = self.remaining_s
        if left_s is not None and not (is_number(left_s) and 0 <= left_s < math.inf):
            raise InvalidInput(
                f"remaining_s: {_format_value(left_s)}, finite seconds from 0; leave it out if unknown"
            )


def _format_value(value: object) -> str:
    """A number in its shortest form; other values as messages show them."""
    return f"{value:g}" if isinstance(value, (int, float)) and is_number(value) else format_value(value)


ACTUATORS = ("auto", "nvml", "daemon", "zeusd")


@dataclass(frozen=True)
class PlannedClock:
    """The clock of a plan that was made before, for the kernels of a model on one kind of board."""

    device: str
    """Name of the board, as the plan has it: "a100", or a product name."""
    clock_mhz: int
    slowdown: float
    """Slowdown that the plan expects, as a share."""
    saving: float
    """Share of the energy that the plan expects to save."""

    def is_for(self, product_name: str) -> bool:
        """Whether a board of this product name is one that the plan was made for."""
        name, product = ("".join(filter(str.isalnum, x.lower())) for x in (self.device, product_name))
        return name in product


@dataclass(frozen=True)
class GovernorRequest:
    """How a real job is to be governed. Raises `InvalidInput` for an unknown actuator."""

    policy: Policy
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs; empty for those that the job uses."""
    gpus_of: int | None = None
    """Process whose descendants use the GPUs; by default the job itself."""
    actuator: str = "auto"
    """`auto`, `nvml`, `daemon` or `zeusd`."""
    advise: bool = False
    """Whether to set nothing and only report what would be set."""
    each: bool = False
    """Whether each GPU has its own control loop; otherwise one loop sets all of them alike."""
    previous_settings: Settings | None = None
    """Clock limits that are in force already; NVML cannot read them."""
    plan: PlannedClock | None = None
    """A clock to hold for the whole job instead of a search; the policy is not used then."""

    def __post_init__(self) -> None:
        if not isinstance(self.actuator, str) or self.actuator not in ACTUATORS:
            given = format_value(self.actuator)
            raise InvalidInput(f"--actuator: no actuator {given}; actuators are {', '.join(ACTUATORS)}")
