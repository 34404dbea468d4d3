"""A clock plan: one SM clock for a model, a kernel for each layer, and what they are expected to save.

Plain data that `ekc govern --plan` reads before a job starts, so this module imports no NumPy.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ekc.argument_checks import format_value, is_number
from ekc.errors import InvalidInput
from ekc.file_limits import parse_json, read_plain_file
from ekc.tables import TABLE_WIDTH, count_nouns, format_quantity, format_table

SCHEMA = 1
"""Version of the JSON of a plan."""
KIND = "ekc clock plan"
MAX_LAYERS = 24
"""Rows of the table of layers, at most: those that save most."""


@dataclass(frozen=True)
class Estimate:
    """An expected figure with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PlannedLayer:
    """The kernel that the plan has for a layer. Figures are per call, at the clock of the plan."""

    name: str
    operator: str
    """Digest of the operator."""
    schedule: str
    """Digest of the schedule."""
    role: str
    """Role of the kernel at the default clock: "fastest", "best", "fastest and best" or "front"."""
    calls: int
    latency_s: Estimate
    energy_j: Estimate
    slowdown: float
    """Against the layer's fastest kernel at the default clock, as a share. A layer may be slower than the
    limit, since the limit is on the time of the model."""
    saved_j: float
    """Joules that the layer saves in one pass of the model, against its fastest kernel at the default
    clock."""


@dataclass(frozen=True)
class PlanSavings:
    """Shares of energy saved, each within the same limit on the time of the model, against the fastest
    kernels at the default clock."""

    fixed: Estimate
    """By choosing kernels at the default clock."""
    clock: Estimate
    """By choosing a clock for the fastest kernels."""
    winners_at_clock: Estimate
    """By choosing kernels at the default clock, and then a clock for them."""
    together: Estimate
    """By choosing clock and kernels together: the plan."""

    def list_named(self) -> tuple[tuple[str, Estimate], ...]:
        """Each choice in words, with its saving; the plan itself is last."""
        return (
            ("kernels at the default clock", self.fixed),
            ("clock of the fastest kernels", self.clock),
            ("clock of the best kernels", self.winners_at_clock),
            ("kernels and clock together", self.together),
        )


@dataclass(frozen=True)
class FrontPoint:
    """The best clock, and what it saves, within a limit on the time of the model."""

    max_slowdown: float
    clock_mhz: int
    slowdown: float
    saving: float


@dataclass(frozen=True)
class PhaseAdvice:
    """The best clock for one phase of the model alone, such as "decode", with kernels of its own."""

    phase: str
    clock_mhz: int
    slowdown: float
    saving: float


@dataclass(frozen=True)
class ClockPlan:
    """One clock, and a kernel for each layer, of least energy within a limit on the time of the model. Time
    and energy of the model are sums over its layers, times their calls."""

    device: str
    """Name of the device that the figures are of."""
    simulated: bool
    clock_mhz: int
    """Clock to set."""
    default_mhz: int
    max_slowdown: float
    layers: tuple[PlannedLayer, ...]
    latency_s: Estimate
    """Time of one pass of the model."""
    energy_j: Estimate
    slowdown: float
    """Against the fastest kernels at the default clock, as a share."""
    savings: PlanSavings
    front: tuple[FrontPoint, ...]
    """Plans within other limits on the time."""
    phases: tuple[PhaseAdvice, ...]
    """Advice for each phase, where the model has several; the plan itself has one clock."""
    gap: float
    """Share of the energy by which another choice may beat this one, at most, if all figures were exact."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values under the attribute names, with the version of their form."""
        return {"kind": KIND, "schema": SCHEMA, **asdict(self)}

    def write(self, file: str | Path) -> Path:
        """Write the plan as JSON. Raises `InvalidInput` for a file that cannot be written."""
        try:
            Path(file).write_text(json.dumps(self.to_json(), indent=1) + "\n")
        except OSError as problem:
            raise InvalidInput(f"plan {file}: cannot be written ({problem.strerror})") from problem
        return Path(file)

    @classmethod
    def from_json(cls, value: Any) -> ClockPlan:
        """The plan of plain JSON values. Raises `InvalidInput` for others, in one line."""
        if not isinstance(value, dict) or value.get("kind") != KIND:
            raise InvalidInput(
                f'no clock plan: "kind" must be {KIND!r}; `ekc tune --clocks search` writes one'
            )
        if value.get("schema") != SCHEMA:
            raise InvalidInput(
                f"a clock plan of schema {format_value(value.get('schema'))}; this ekc reads {SCHEMA}"
            )
        try:
            plan = _build_plan(value)
        except KeyError as problem:
            raise InvalidInput(f"the clock plan lacks {problem}") from problem
        except (TypeError, AttributeError) as problem:
            raise InvalidInput(f"the clock plan has a part of another form ({problem})") from problem
        _check_plan(plan)
        return plan

    @classmethod
    def read(cls, file: str | Path) -> ClockPlan:
        """Read a plan from a file. Raises `InvalidInput` for a file that holds none, in one line."""
        try:
            value = parse_json(read_plain_file(Path(file)).decode("utf-8-sig"))
        except OSError as problem:
            raise InvalidInput(f"plan {file}: cannot be read ({problem.strerror})") from problem
        except ValueError as problem:
            raise InvalidInput(f"plan {file}: no JSON ({problem})") from problem
        try:
            return cls.from_json(value)
        except InvalidInput as problem:
            raise InvalidInput(f"plan {file}: {problem}") from None

    def summary(self) -> str:
        """The plan as text: the clock, what each way of choosing saves, layers, front and phases."""
        choice = "\n".join(textwrap.wrap(self.describe_choice(), TABLE_WIDTH))
        parts = [choice, "", _format_savings(self)]
        if len(self.layers) > 1:
            parts += ["", _format_layers(self)]
        if self.front:
            parts += ["", _format_front(self)]
        parts += [""] * bool(self.phases) + list(self.list_advice())
        return "\n".join(parts)

    def describe_choice(self) -> str:
        """One sentence: the clock, the limit on the time, and the time expected."""
        simulated = " (simulated)" if self.simulated else ""
        first, is_single = self.layers[0], len(self.layers) == 1
        kernel = f", kernel {first.schedule} ({first.role})" if is_single else ""
        limit = f"at most {100 * self.max_slowdown:g}% more time than the fastest at {self.default_mhz} MHz"
        words = f"Clock plan for {self.device}{simulated}: {self.clock_mhz} MHz{kernel}; {limit}; "
        words += f"{_format_share(self.slowdown)} expected"
        if self.gap >= 0.0005 and not is_single:
            words += f"; another choice of kernels would save {100 * self.gap:.1f}% more at most"
        return words

    def list_advice(self) -> tuple[str, ...]:
        """A sentence for each phase of the model, where there are several."""
        return tuple(
            f"{advice.phase} alone: {advice.clock_mhz} MHz would save {100 * advice.saving:z.1f}% at "
            f"{_format_share(advice.slowdown)} time (advice: this plan has one clock)"
            for advice in self.phases
        )

    def list_layers_by_saving(self) -> tuple[tuple[PlannedLayer, float], ...]:
        """Each layer with the share of the model's energy that it saves, the one that saves most first."""
        reference_j = self.energy_j.value / max(1e-12, 1.0 - self.savings.together.value)
        ranked = sorted(self.layers, key=lambda layer: -layer.saved_j)
        return tuple((layer, layer.saved_j / reference_j) for layer in ranked)


