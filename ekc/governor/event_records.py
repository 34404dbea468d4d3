"""Events of the governor: a frozen record of each measurement, decision and setting, with its time on the
probe's clock, and as a line for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from ekc.devices.clocks.limits import LIMIT_NAMES, Limit
from ekc.devices.clocks.limits import format_settings as format_settings
from ekc.governor.protocols import Settings
from ekc.tables import count_nouns

if TYPE_CHECKING:
    from ekc.governor.readings import JobReading


@dataclass(frozen=True)
class Event:
    """Base of all events."""

    at_s: float
    """Seconds on the probe's clock."""

    def format_line(self) -> str:
        """One line for people."""
        raise NotImplementedError


@dataclass(frozen=True)
class Started(Event):
    """The control loop begins."""

    probe: str
    actuator: str
    simulated: bool
    """Whether probe or actuator is simulated."""
    objective: str

    def format_line(self) -> str:
        """Actuator, probe and objective."""
        return f"governing through {self.actuator}, watching through {self.probe}: {self.objective}"


@dataclass(frozen=True)
class Applied(Event):
    """Limits were put in force."""

    settings: Settings
    why: str

    def format_line(self) -> str:
        """The limits and the reason."""
        return f"set {format_settings(self.settings)}: {self.why}"


@dataclass(frozen=True)
class PeriodFound(Event):
    """The period detector's result at the default clocks."""

    verdict: str
    seconds: float
    """Period; NaN without one."""
    progress: str
    """Source of progress from this event on: `steps`, `period`, `throughput` or `none`."""

    def format_line(self) -> str:
        """Verdict, period and source of progress."""
        has_length = self.verdict in ("periodic", "multiple") and math.isfinite(self.seconds)
        length = f" of {self.seconds:.2f} s" if has_length else ""
        return f"iterations: {self.verdict}{length}; progress by {self.progress}"


@dataclass(frozen=True)
class Measured(Event):
    """A reading of the job."""

    reading: JobReading
    purpose: str
    """`default`, `candidate` or `check`."""
    slowdown: float
    """Slowdown against the default, corrected for drift; NaN where progress is not measured."""
    saving: float
    """Joules per step saved, as a share of the default's; NaN where progress is not measured."""

    def format_line(self) -> str:
        """Purpose, limits, watts, slowdown and saving."""
        reading = f"{self.purpose}, {format_settings(self.reading.settings)}: {self.reading.watts:.0f} W"
        return f"{reading}, {self.slowdown:+z.1%} time, {-self.saving:+z.1%} energy per step"


@dataclass(frozen=True)
class Expected(Event):
    """Limits, and what is expected of them."""

    settings: Settings
    slowdown: float
    """Expected slowdown."""
    saving: float
    """Expected saving, as a share of the default's joules per step."""


@dataclass(frozen=True)
class Predicted(Expected):
    """A model's prediction, by which the search begins."""

    trained_on: str
    counters: Mapping[str, float]
    """Counters that it was made from, 0 to 100."""

    def format_line(self) -> str:
        """Training data, and the outcome that is expected at the best settings."""
        outcome = f"{self.slowdown:+z.1%} time, {-self.saving:+z.1%} energy per step"
        return f"a model of {self.trained_on} expects {outcome} at {format_settings(self.settings)}"


@dataclass(frozen=True)
class ModelUnused(Event):
    """A search begins without the model that was given."""

    reason: str

    def format_line(self) -> str:
        """The reason."""
        return f"the search begins without the model: {self.reason}"


@dataclass(frozen=True)
class Chosen(Expected):
    """The search is over."""

    points: int
    """Settings measured, the default not counted."""
    search_s: float
    search_j: float
    """Joules of the board during the search."""

    def format_line(self) -> str:
        """The choice, the length of the search, and the expected outcome."""
        outcome = f"{-self.saving:+z.1%} energy, {self.slowdown:+z.1%} time expected"
        choice = format_settings(self.settings)
        return f"chose {choice} after {count_nouns(self.points, 'point')}, {self.search_s:.0f} s: {outcome}"


@dataclass(frozen=True)
class Planned(Expected):
    """The limits come from a clock plan, with what that expects of the model's kernels; nothing is
    searched."""

    def format_line(self) -> str:
        """The limits and the expected outcome."""
        outcome = f"{-self.saving:+z.1%} energy, {self.slowdown:+z.1%} time expected"
        return f"the plan has {format_settings(self.settings)}: {outcome}"


