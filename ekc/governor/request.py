"""The user's request: objective, slowdown budget, power cap, deadline, price of energy, GPUs and how to set
their clocks. No NumPy is imported, since the job has not started yet."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta

from ekc.argument_checks import format_value, is_number
from ekc.errors import InvalidInput
from ekc.governor.model_file import ModelFile
from ekc.governor.protocols import Settings

OBJECTIVES = ("energy", "edp", "ed2p", "speed")


@dataclass(frozen=True)
class Policy:
    """Objective and budget of a job.

    `energy`: least joules per step within `max_slowdown`, or such that the job ends within `deadline_s`.
    `edp`, `ed2p`: least joules times seconds, or seconds squared, per step. `speed`: fewest seconds per step
    that still save `min_saving` of the joules, or whose mean power is at most a cap.
    """

    objective: str = "energy"
    max_slowdown: float = 0.05
    """Largest slowdown as a share of the default's time per step (0.05: 5 % slower), for `energy` only."""
    min_saving: float = 0.05
    """Least saving, as a share of the default's joules per step. Limits `speed` only."""
    remaining_s: float | None = None
    """Remaining seconds of the job; None to expect that it runs as long again as it has."""
    power_cap_w: float | None = None
    """Largest mean watts of each GPU. For `speed` only, in place of `min_saving`."""
    node_power_cap_w: float | None = None
    """Largest mean watts of all governed GPUs together, likewise."""
    deadline_s: float | None = None
    """Seconds within which the job is to end. For `energy` only, in place of `max_slowdown`. It needs
    `remaining_s`, at the default, or `steps_total`."""
    steps_total: int | None = None
    """Steps of the whole job, where its hooks count them."""
    max_power_share: float | None = None
    """The cap as a share of the power at the default. The control loop sets it."""

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
        self._check_power_caps()
        self._check_deadline()

    def _check_power_caps(self) -> None:
        names = [name for name in ("power_cap_w", "node_power_cap_w") if getattr(self, name) is not None]
        for name in names:
            watts = getattr(self, name)
            if not (is_number(watts) and 0 < watts < math.inf):
                raise InvalidInput(f"{name}: {_format_value(watts)}, finite watts above 0, such as 300")
            if self.objective != "speed":
                raise InvalidInput(
                    f"{name}: it asks for the fastest settings within a cap, not for {self.objective}; "
                    "use the objective speed"
                )
        if len(names) > 1:
            raise InvalidInput("power_cap_w and node_power_cap_w: give one cap, for each GPU or for all")

    def _check_deadline(self) -> None:
        steps, seconds = self.steps_total, self.deadline_s
        if steps is not None and not (isinstance(steps, int) and not isinstance(steps, bool) and steps > 0):
            raise InvalidInput(f"steps_total: {_format_value(steps)}, a whole number of steps from 1")
        if seconds is None:
            if steps is not None:
                raise InvalidInput("steps_total: it is for a deadline; give deadline_s too, or leave it out")
            return
        if not (is_number(seconds) and 0 < seconds < math.inf):
            raise InvalidInput(f"deadline_s: {_format_value(seconds)}, finite seconds above 0")
        if self.objective != "energy":
            raise InvalidInput(
                f"deadline_s: it asks for least energy that ends in time, not for {self.objective}; "
                "use the objective energy"
            )
        if (self.remaining_s is None) == (steps is None):
            raise InvalidInput(
                "deadline_s: say how much work is left, by remaining_s (seconds at the default) or by "
                "steps_total, which needs counted steps; give one of them"
            )

    @property
    def has_power_cap(self) -> bool:
        """Whether mean power is limited."""
        return self.power_cap_w is not None or self.node_power_cap_w is not None

    def for_unit(self, gpu_count: int, late_s: float = 0.0) -> Policy:
        """The policy of one control loop over so many GPUs that begins `late_s` after the job: its cap is for
        all of its GPUs together."""
        cap_w = self.node_power_cap_w
        if self.power_cap_w is not None:
            cap_w = self.power_cap_w * gpu_count
        ends = {
            name: max(1.0, seconds - late_s)
            for name in ("remaining_s", "deadline_s")
            if (seconds := getattr(self, name)) is not None
        }
        return replace(self, power_cap_w=cap_w, node_power_cap_w=None, **ends)


