"""Trials of a tuning run: their data, as one line of text, as small tables and as data frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex, overload

from ekc.devices.statistics import Difference, Interval, MeasuredValue, compare_pairwise
from ekc.display import format_html_table, format_html_text, format_line, shorten
from ekc.errors import InvalidInput
from ekc.ir.program import Program
from ekc.ir.schedule.schedule import Schedule
from ekc.tables import count_nouns, format_rounded

MAX_ROWS = 10
"""Most trials of a table in a notebook."""
_HEADERS = ("index", "latency [us]", "energy [mJ]", "power [W]", "source", "structure", "round", "status")


@dataclass(frozen=True)
class Trial:
    """One schedule with its figures. Latency, power and energy are per call of the operator."""

    schedule: Schedule
    structure: str
    """Name of the structure in the search space; "naive" for the baseline."""
    status: str
    """"ok", or the failure: "compile: ...", "wrong result: ...", "unsafe kernel: ...", "unchecked: ...",
    "device: ..."."""
    latency_s: float | None = None
    """Mean latency of the timings."""
    latency_interval_s: Interval | None = None
    power_w: float | None = None
    """Mean board power, metered or predicted."""
    energy_j: float | None = None
    """Energy: measured if `metered`, else predicted."""
    energy_interval_j: Interval | None = None
    """95 % confidence interval of the metered energy."""
    energies_j: tuple[MeasuredValue, ...] = ()
    """Energy of each metering, in the order of the requests."""
    in_turn: bool = False
    """Whether the finalists were metered in turn, so that `energies_j` of two of them are pairs."""
    metered: bool = False
    notes: tuple[str, ...] = ()
    """Notes of the meter on its figures, each once."""
    clock_mhz: float | None = None
    """SM clock of the last measurement."""
    throttle: tuple[str, ...] = ()
    """Throttle reasons of the last measurement."""
    round: int = 0
    """Round of the search, from 1; 0 for the baseline."""
    checked: str = ""
    """Verdict of executing the kernel and comparing its results; "" if it was not executed."""
    measured_elsewhere: str = ""
    """Conditions (device, compiler, driver) that the figures were measured under, if not those here."""
    metering_s: float | None = None
    """Seconds of metering that the run had spent on the device when this schedule was first metered."""
    simulated: bool = False
    """Whether the figures are those of a model of a device."""
    readings: Mapping[str, float] = field(default_factory=dict, hash=False)
    """The last reading of each `ekc.Observer`, by its name."""

    @property
    def digest(self) -> str:
        """Digest of the schedule."""
        return self.schedule.digest

    @property
    def ok(self) -> bool:
        """Whether the kernel ran and, if it was checked, was correct."""
        return self.status == "ok"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values under the attribute names."""
        steps = [s.to_json() for s in self.schedule.steps]
        return {"schedule": steps, "digest": self.schedule.digest} | {
            **vars(self),
            "schedule": steps,
            "latency_interval_s": _interval_to_json(self.latency_interval_s),
            "energy_interval_j": _interval_to_json(self.energy_interval_j),
            "energies_j": [[m.value, m.interval.low, m.interval.high] for m in self.energies_j],
            "notes": list(self.notes),
            "throttle": list(self.throttle),
        }

    def __repr__(self) -> str:
        simulated = ", simulated" if self.simulated else ""
        structure = shorten(self.structure) or "no structure"
        return format_line(self, f"{shorten(describe_trial(self), 60)}{simulated}, {structure}")

    def _repr_html_(self) -> str:
        """A table of the figures, and the steps as Python."""
        rows = [(name, text) for name, text in _list_figures(self) if text]
        table = format_html_table(("", "simulated" if self.simulated else "measured"), rows, label_count=2)
        return table + format_html_text(self.schedule.to_python())


def _interval_to_json(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]


