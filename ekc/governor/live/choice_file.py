"""The choices of a job on disk, for its next run: JSON in ekc/choices below $XDG_STATE_HOME.

A file is used only for the same GPU model, driver, command and policy. With a name, the name is compared in
place of the command.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from ekc.argument_checks import is_number
from ekc.file_limits import parse_json, read_plain_file
from ekc.governor.event_records import to_plain_json
from ekc.governor.progress_rate import ProgressKind
from ekc.governor.protocols import Settings
from ekc.governor.request import Policy
from ekc.governor.saved_choice import SavedChoice

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
    numbers = {name: _read_number(limits[name]) for name in ("sm_mhz", "memory_mhz", "power_w")}
    clocks = {n: None if numbers[n] is None else int(numbers[n] or 0) for n in ("sm_mhz", "memory_mhz")}
    watts, sm_util, memory_util = (_read_number(x) or 0.0 for x in content.pop("signature"))
    if content["kind"] not in get_args(ProgressKind):
        raise ValueError("no such kind of progress")
    figures = {name: _read_number(content[name]) for name in ("slowdown", "slowdown_error", "saving")}
    if None in figures.values():
        raise ValueError("a figure is missing")
    period_s = _read_number(content["period_s"])
    return SavedChoice(
        settings=Settings(**clocks, power_w=numbers["power_w"]),
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