def _format_value(value: object) -> str:
    """A number in its shortest form; other values as messages show them."""
    return f"{value:g}" if isinstance(value, (int, float)) and is_number(value) else format_value(value)


_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


def check_name(name: str, *, each: bool = False, has_deadline: bool = False) -> str:
    """A name under which the choice of a job is kept, which becomes that of a file, and the options beside
    it. Raises `InvalidInput`. Needs no NumPy: the job has not started."""
    if not re.fullmatch(_NAME, name):
        raise InvalidInput(
            f"--remember {name}: a name is 1 to 100 letters, digits, dots, dashes and underscores, "
            "such as nightly-bert"
        )
    if each:
        raise InvalidInput("--remember: with --each there is a choice for each GPU; leave one of them out")
    if has_deadline:
        raise InvalidInput("--remember: with --deadline the work left decides; leave one of them out")
    return name


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
    remember: str | None = None
    """Name under which the choice is kept for the next run; None to keep none."""
    plan: PlannedClock | None = None
    """A clock to hold for the whole job instead of a search; the policy is not used then."""
    model: ModelFile | None = None
    """A model that says which clock a search tries first."""

    def __post_init__(self) -> None:
        if not isinstance(self.actuator, str) or self.actuator not in ACTUATORS:
            given = format_value(self.actuator)
            raise InvalidInput(f"--actuator: no actuator {given}; actuators are {', '.join(ACTUATORS)}")


UNIT_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0}
_PART = r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)"
EXAMPLES = "write 2h, 1h30m, 18:30 or 2026-05-04T18:30"


def parse_deadline(text: str, now: datetime) -> float:
    """Seconds from `now` (local time) until a deadline. A time of day is the next one. Raises `InvalidInput`
    for other texts and for a time that has passed."""
    text = text.strip()
    if re.fullmatch(f"(?:{_PART}\\s*)+", text):
        length = sum(float(number) * UNIT_SECONDS[unit] for number, unit in re.findall(_PART, text))
        if length > 0:
            return length
        raise InvalidInput(f"--deadline {text}: no time at all; {EXAMPLES}")
    seconds = (_parse_time(text, now) - now.astimezone()).total_seconds()
    if seconds <= 0:
        raise InvalidInput(f"--deadline {text}: that time has passed; it is {now:%Y-%m-%dT%H:%M}")
    return seconds


def _parse_time(text: str, now: datetime) -> datetime:
    """The time that a text names, with its zone; a time without a zone is local."""
    if re.fullmatch(r"\d{1,2}:\d{2}", text):
        try:
            found = datetime.combine(now.date(), time.fromisoformat(text.zfill(5)), now.tzinfo)
        except ValueError as problem:
            raise InvalidInput(f"--deadline {text}: no time of day ({problem}); {EXAMPLES}") from None
        return (found if found > now else found + timedelta(days=1)).astimezone()
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise InvalidInput(f"--deadline {text}: no length of time and no time; {EXAMPLES}") from None


JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Tariff:
    """Cost and emission of a kWh; None for what was not given."""

    price: float | None = None
    """Money per kWh."""
    currency: str = ""
    """Its word, such as EUR."""
    intensity: float | None = None
    """Grams of CO2 per kWh."""

    def __post_init__(self) -> None:
        for name, value, unit in (("price", self.price, "money"), ("intensity", self.intensity, "grams")):
            if value is not None and not (is_number(value) and 0 <= value < math.inf):
                raise InvalidInput(f"{name}: {format_value(value)}, a finite number of {unit} per kWh from 0")
        if self.price is not None and not (isinstance(self.currency, str) and self.currency[:1].isalpha()):
            raise InvalidInput(
                f"price: {self.price:g} needs the word of its currency, not {format_value(self.currency)}; "
                f"write {self.price:g} EUR"
            )