class Trials(tuple[Trial, ...]):
    """A tuple of trials that shows itself in one line, and in a notebook as a table of the fastest."""

    __slots__ = ()

    @overload
    def __getitem__(self, index: SupportsIndex) -> Trial: ...
    @overload
    def __getitem__(self, index: slice) -> Trials: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Trial | Trials:
        found = super().__getitem__(index)
        return Trials(found) if isinstance(index, slice) else found  # type: ignore[arg-type,return-value]

    def __repr__(self) -> str:
        return format_line(self, _count_trials(self))

    def _repr_html_(self) -> str:
        """A table of the fastest, with the index of each in this tuple."""
        order = sorted(range(len(self)), key=lambda i: (not self[i].ok, self[i].latency_s or 0.0))
        note = f"the {MAX_ROWS} fastest of {len(self)}" if len(self) > MAX_ROWS else ""
        rows = [(str(i), *_format_row(self[i])) for i in order[:MAX_ROWS]]
        return format_html_table(_HEADERS, rows, _count_trials(self), note)


def compare_energies(one: Trial, other: Trial) -> Difference | None:
    """Compare the energies of two trials pair by pair; None unless they were metered in turn."""
    if not (one.in_turn and other.in_turn and len(one.energies_j) == len(other.energies_j)):
        return None
    return compare_pairwise(one.energies_j, other.energies_j)


def is_saving_shown(one: Trial, other: Trial) -> bool:
    """Whether the meter shows that `one` takes less energy than `other`: by pairs where both were metered in
    turn, otherwise by intervals that do not overlap. A prediction shows nothing."""
    found = compare_energies(one, other)
    if found is not None:
        return found.is_significant and found.ratio < 1
    low, high = one.energy_interval_j, other.energy_interval_j
    return one.metered and other.metered and low is not None and high is not None and low.high < high.low


def describe_trial(trial: Trial) -> str:
    """Latency and energy of a trial as text, or why it failed."""
    if not trial.ok:
        return " ".join(trial.status.split())
    if trial.latency_s is None:
        return "not timed"
    latency = f"{format_rounded(trial.latency_s * 1e6, 4)} us"
    if trial.energy_j is None:
        return latency
    energy = f"{format_rounded(trial.energy_j * 1e3, 4)} mJ"
    return f"{latency}, {energy} {'metered' if trial.metered else 'predicted'}"


def _list_figures(trial: Trial) -> Iterator[tuple[str, str]]:
    latency = _format_scaled(trial.latency_s, 1e6), _format_interval(trial.latency_interval_s, 1e6, "us")
    energy = _format_scaled(trial.energy_j, 1e3), _format_interval(trial.energy_interval_j, 1e3, "mJ")
    yield "latency [us]", " ".join(latency).strip()
    yield f"energy [mJ], {describe_energy_source(trial)}", " ".join(energy).strip()
    yield "power [W]", _format_scaled(trial.power_w, 1.0)
    yield "SM clock [MHz]", _format_scaled(trial.clock_mhz, 1.0)
    yield "throttled by", ", ".join(trial.throttle)
    yield "structure", trial.structure
    yield "round", str(trial.round)
    yield "result", trial.checked or "not executed"
    yield "status", shorten(trial.status, 100)
    yield "measured on", trial.measured_elsewhere
    yield "metering", "; ".join(trial.notes)


def _format_interval(interval: Interval | None, scale: float, unit: str) -> str:
    """A 95 % interval: `(4.829 to 4.841 us)`."""
    if interval is None:
        return ""
    low, high = (format_rounded(edge * scale, 4) for edge in (interval.low, interval.high))
    return f"({low} to {high} {unit})"


def _format_row(trial: Trial) -> tuple[str, ...]:
    return (
        _format_scaled(trial.latency_s, 1e6),
        _format_scaled(trial.energy_j, 1e3),
        _format_scaled(trial.power_w, 1.0),
        describe_energy_source(trial),
        shorten(trial.structure, 48),
        str(trial.round),
        shorten(trial.status, 60),
    )


def _format_scaled(value: float | None, scale: float) -> str:
    return "" if value is None else format_rounded(value * scale, 4)


