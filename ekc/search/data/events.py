"""Events of a tuning run: one frozen value each, for callbacks, logs and the progress display."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ekc.display import format_line, shorten
from ekc.search.data.trial import Trial, describe_trial

EVENTS = {
    "start": "the run was requested",
    "stage": "another stage begins, named by `stage`",
    "baseline": "the naive schedule was measured (`trial`)",
    "trial": "a schedule was compiled and timed, or failed (`trial`)",
    "metering": "the energy of a schedule was metered (`trial`)",
    "final": "a finalist was measured again (`trial`)",
    "check": "a finalist was executed and compared with the reference (`trial`)",
    "clock": "a finalist was timed, or timed and metered, at a clock (`trial`)",
    "end": "the run has a result; `text` says why it ended before all trials were used",
    "error": "the run ends without a result; `text` says why",
}
"""Names of events, and the meaning of each."""
STAGES = {
    "prepare": "preparing",
    "baseline": "measuring the naive schedule",
    "breed": "breeding schedules",
    "measure": "compiling and timing",
    "meter": "metering",
    "finals": "checking and measuring the finalists",
    "clocks": "searching clocks",
    "end": "done",
}
"""Names of stages, and their text in a line."""
ROUND_STAGES = ("breed", "measure", "meter")
"""Stages that are repeated in each round, in this order."""


@dataclass(frozen=True)
class TuningEvent:
    """One event of a tuning run. Seconds are of the host; latency, power and energy are per call of the
    operator, in seconds, watts and joules."""

    name: str
    """One of `ekc.search.data.events.EVENTS`."""
    operator: str
    device: str
    """Label of the device: "a100 (simulated)"."""
    simulated: bool
    stage: str
    """One of `ekc.search.data.events.STAGES`."""
    round: int
    """Number of the round, from 1; 0 before the first."""
    seconds: float
    """Seconds since the run was requested."""
    planned: int
    """Trials of the run, at most."""
    tried: int = 0
    """Trials so far; `failed` and `metered` are among them."""
    failed: int = 0
    metered: int = 0
    seconds_left: float | None = None
    """Estimate of the seconds of all other trials, at the rate so far; None before the end of round one. The
    finals come on top."""
    best: Trial | None = None
    """The best trial so far by the objective, among those at most `max_slowdown` slower than the fastest."""
    fastest: Trial | None = None
    trial: Trial | None = None
    text: str = ""
    layer: str = ""
    """Name of the layer in the run of a model. `planned`, `tried`, `failed` and `metered` then count the
    trials of all layers; everything else is of this layer. "" in the run of one operator."""
    model: str = ""
    """Name of the model of that layer."""

    def __repr__(self) -> str:
        return format_line(self, f"{self.name} on {shorten(self.device, 40)}: {self.progress_text}")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values under the attribute names; trials by digest, structure and figures."""
        return vars(self) | {key: _trial_to_json(getattr(self, key)) for key in ("best", "fastest", "trial")}

    def format_line(self) -> str:
        """Format the event as one line of text."""
        about = self.text or (describe_trial(self.trial) if self.trial else self.stage_text)
        return f"{self.subject} on {self.device}: {self.name}: {about}; {self.progress_text}"

    @property
    def subject(self) -> str:
        """The name of the layer that is tuned, or of the operator in a run of one."""
        return self.layer or self.operator

    @property
    def stage_text(self) -> str:
        """The stage as text; that of a round with its number and the seconds left."""
        if self.stage not in ROUND_STAGES:
            return STAGES[self.stage]
        left = "" if self.seconds_left is None else f", about {self.seconds_left:.0f} s left"
        return f"{STAGES[self.stage]} (round {self.round}{left})"

    @property
    def progress_text(self) -> str:
        """Counts of trials, and the figures of the best."""
        counts = f"{self.tried}/{self.planned} trials"
        counts += f", {self.failed} failed" if self.failed else ""
        counts += f", {self.metered} metered" if self.metered else ""
        return f"{counts}, best {describe_trial(self.best)}" if self.best else counts


EventListener = Callable[[TuningEvent], object]
"""Called with each event, in the thread of the run. A listener that returns True asks the run to end."""


def _trial_to_json(trial: Trial | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    names = ("structure", "status", "latency_s", "power_w", "energy_j", "metered", "clock_mhz", "round")
    return {"digest": trial.schedule.digest} | {name: getattr(trial, name) for name in names}
