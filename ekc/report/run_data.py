"""The figures of a run that pictures and reports show beside its data: frozen values that are computed from
it, and columns with one entry per trial.

An unknown figure is NaN. Latency, power and energy are per call of the operator, in seconds, watts and
joules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.search.data.result import TuningData

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class TrialColumns:
    """All trials in the order of trying, failures included. Arrays are [trials]."""

    latency_s: Array
    energy_j: Array
    """Metered where `metered`, otherwise predicted."""
    energy_low_j: Array
    """Lower end of the 95 % confidence interval of a metered energy."""
    energy_high_j: Array
    metered: Flags
    metering_s: Array
    """Seconds of metering that the run had spent when the trial was first metered."""
    dram_bytes: Array
    """Bytes to and from device memory of one call, by the analysis."""

    def __len__(self) -> int:
        return len(self.latency_s)

    @property
    def ok(self) -> Flags:
        """Whether each trial has a latency and did not fail."""
        return np.isfinite(self.latency_s)


@dataclass(frozen=True)
class NamedTrial:
    """The best, fastest or naive schedule."""

    digest: str
    latency_s: float
    energy_j: float
    metered: bool
    dram_bytes: float


@dataclass(frozen=True, eq=False)
class Dependence:
    """Partial dependence of a figure on one input of a model."""

    name: str
    values: Array
    relative: Array
    """Mean prediction at each value, relative to the mean over all values."""


@dataclass(frozen=True, eq=False)
class Importance:
    """How much each input moves the predictions of a model of one figure, and the error of that model."""

    inputs: str
    """"decisions" or "features"."""
    figure: str
    """"latency" or "energy"."""
    rows: int
    """Schedules that the model learned from."""
    error: float
    """Median absolute relative error in a cross-validation."""
    explained: float
    """Share of the variance of the log of the figure that the predictions explain there."""
    names: tuple[str, ...]
    """Inputs, the most important first."""
    effect: Array
    """Mean absolute contribution of each input to the log of the figure."""
    dependences: tuple[Dependence, ...]

    @property
    def is_useful(self) -> bool:
        """Whether the model explains at least half of the variance."""
        return self.explained >= 0.5


@dataclass(frozen=True, eq=False)
class EnergyByCause:
    """Energy of one call by cause, of the named schedules."""

    roles: tuple[str, ...]
    causes: tuple[str, ...]
    joules: Array
    """[roles, causes]."""


@dataclass(frozen=True, eq=False)
class SpaceMap:
    """Decisions of the trials in two dimensions: principal components. Arrays are [trials]."""

    x: Array
    y: Array
    shares: tuple[float, float]
    """Share of the variance of the decisions that each axis shows."""
    x_names: tuple[str, ...]
    """Decisions that weigh most on the horizontal axis."""
    y_names: tuple[str, ...]
    decision_count: int


@dataclass(frozen=True)
class KernelListing:
    """The schedule and the code of a kernel."""

    role: str
    digest: str
    python: str
    """The schedule as Python, a step a line."""
    program: str
    cuda: str
    step_by_line: tuple[int, ...]
    """Number of the step, from 1, that each line of `cuda` comes from; 0 for none."""
    machine_code: str = ""
    missing_machine_code: str = ""
    """Why there is no machine code."""
    note: str = ""
    """Remark on the code; "" for none."""
    drawing: str = ""
    """SVG of the schedule."""


@dataclass(frozen=True)
class Table:
    """A table of text. The first column has the names of the rows."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, eq=False)
class RunData:
    """One run, or all measurements of an operator under one set of conditions."""

    data: TuningData
    title: str
    """The operator, in one line."""
    operator: str
    """The operator with its expression."""
    trials: TrialColumns
    named: dict[str, NamedTrial]
    """By role: "best", "fastest" and "naive", those that were measured."""
    figures: Table
    notes: tuple[tuple[str, str], ...] = ()
    """Names and texts."""
    conditions: tuple[tuple[str, str], ...] = ()
    """Names and values."""
    clock_front: Table | None = None
    """Figures of the best schedule at other clocks; None if they were not searched."""
    model_card: Table | None = None
    predicted: str = ""
    """How the predictions of the data were made."""
    importances: tuple[Importance, ...] = ()
    causes: EnergyByCause | None = None
    space: SpaceMap | None = None
    kernels: tuple[KernelListing, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why a picture or a part is missing, by its name."""
    layer: str = ""
    """Name of the layer of a network; "" for a single operator."""
    calls: int = 0
    """Times that the layer occurs; 0 if it is unknown."""