def describe_energy_source(trial: Trial) -> str:
    """Describe the source of a trial's energy."""
    if trial.energy_j is None:
        return "no energy"
    return "metered" if trial.metered else "predicted"


def _count_trials(trials: Sequence[Trial]) -> str:
    """Counts of trials, and that they are simulated."""
    failed, metered = sum(not t.ok for t in trials), sum(t.metered for t in trials)
    simulated = " (simulated)" if any(t.simulated for t in trials) else ""
    return f"{count_nouns(len(trials), 'trial')}{simulated}, {metered} metered, {failed} failed"


def make_dataframe(trials: Sequence[Trial], simulated: bool, features: Mapping[str, Any]) -> Any:
    """A pandas data frame with one row for each trial; `features` are more columns. Raises `InvalidInput`
    where pandas is missing."""
    try:
        import pandas
    except ImportError as problem:
        raise InvalidInput("to_dataframe needs pandas: pip install pandas") from problem
    columns = list_columns(trials) | {"simulated": simulated, **features}
    decisions = [list_decisions(t.schedule.program) for t in trials]
    return pandas.concat([pandas.DataFrame(columns), pandas.DataFrame(decisions)], axis=1)


COLUMNS = {
    "structure": "structure",
    "round": "round",
    "status": "status",
    "latency_s": "latency_s",
    "latency_low_s": "latency_interval_s.low",
    "latency_high_s": "latency_interval_s.high",
    "power_w": "power_w",
    "energy_j": "energy_j",
    "energy_low_j": "energy_interval_j.low",
    "energy_high_j": "energy_interval_j.high",
    "metered": "metered",
    "clock_mhz": "clock_mhz",
    "throttle": "throttle",
    "checked": "checked",
    "simulated": "simulated",
    "digest": "digest",
}
"""Columns of trials, and the attributes that they come from."""


def list_columns(trials: Sequence[Trial]) -> dict[str, list[Any]]:
    """Values of `COLUMNS` and of the readings, an entry for each trial; None where it has none. Tuples are
    one text."""
    columns = {name: [_read_attribute(t, path) for t in trials] for name, path in COLUMNS.items()}
    readings = dict.fromkeys(name for t in trials for name in t.readings)
    return columns | {name: [t.readings.get(name) for t in trials] for name in readings}


def _read_attribute(trial: Trial, path: str) -> Any:
    value: Any = trial
    for name in path.split("."):
        value = getattr(value, name, None)
    return ", ".join(value) if isinstance(value, tuple) else value


def list_decisions(program: Program) -> dict[str, int]:
    """The numbers of a Program by name. Of a loop: its iterations (`loop.i.0`); if more than 1, those that
    are written out (`unroll.k.1`) and the copies of its shared tiles (`stages.k.0`). Of a staging: elements
    of a vector (`vector.A.shared`), in shared memory also of padding, and the chunks of a swizzle. Of an
    output: elements of a vector if more than 1 (`vector.C`), and 1 where tensor cores or atomics are used."""
    found: dict[str, Any] = {}
    for nest in program.nests:
        for loop in nest.loops:
            found[f"loop.{loop.name}"] = loop.extent
            found |= {f"unroll.{loop.name}": loop.unroll} if loop.unroll != 1 else {}
            found |= {f"stages.{loop.name}": loop.stages} if loop.stages > 1 else {}
        for one in nest.stagings:
            found[f"vector.{one.name}"] = one.vector
            if one.scope == "shared":
                found |= {f"pad.{one.name}": one.pad, f"swizzle.{one.name}": one.swizzle}
        output = nest.output.name
        found |= {f"vector.{output}": nest.store_vector} if nest.store_vector > 1 else {}
        found |= {f"tensor_cores.{output}": 1} if nest.instruction else {}
        found |= {f"atomics.{output}": 1} if nest.is_atomic else {}
    return {name: int(value) for name, value in found.items()}
