"""The choice of an earlier run of the same job: which phase it is for, and whether it may be trusted.

A saved choice is tried in a phase whose power, use and period at the default are those of the saved phase. It
is read between two readings of the default (A/B/A). It is trusted where it does what was saved, and else
the phase is searched as any other; the readings count in that search.

Choices are kept as JSON in ekc/choices below $XDG_STATE_HOME. A file is used only for the same GPU model,
driver and policy."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ekc.argument_checks import is_number
from ekc.devices.clocks.limits import parse_settings
from ekc.file_limits import parse_json, read_plain_file
from ekc.governor.change_detection import is_same_phase
from ekc.governor.decision import compute_score, compute_violation
from ekc.governor.event_records import Event, format_settings, to_plain_json
from ekc.governor.job_meter import JobMeter
from ekc.governor.phase import Phase, measure_settings, remeasure_default, report_choice
from ekc.governor.progress_rate import ProgressKind, ProgressSource
from ekc.governor.protocols import LIMITS, OfferedSettings, Settings
from ekc.governor.readings import CONTRADICTION_MARGIN, CONTRADICTION_SIGMAS, DefaultComparison
from ekc.governor.request import Policy


@dataclass(frozen=True)
class SavedChoice:
    """A checked choice of one phase."""

    settings: Settings
    slowdown: float
    slowdown_error: float
    """Standard error."""
    saving: float
    kind: ProgressKind
    period_s: float
    """Seconds of a step or period at the default; NaN without one."""
    signature: tuple[float, float, float]
    """Signature (`compute_signature`) at the default."""

    def is_for(self, phase: Phase) -> bool:
        """Whether a phase, measured at the default, is the one that the choice was made in."""
        source = ProgressSource(self.kind, self.period_s)
        return is_same_phase(phase.default_signature, phase.progress, np.array(self.signature), source)

    def can_be_set(self, offered: OfferedSettings) -> bool:
        """Whether the card has these limits."""
        return all(getattr(self.settings, x) in (None, *getattr(offered, x)) for x in LIMITS)


SaveFunction = Callable[[Sequence[SavedChoice]], None]
"""Keeps the choices of a job for its next run."""


@dataclass(frozen=True)
class SavedChoiceTried(Event):
    """A choice of an earlier run was read against the default."""

    settings: Settings
    is_trusted: bool
    expected_slowdown: float
    slowdown: float
    """Slowdown read now; NaN where other work disturbed the reading."""

    def format_line(self) -> str:
        """The choice, its slowdown then and now, and the verdict."""
        verdict = "it is kept" if self.is_trusted else "it is not used, and the job is searched"
        then_now = f"{self.expected_slowdown:+z.1%} time then, {self.slowdown:+z.1%} now"
        return f"the choice of an earlier run, {format_settings(self.settings)}: {then_now}; {verdict}"


def list_choices(found: Sequence[Phase]) -> list[SavedChoice]:
    """Choices worth keeping: limits that at least one check has agreed with."""
    return [
        _make_choice(phase, phase.predict_choice())
        for phase in found
        if phase.agreed_checks and not phase.is_refuted and phase.choice != Settings()
    ]


def _make_choice(phase: Phase, expected: DefaultComparison) -> SavedChoice:
    watts, sm_util, memory_util = map(float, phase.default_signature)
    return SavedChoice(
        phase.choice,
        expected.slowdown,
        expected.slowdown_error,
        expected.saving,
        phase.progress.kind,
        phase.progress.period_s,
        (watts, sm_util, memory_util),
    )


def try_choice(meter: JobMeter, phase: Phase, saved: SavedChoice) -> bool:
    """Read a saved choice between two readings of the default, and set it where it is trusted."""
    start = meter.probe.now(), meter.probe.read_energy_j()
    phase.search = replace(phase.search, memory_mhz=saved.settings.memory_mhz)
    is_read = measure_settings(meter, phase, saved.settings, "saved choice")
    is_read = is_read and remeasure_default(meter, phase)
    outcome = phase.readings.compare_to_default(phase.readings.other_readings[-1]) if is_read else None
    is_trusted = outcome is not None and _is_confirmed(phase, saved, outcome)
    slowdown = outcome.slowdown if outcome is not None else float("nan")
    tried = saved.settings, is_trusted, saved.slowdown, slowdown
    meter.on_event(SavedChoiceTried(meter.probe.now(), *tried))
    if not is_trusted:
        phase.search = replace(phase.search, memory_mhz=None)
        return False
    phase.choice = saved.settings
    meter.set_limits(phase.choice, "the choice of an earlier run")
    report_choice(meter, phase, 1, *start)
    return True


def _is_confirmed(phase: Phase, saved: SavedChoice, outcome: DefaultComparison) -> bool:
    """Whether a reading agrees with what was saved, and both together are within the budget and better than
    the default."""
    if not np.isfinite(outcome.slowdown):
        return False
    own = float(np.hypot(outcome.slowdown_error, outcome.default_error))
    error = float(np.hypot(own, saved.slowdown_error))
    limit = CONTRADICTION_MARGIN + CONTRADICTION_SIGMAS * error
    difference = max(abs(outcome.slowdown - saved.slowdown), abs(outcome.saving - saved.saving))
    if limit > MAX_UNNOTICED or difference > limit:
        return False
    weight = own**-2 / (own**-2 + max(saved.slowdown_error, MIN_SAVED_ERROR) ** -2)
    slowdown = weight * outcome.slowdown + (1 - weight) * saved.slowdown
    saving = weight * outcome.saving + (1 - weight) * saved.saving
    policy = phase.search.policy
    is_within = compute_violation(policy, slowdown, saving) <= MIN_SAVED_ERROR
    is_better = policy.objective == "speed" or compute_score(policy, slowdown, saving) < 1
    return bool(is_within and is_better)


MIN_SAVED_ERROR = 0.005
"""Least standard error of a slowdown that was read on another day, and how far a choice may be beyond the
budget."""
MAX_UNNOTICED = 0.05
"""Largest difference from what was saved that a reading may leave unnoticed: work without a beat is read too
roughly to trust a choice."""


MAX_BYTES = 100_000
"""Largest file that is read."""
_UNLIKE = "is for another {}, so the job is searched"


def find_folder() -> Path | None:
    """The folder of all choices; None without a home."""
    home = os.environ.get("XDG_STATE_HOME", "")
    state = home if os.path.isabs(home) else os.path.expanduser("~/.local/state")
    return Path(state) / "ekc" / "choices" if os.path.isabs(state) else None


@dataclass(frozen=True)
class ChoiceFile:
    """The file of one job on one kind of GPU under one policy."""

    name: str
    conditions: dict[str, Any]
    """Facts that must be the same as when the choices were made: GPU model and count, driver, policy."""
    on_note: Callable[[str], None]
    """Gets a line where a file is not used, or cannot be written."""

    def read(self) -> list[SavedChoice]:
        """The choices of the last run; empty without any, and where they are for other conditions."""
        folder = find_folder()
        try:
            if folder is None:
                return []
            content = parse_json(read_plain_file(folder / f"{self.name}.json", MAX_BYTES))
            other = [k for k, v in self.conditions.items() if content["conditions"].get(k) != v]
            choices = [_read_choice(one) for one in content["choices"]]
        except FileNotFoundError:
            return []
        except OSError as problem:
            self.on_note(f"the choice of an earlier run cannot be read ({problem.strerror})")
            return []
        except (ValueError, LookupError, TypeError, AttributeError):
            self.on_note("the choice of an earlier run is damaged, so the job is searched")
            return []
        if other:
            self.on_note(f"the choice of an earlier run {_UNLIKE.format(other[0])}")
            return []
        return choices

    def write(self, choices: Sequence[SavedChoice]) -> None:
        """Keep the choices of this run; none leave the file as it is."""
        folder = find_folder()
        if not choices or folder is None:
            return
        content = {"conditions": self.conditions, "choices": [to_plain_json(asdict(x)) for x in choices]}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".new", delete=False) as stream:
                stream.write(json.dumps(content, indent=1) + "\n")
            os.replace(stream.name, folder / f"{self.name}.json")
        except OSError as problem:
            self.on_note(f"the choice cannot be saved for the next run ({problem.strerror})")


def make_conditions(gpu: str, count: int, driver: str, policy: Policy) -> dict[str, Any]:
    """Conditions of a choice. What is left to run may differ from day to day."""
    wanted = asdict(policy)
    for name in ("remaining_s", "steps_total", "max_power_share"):
        wanted.pop(name)
    return {"GPU": gpu, "number of GPUs": count, "driver": driver, "policy": wanted}


def _read_choice(content: dict[str, Any]) -> SavedChoice:
    """A choice from JSON. Raises `ValueError`, `LookupError` or `TypeError` for anything else."""
    limits = content.pop("settings")
    watts, sm_util, memory_util = (_read_number(x) or 0.0 for x in content.pop("signature"))
    if content["kind"] not in get_args(ProgressKind):
        raise ValueError("no such kind of progress")
    figures = {name: _read_number(content[name]) for name in ("slowdown", "slowdown_error", "saving")}
    if None in figures.values():
        raise ValueError("a figure is missing")
    period_s = _read_number(content["period_s"])
    return SavedChoice(
        settings=parse_settings(limits),
        **{name: float(value or 0.0) for name, value in figures.items()},
        kind=content["kind"],
        period_s=float("nan") if period_s is None else period_s,
        signature=(watts, sm_util, memory_util),
    )


def _read_number(value: Any) -> float | None:
    """A finite number or None. Raises `ValueError` for anything else."""
    if value is None:
        return None
    if not is_number(value) or not math.isfinite(value):
        raise ValueError("no number")
    return float(value)
