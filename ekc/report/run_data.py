"""The data of a run that pictures and reports show: frozen values with columns, one entry per trial.

An unknown figure is NaN. Latency, power and energy are per call of the operator, in seconds, watts and
joules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
ROLES = ("best", "fastest", "naive")


@dataclass(frozen=True, eq=False)
class TrialColumns:
    """All trials in the order of trying, failures included. Arrays are [trials]."""

    digest: tuple[str, ...]
    structure: tuple[str, ...]
    status: tuple[str, ...]
    """"ok", or the failure."""
    round: NDArray[np.int64]
    latency_s: Array
    power_w: Array
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
        return len(self.digest)

    @property
    def ok(self) -> Flags:
        """Whether each trial has a latency and did not fail."""
        return np.isfinite(self.latency_s)


@dataclass(frozen=True)
class NamedTrial:
    """The best, fastest or naive schedule."""

    role: str
    """One of `ROLES`."""
    digest: str
    latency_s: float
    energy_j: float
    metered: bool
    dram_bytes: float


@dataclass(frozen=True)
class Roofs:
    """Ceilings of the device, for the element type of the operator."""

    flops_per_s: float
    unit: str
    """"FLOP" or "OP"."""
    element_type: str
    bytes_per_s: float
    idle_w: float
    """Idle power in watts; NaN if it is unknown."""
    cap_w: float
    """Power cap of the board in watts."""
    source: str


@dataclass(frozen=True, eq=False)
class Predictions:
    """Energies of metered kernels, as predicted without their metering. Arrays are [kernels]."""

    how: str
    """How the predictions were made."""
    digest: tuple[str, ...]
    predicted_j: Array
    low_j: Array
    """Lower end of the 95 % interval of the prediction."""
    high_j: Array
    metered_j: Array
    metered_low_j: Array
    metered_high_j: Array
    constant_power_j: Array
    """First trivial predictor: latency times a constant power."""
    two_number_j: Array
    """Second trivial predictor: P0 times latency plus E0."""


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
class PlanData:
    """A clock plan: one clock and a kernel for each layer. Savings are shares of the energy of the fastest
    kernels at the default clock."""

    choice: str
    """One sentence: device, clock, limit on the time, time expected."""
    simulated: bool
    clock_mhz: int
    max_slowdown: float
    """Limit on the time of the model, as a share."""
    choices: tuple[str, ...]
    """Name of each choice: kernels, clock, or both."""
    saving: Array
    """[choices]"""
    saving_low: Array
    """Lower end of the 95 % interval."""
    saving_high: Array
    front_slowdown: Array
    """[points]: limit on the time of each plan of the front, as a share."""
    front_clock_mhz: NDArray[np.int64]
    front_saving: Array
    layer_names: tuple[str, ...]
    """The layer that saves most is first."""
    layer_saving: Array
    """[layers]: share of the model's energy that each layer saves."""
    layers: Table
    advice: tuple[str, ...] = ()
    """A sentence for each phase of the model."""


@dataclass(frozen=True, eq=False)
class RunData:
    """One run, or all measurements of an operator under one set of conditions."""

    title: str
    """The operator, in one line."""
    operator: str
    """The operator with its expression."""
    device: str
    """Label of the device, with "(simulated)" if it is."""
    simulated: bool
    objective: str
    max_slowdown: float
    flops: float
    """Operations of one call."""
    trials: TrialColumns
    named: tuple[NamedTrial, ...]
    figures: Table
    notes: tuple[tuple[str, str], ...] = ()
    """Names and texts."""
    conditions: tuple[tuple[str, str], ...] = ()
    """Names and values."""
    clock_front: Table | None = None
    """Figures of the best schedule at other clocks; None if they were not searched."""
    model_card: Table | None = None
    roofs: Roofs | None = None
    predictions: Predictions | None = None
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

    def find_named(self, role: str) -> NamedTrial | None:
        """Find the best, fastest or naive schedule; None if it was not measured."""
        return next((t for t in self.named if t.role == role), None)
