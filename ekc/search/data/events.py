"""Events of a tuning run: one frozen value each, for callbacks, logs and the progress display."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ekc.search.data.result import Trial

EVENTS = {
    "start": "the run was asked for",
    "forecast": "`text` says what the run will take (with `progress`)",
    "stage": "another stage begins, named by `stage`",
    "baseline": "the naive schedule was measured (`trial`)",
    "trial": "a schedule was compiled and timed, or failed (`trial`)",
    "metering": "the energy of a schedule was metered (`trial`)",
    "final": "a finalist was measured again (`trial`)",
    "check": "a finalist was executed and compared with the reference (`trial`)",
    "clock": "the best schedule was measured at another clock (`trial`)",
    "end": "the run has a result; `text` says why it ended before all trials were used",
    "error": "the run ends without a result; `text` says why",
}
"""The names of events, and what each says."""
STAGES = {
    "prepare": "preparing",
    "baseline": "measuring the naive schedule",
    "breed": "breeding schedules",
    "measure": "compiling and timing",
    "meter": "metering",
    "finals": "checking and measuring the finalists",
    "clocks": "measuring other clocks",
    "end": "done",
}
"""The names of stages, and their words in a line. "breed", "measure" and "meter" follow each other, round
after round."""
ROUND_STAGES = ("breed", "measure", "meter")


@dataclass(frozen=True)
class TuningEvent:
    """One event of a tuning run. Seconds are of the host; latency, power and energy are per call of the
    operator, in seconds, watts and joules."""

    name: str
    """One of `ekc.search.data.events.EVENTS`."""
    operator: str
    device: str
    """As it is printed: "a100 (simulated)"."""
    simulated: bool
    stage: str
    """One of `ekc.search.data.events.STAGES`."""
    round: int
    """0 before the first round."""
    seconds: float
    """Since the run was asked for."""
    planned: int
    """Trials at most."""
    tried: int = 0
    """Trials so far; `failed` and `metered` are among them."""
    failed: int = 0
    metered: int = 0
    best: Trial | None = None
    """The best so far by the objective, among trials at most `max_slowdown` slower than the fastest."""
    fastest: Trial | None = None
    trial: Trial | None = None
    """The schedule that the event is about."""
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values under the attribute names; schedules by digest, structure and figures."""
        return vars(self) | {key: _trial_to_json(getattr(self, key)) for key in ("best", "fastest", "trial")}

    def format_line(self) -> str:
        """The event for people, in one line."""
        about = self.text or (describe_trial(self.trial) if self.trial else self.stage_text)
        return f"{self.operator} on {self.device}: {self.name}: {about}; {self.progress_text}"

    @property
    def stage_text(self) -> str:
        """The stage in words."""
        return STAGES[self.stage] + (f" (round {self.round})" if self.stage in ROUND_STAGES else "")

    @property
    def progress_text(self) -> str:
        """Counts, and the figures of the best."""
        counts = f"{self.tried}/{self.planned} trials"
        counts += f", {self.failed} failed" if self.failed else ""
        counts += f", {self.metered} metered" if self.metered else ""
        return f"{counts}, best {describe_trial(self.best)}" if self.best else counts


def _trial_to_json(trial: Trial | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    names = ("structure", "status", "latency_s", "power_w", "energy_j", "metered", "clock_mhz", "round")
    return {"digest": trial.schedule.digest} | {name: getattr(trial, name) for name in names}


def describe_trial(trial: Trial) -> str:
    """Latency and energy of a trial, or why it failed."""
    if not trial.ok:
        return " ".join(trial.status.split())
    if trial.latency_s is None:
        return "not timed"
    latency = f"{trial.latency_s * 1e6:.4g} us"
    if trial.energy_j is None:
        return latency
    return f"{latency}, {trial.energy_j * 1e3:.4g} mJ {'metered' if trial.metered else 'predicted'}"