def _build_plan(value: Mapping[str, Any]) -> ClockPlan:
    """Raises `KeyError` and `TypeError` for parts that are missing or of another form."""
    names = ("device", "simulated", "clock_mhz", "default_mhz", "max_slowdown", "slowdown", "gap")
    layers = tuple(
        PlannedLayer(
            **{
                **layer,
                "latency_s": Estimate(**layer["latency_s"]),
                "energy_j": Estimate(**layer["energy_j"]),
            }
        )
        for layer in value["layers"]
    )
    return ClockPlan(
        **{name: value[name] for name in names},
        layers=layers,
        latency_s=Estimate(**value["latency_s"]),
        energy_j=Estimate(**value["energy_j"]),
        savings=PlanSavings(**{name: Estimate(**one) for name, one in value["savings"].items()}),
        front=tuple(FrontPoint(**point) for point in value["front"]),
        phases=tuple(PhaseAdvice(**phase) for phase in value["phases"]),
    )


def _check_plan(plan: ClockPlan) -> None:
    """Raise `InvalidInput` for values that no plan has."""
    if not isinstance(plan.device, str) or not plan.device:
        raise InvalidInput(f"device: {format_value(plan.device)} is no name of a device")
    for name in ("clock_mhz", "default_mhz"):
        mhz = getattr(plan, name)
        if isinstance(mhz, bool) or not isinstance(mhz, int) or not 0 < mhz < 10_000:
            raise InvalidInput(f"{name}: {format_value(mhz)} is no clock; a clock is a whole number of MHz")
    if not plan.layers:
        raise InvalidInput("layers: there are none; a plan has one layer or more")
    for name in ("max_slowdown", "slowdown", "gap"):
        share = getattr(plan, name)
        if not is_number(share) or not math.isfinite(share):
            raise InvalidInput(f"{name}: {format_value(share)} is no finite number")


def _format_savings(plan: ClockPlan) -> str:
    title = "Energy saved against the fastest kernels at the default clock, 95% intervals"
    if plan.simulated:
        title += "; simulated"
    rows = [(name, f"{100 * x.value:z.1f}%", _format_interval(x)) for name, x in plan.savings.list_named()]
    return format_table(("by choosing", "saved", "interval"), rows, title)


def _format_interval(share: Estimate) -> str:
    return f"{100 * share.low:z.1f}% to {100 * share.high:z.1f}%"


def _format_share(share: float) -> str:
    return f"{100 * share:+z.1f}%"


def _format_layers(plan: ClockPlan) -> str:
    ranked = plan.list_layers_by_saving()
    rows = []
    for layer, saved in ranked[:MAX_LAYERS]:
        figures = format_quantity(layer.latency_s.value, "s"), format_quantity(layer.energy_j.value, "J")
        more = _format_share(layer.slowdown), f"{100 * saved:z.1f}%"
        rows.append((layer.name, str(layer.calls), layer.role, *figures, *more))
    headers = ("layer", "calls", "kernel", "latency", "energy", "time", "saves")
    left_out = (
        f"; {count_nouns(len(ranked) - MAX_LAYERS, 'layer')} not shown" if len(ranked) > MAX_LAYERS else ""
    )
    title = (
        f"Layers at {plan.clock_mhz} MHz: figures of a call, and share of the model's energy saved{left_out}"
    )
    return format_table(headers, rows, title)


def _format_front(plan: ClockPlan) -> str:
    rows = [
        (f"{100 * p.max_slowdown:g}%", str(p.clock_mhz), _format_share(p.slowdown), f"{100 * p.saving:z.1f}%")
        for p in plan.front
    ]
    return format_table(
        ("more time allowed", "clock [MHz]", "time", "saved"), rows, "Plans within other limits"
    )