@dataclass(frozen=True)
class Skipped(Event):
    """No search, since it would not pay."""

    remaining_s: float
    saving_w: float
    """Watts that the choice would save at best."""
    search_s: float

    def format_line(self) -> str:
        """Expected remaining time, search time and saving."""
        return (
            f"no search: {self.remaining_s:.0f} s expected to remain, {self.search_s:.0f} s to search, "
            f"at best {self.saving_w:.0f} W to save"
        )


@dataclass(frozen=True)
class Shifted(Event):
    """The job has changed."""

    level: str
    """`small` or `large`: measure and search again; `known`: an earlier phase has returned, and its choice is
    used again."""
    size: float
    """Relative change of power or use; NaN where the change was found in another way."""

    def format_line(self) -> str:
        """Level and size of the change."""
        size = f", {self.size:.0%}" if math.isfinite(self.size) else ""
        return f"the job changed ({self.level}{size})"


@dataclass(frozen=True)
class LimitsTaken(Event):
    """Others have set limits of the GPU, which are not set any more; the job is measured again."""

    limits: tuple[Limit, ...]
    """All limits that others have set since the governor began."""

    def format_line(self) -> str:
        """The limits, and the fate of the readings."""
        names = ", ".join(LIMIT_NAMES[x] for x in self.limits)
        return f"others have set {names}: readings until now are discarded, the job is measured again"


@dataclass(frozen=True)
class Checked(Event):
    """The default was measured again between two stretches of the choice (A/B/A)."""

    slowdown: float
    """Mean slowdown of the choice."""
    half_width: float
    """Half width of the 95 % interval of the slowdown, from all checks of this choice."""
    saving: float
    """Joules per step saved, as a share of the default's."""

    def format_line(self) -> str:
        """Slowdown with its interval, and saving."""
        time = f"{self.slowdown:+z.1%} time (+- {self.half_width:.1%})"
        return f"checked: {time}, {-self.saving:+z.1%} energy per step"


@dataclass(frozen=True)
class Idled(Event):
    """The GPU is idle; the limits stay as they are."""

    def format_line(self) -> str:
        """The GPU is idle."""
        return "the GPU is idle; waiting"


@dataclass(frozen=True)
class Resumed(Event):
    """Work came back after a pause."""

    idle_s: float

    def format_line(self) -> str:
        """Length of the pause."""
        return f"work resumed after {self.idle_s:.0f} s"


@dataclass(frozen=True)
class Interrupted(Event):
    """A recording had a gap: the governor was stopped, as with a suspended job, or the driver did not answer.
    The recording is in no account."""

    gap_s: float

    def format_line(self) -> str:
        """Length of the gap."""
        return f"no samples for {self.gap_s:.0f} s, as if stopped; a reading meanwhile is taken again"


@dataclass(frozen=True)
class Failed(Event):
    """A call of the driver failed; the job is measured again later."""

    problem: str
    wait_s: float
    """Seconds until the next try."""
    is_restored: bool
    """Whether the previous settings are in force meanwhile."""

    def format_line(self) -> str:
        """The reason, the settings meanwhile, and the time of the next try."""
        meanwhile = "at its previous settings" if self.is_restored else "and what was set may stay until then"
        return (
            f"{self.problem}; the job goes on ungoverned for {self.wait_s:.0f} s, {meanwhile}, then it is "
            "tried again"
        )


@dataclass(frozen=True)
class Ended(Event):
    """The job has ended; nothing is set from this event on."""

    seconds: float
    """Seconds that the job was governed."""
    joules: float
    """Joules of the board in that time."""

    def format_line(self) -> str:
        """Joules and seconds of the governed time."""
        return f"job ended: {self.joules:.0f} J of the board in {self.seconds:.0f} s"


EventCallback = Callable[[Event], None]


def event_to_json(name: str, event: Event) -> dict[str, Any]:
    """An event as JSON: its kind, the GPU's name, the line for people, and the event's fields."""
    header = {"event": type(event).__name__, "gpu": name, "line": event.format_line()}
    return header | {x.name: to_plain_json(getattr(event, x.name)) for x in fields(event)}


def to_plain_json(value: Any) -> Any:
    """A value as JSON has it; NaN and infinity become None."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain_json(asdict(value))
    if isinstance(value, dict):
        return {str(k): to_plain_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
