"""Event energies of the A100 from the clock at which it ran kernels under its power cap.

At that clock the board draws its cap, so the energy of a kernel's events is the cap, less the idle and clock
power of the model, times the recorded time. Energies that the rows cannot tell from each other share one
factor on their published figures (`GROUPS`); every factor stays within `power.BOUND_FACTOR`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from benchmarks.simulator.rows import Pairs, Row, Vector
from ekc.devices.simulated import power
from ekc.devices.simulated.specs import GpuSpec

FOLDS = 5
DRAM = power.DRAM
GROUPS: Mapping[str, tuple[str, ...]] = {
    name: group.kinds for name, group in power.ENERGY_GROUPS.items() if name != "tensor core"
}
"""Energies that are fitted by one factor each; tensor cores keep their estimate."""
_SETTLING_STEPS, _BISECTION_STEPS = 12, 40


@dataclass(frozen=True, eq=False)
class Runs:
    """Recorded runs of kernels, one in each row of every array."""

    seconds: Vector
    clock_mhz: Vector
    power_w: Vector
    kernel: NDArray[np.int64]
    """Number of the kernel; two names of one kernel have the same."""
    fold: NDArray[np.int64]
    tile_area: Vector
    """Elements of C that a thread owns."""
    settings: Vector
    """The configuration, `[n, settings]`."""
    picojoules: Vector
    """Joules of one launch at relative voltage 1 for each picojoule of an event's energy, `[n, kinds]`."""
    busy_share: Vector
    """Share of the SMs that have work, 0 to 1."""

    def __getitem__(self, rows: Any) -> Runs:
        return Runs(**{name: value[rows] for name, value in vars(self).items()})


def identify_kernel(row: Row) -> str:
    """Name of a row's kernel. The shape of the threads that copy an operand counts where it is copied."""
    one = replace(row.one, mdima=row.one.mdima * row.one.sa, ndimb=row.one.ndimb * row.one.sb)
    return str(one)


def choose_fold(kernel: str) -> int:
    """Fold of a kernel by a hash of its name, the same in every run."""
    return int.from_bytes(hashlib.sha256(kernel.encode()).digest()[:4], "big") % FOLDS


def list_kinds(spec: GpuSpec) -> dict[str, float]:
    """Kinds of events in the order of `Runs.picojoules`, and their shipped energies in picojoules."""
    return {kind: one.pj for kind, one in power.UNIT_ENERGIES.items()} | {DRAM: spec.power.memory_pj_per_byte}


def list_published(spec: GpuSpec) -> dict[str, float]:
    """Published energy of each kind in picojoules."""
    core = {kind: one.published_pj for kind, one in power.UNIT_ENERGIES.items()}
    return core | {DRAM: spec.power.memory_published_pj_per_byte}


def make_runs(spec: GpuSpec, pairs: Pairs) -> Runs:
    """The rows as arrays."""
    names = [identify_kernel(row) for row, _ in pairs]
    number = {name: n for n, name in enumerate(dict.fromkeys(names))}
    shipped = np.array(list(list_kinds(spec).values()))
    energies = [power.compute_event_energies(spec, work.events) for _, work in pairs]
    return Runs(
        seconds=np.array([row.seconds for row, _ in pairs]),
        clock_mhz=np.array([row.clock_mhz for row, _ in pairs]),
        power_w=np.array([row.power_w for row, _ in pairs]),
        kernel=np.array([number[name] for name in names]),
        fold=np.array([choose_fold(name) for name in names]),
        tile_area=np.array([float(row.one.thread_tile) for row, _ in pairs]),
        settings=np.array([list(vars(row.one).values()) for row, _ in pairs], dtype=np.float64),
        picojoules=np.array([[one.joules for one in each] for each in energies]) / shipped,
        busy_share=np.array([min(1.0, work.events.blocks / spec.sms) for _, work in pairs]),
    )


def compute_hot_temperature(spec: GpuSpec) -> float:
    """Degrees Celsius of a board that draws its cap."""
    return spec.power.ambient_c + spec.power.kelvin_per_w * spec.power.tdp_w


def compute_active_power(
    spec: GpuSpec, runs: Runs, energies: Vector, clock: Vector, seconds: Vector
) -> Vector:
    """Watts above idle at a clock and time of each row, for picojoules by kind `[kinds]`."""
    scale = np.where(
        np.array(list(list_kinds(spec))) == DRAM, 1.0, spec.voltage.at_clock(clock)[:, None] ** 2
    )
    tree = np.array(power.compute_active_clock_power(spec, clock, runs.busy_share))
    return tree + (runs.picojoules * scale) @ energies / seconds


def compute_settled_power(
    spec: GpuSpec, runs: Runs, energies: Vector, clock: Vector, seconds: Vector
) -> Vector:
    """Board watts of a warm board at a clock and time of each row, regardless of its cap."""
    active = compute_active_power(spec, runs, energies, clock, seconds)
    found = np.zeros(len(active))
    for _ in range(_SETTLING_STEPS):
        celsius = spec.power.ambient_c + spec.power.kelvin_per_w * found
        found = active + power.compute_idle_power(spec, clock, celsius)
    return found


def predict_capped_clock(
    spec: GpuSpec, runs: Runs, energies: Vector, get_seconds: Callable[[Vector], Vector]
) -> Vector:
    """Highest clock of each row at which the board stays under its cap; `get_seconds` gives the times of all
    rows at a clock of each."""
    hot = compute_hot_temperature(spec)
    low, high = (
        np.full(len(runs.seconds), float(spec.min_mhz)),
        np.full(len(runs.seconds), float(spec.boost_mhz)),
    )
    for _ in range(_BISECTION_STEPS):
        middle = 0.5 * (low + high)
        watts = compute_active_power(spec, runs, energies, middle, get_seconds(middle))
        is_over = watts + power.compute_idle_power(spec, middle, hot) > spec.power.tdp_w
        low, high = np.where(is_over, low, middle), np.where(is_over, middle, high)
    return low


def fit_energies(spec: GpuSpec, runs: Runs, groups: Mapping[str, tuple[str, ...]] = GROUPS) -> Vector:
    """Picojoules by kind `[kinds]` with which the model draws the cap at the recorded clocks and times: least
    squares of watts, one factor for each group within the bounds."""
    kinds, published = list(list_kinds(spec)), np.array(list(list_published(spec).values()))
    energies = np.array(list(list_kinds(spec).values()))
    member = np.array([[kind in group for kind in kinds] for group in groups.values()])
    energies = np.where(member.any(axis=0), 0.0, energies)
    hot = compute_hot_temperature(spec)
    clock, seconds = runs.clock_mhz, runs.seconds
    fixed = power.compute_idle_power(spec, clock, hot)
    fixed += compute_active_power(spec, runs, energies, clock, seconds)
    none = compute_active_power(spec, runs, 0.0 * energies, clock, seconds)
    columns = [compute_active_power(spec, runs, published * one, clock, seconds) - none for one in member]
    limits = (1.0 / power.BOUND_FACTOR, power.BOUND_FACTOR)
    found = lsq_linear(np.stack(columns, axis=1), spec.power.tdp_w - fixed, limits).x
    return energies + published * (found @ member)
