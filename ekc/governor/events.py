"""What the governor tells while it works: one frozen record per thing measured, decided or set.

Each has the second (on the probe's clock) at which it was told, and `line()`, one line for people.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

from ekc.governor.job_reading import JobReading
from ekc.governor.protocols import Settings


def format_settings(settings: Settings) -> str:
    """Settings for people: "SM 1410 MHz, memory default"."""
    parts = []
    if settings.sm_mhz is not None:
        parts.append(f"SM up to {settings.sm_mhz} MHz")
    if settings.memory_mhz is not None:
        parts.append(f"memory {settings.memory_mhz} MHz")
    if settings.power_w is not None:
        parts.append(f"cap {settings.power_w:g} W")
    return ", ".join(parts) or "limits as before"


@dataclass(frozen=True)
class Event:
    """Anything told; `at_s` is on the probe's clock."""

    at_s: float

    def format_line(self) -> str:
        """One line for people."""
        raise NotImplementedError


@dataclass(frozen=True)
class Started(Event):
    """The loop begins."""

    probe: str
    actuator: str
    simulated: bool
    objective: str

    def format_line(self) -> str:
        """Who watches, who sets, what for."""
        return f"governing through {self.actuator}, watching through {self.probe}: {self.objective}"


@dataclass(frozen=True)
class Applied(Event):
    """Limits were put in force."""

    settings: Settings
    why: str

    def format_line(self) -> str:
        """What, and why."""
        return f"set {format_settings(self.settings)}: {self.why}"


@dataclass(frozen=True)
class PeriodFound(Event):
    """What the detector made of the signals at the default clocks."""

    verdict: str
    seconds: float
    progress: str
    """The source of progress from here on: `steps`, `period`, `throughput` or `none`."""

    def format_line(self) -> str:
        """The verdict."""
        length = f" of {self.seconds:.2f} s" if self.verdict in ("periodic", "multiple") else ""
        return f"iterations: {self.verdict}{length}; progress told by {self.progress}"


@dataclass(frozen=True)
class Measured(Event):
    """A stretch of the job under settled limits."""

    reading: JobReading
    purpose: str
    """`default`, `candidate` or `check`."""
    slowdown: float
    """Against the default, its drift taken out; NaN where progress cannot be told."""
    saving: float
    """Share of the default's joules per step; the same."""

    def format_line(self) -> str:
        """Watts, and what they bought."""
        told = f"{self.purpose}, {format_settings(self.reading.settings)}: {self.reading.watts:.0f} W"
        return f"{told}, {self.slowdown:+.1%} time, {-self.saving:+.1%} energy per step"


@dataclass(frozen=True)
class CountersRead(Event):
    """A counter window was spent."""

    seconds: float
    counters: Mapping[str, float]

    def format_line(self) -> str:
        """How many, how long."""
        return f"read {len(self.counters)} counters over {self.seconds:.1f} s"


@dataclass(frozen=True)
class Predicted(Event):
    """A model's belief before the search."""

    settings: Settings
    slowdown: float
    saving: float
    trained_on: str

    def format_line(self) -> str:
        """Near where the search will begin."""
        where = format_settings(self.settings)
        told = f"{self.slowdown:+.1%} time, {-self.saving:+.1%} energy at {where}"
        return f"a model of {self.trained_on} expects {told}"


@dataclass(frozen=True)
class Chosen(Event):
    """The search is over."""

    settings: Settings
    slowdown: float
    saving: float
    points: int
    """Settings measured, the default not counted."""
    search_s: float
    search_j: float

    def format_line(self) -> str:
        """The choice, what it promises, what it cost."""
        promise = f"{-self.saving:+.1%} energy, {self.slowdown:+.1%} time expected"
        what = format_settings(self.settings)
        return f"chose {what} after {self.points} points, {self.search_s:.0f} s: {promise}"


@dataclass(frozen=True)
class Skipped(Event):
    """A search that would not pay was left out."""

    remaining_s: float
    saving_w: float
    """Watts that it could save at best, or has been seen to save."""
    search_s: float

    def format_line(self) -> str:
        """Why."""
        return (
            f"no search: {self.remaining_s:.0f} s expected to remain, {self.search_s:.0f} s to search, "
            f"at best {self.saving_w:.0f} W to save"
        )


@dataclass(frozen=True)
class Shifted(Event):
    """The job is no longer what it was."""

    level: str
    """`small`: search anew around the choice; `large`: measure, read counters and predict anew;
    `known`: a phase seen before, its choice taken up again."""
    size: float
    """By how much power or use differs; NaN where that did not tell the change."""

    def format_line(self) -> str:
        """How much, where that is known."""
        size = f", {self.size:.0%}" if math.isfinite(self.size) else ""
        return f"the job changed ({self.level}{size})"


@dataclass(frozen=True)
class Checked(Event):
    """The default was measured again between two stretches of the choice (A/B/A)."""

    slowdown: float
    half_width: float
    """95 % interval of the mean of all checks of this choice."""
    saving: float

    def format_line(self) -> str:
        """The slowdown and how sure."""
        time = f"{self.slowdown:+.1%} time (+- {self.half_width:.1%})"
        return f"checked: {time}, {-self.saving:+.1%} energy per step"


@dataclass(frozen=True)
class Idled(Event):
    """The GPU fell idle; the limits stay as they are."""

    def format_line(self) -> str:
        """So."""
        return "the GPU is idle; waiting"


@dataclass(frozen=True)
class Resumed(Event):
    """Work came back after a pause."""

    idle_s: float

    def format_line(self) -> str:
        """After how long."""
        return f"work resumed after {self.idle_s:.0f} s"


@dataclass(frozen=True)
class Ended(Event):
    """The job is gone; nothing is set from here on."""

    seconds: float
    joules: float

    def format_line(self) -> str:
        """The bill of the governed time."""
        return f"job ended: {self.joules:.0f} J of the board in {self.seconds:.0f} s"


EventCallback = Callable[[Event], None]


def event_to_json(name: str, event: Event) -> dict[str, Any]:
    """One line for machines: its kind, whose it is, the line for people, and its fields."""
    known = {"event": type(event).__name__, "gpu": name, "line": event.format_line()}
    return known | {x.name: to_plain_json(getattr(event, x.name)) for x in fields(event)}


def to_plain_json(value: Any) -> Any:
    """As JSON has it, which knows no NaN and no infinity."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain_json(asdict(value))
    if isinstance(value, dict):
        return {str(k): to_plain_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
