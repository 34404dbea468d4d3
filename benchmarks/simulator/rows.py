"""Recorded rows of CLBlast's GEMM, what our kernels of the same configurations do, and errors of predictions,
beside those of trivial predictors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize

from benchmarks.common import clblast, estimated
from benchmarks.common.clblast import Xgemm
from benchmarks.common.ranking import compute_error, spearman
from benchmarks.common.recordings import read_table
from ekc.codegen.compiled import CompiledKernel, Launch, Resources
from ekc.devices.simulated import power, specs
from ekc.devices.simulated.events import Events, count_events
from ekc.devices.simulated.latency import FITTED_CONSTANTS, LatencyConstants, estimate_latency
from ekc.devices.simulated.launch_counts import (
    LaunchProfile,
    Occupancy,
    compute_launch_occupancy,
    profile_kernel,
)
from ekc.devices.simulated.memory_traffic import SimulatedTraffic
from ekc.devices.simulated.operating_point import KernelWork as Todo
from ekc.devices.simulated.operating_point import SteadyState, compute_steady_state
from ekc.devices.simulated.specs import GpuSpec

SIDE = 4096
Vector = NDArray[np.float64]
TABLE_ROWS = 8
"""Rows of the table that predicts power from TFLOP/s."""
EVALUATIONS = 150


@dataclass(frozen=True)
class Recording:
    """One file of rows, and the GPU they are of."""

    file: str
    device: str
    clock_share: float = 0.0
    """Clock over the boost clock of the data sheet where the rows do not hold it: fitted by
    fidelity.py, as cards boost beyond their data sheet while they are cool. 0 where they do."""

    @property
    def spec(self) -> GpuSpec:
        """Its GPU."""
        return specs.SPECS[self.device]


LATENCY = (
    Recording("a100_gemm_energy.csv.gz", "a100"),
    Recording("clblast_gemm_rtx_3090.csv.gz", "rtx3090", 1.05),
    Recording("clblast_gemm_rtx_2080_ti.csv.gz", "rtx2080ti", 1.19),
)
CLOCKS = Recording("a100_gemm_clocks.csv", "a100")
FMA = Recording("fp32_power_vs_clock.csv", "a100")


@dataclass(frozen=True)
class Row:
    """One recorded measurement; power 0 where none was taken, the data sheet's clock where none was kept."""

    one: Xgemm
    seconds: float
    clock_mhz: float
    power_w: float


@dataclass(frozen=True)
class Work:
    """Work of a configuration, compiled or estimated; or of several, with an array for each figure."""

    events: Events
    resident: Occupancy
    registers: Any


Pairs = Sequence[tuple[Row, Work]]
"""Rows, and what their configurations do."""


def stack_works(works: Sequence[Work]) -> Work:
    """Several works as one whose figures are arrays, for the models, which compute all at once."""

    def stack(parts: Sequence[Any]) -> dict[str, Any]:
        return {f.name: np.array([getattr(one, f.name) for one in parts]) for f in fields(parts[0])}

    events, traffic = [w.events for w in works], [w.events.traffic for w in works]
    stacked = stack(events) | {"traffic": SimulatedTraffic(**stack(traffic))}
    residents = Occupancy(**stack([w.resident for w in works]))
    return Work(Events(**stacked), residents, np.array([w.registers for w in works]))


def pair_rows(rows: Sequence[Row], works: dict[Xgemm, Work | None]) -> Pairs:
    """Rows whose kernel fits the GPU."""
    return [(row, work) for row in rows if (work := works[row.one]) is not None]


def read(data: Path, recording: Recording) -> list[Row]:
    """All rows of a recording."""
    return [_parse_row(fields, recording) for fields in read_table(data / recording.file)]


def _parse_row(fields: dict[str, str], recording: Recording) -> Row:
    clock = float(fields.get("clock_mhz", recording.spec.boost_mhz))
    power = float(fields.get("power_w", 0.0))
    return Row(clblast.parse_configuration(fields), float(fields["time_ms"]) * 1e-3, clock, power)


def sample_stratified(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    """One row out of each of `count` equal slices of the rows in order of time."""
    if count >= len(rows):
        return list(rows)
    random = np.random.default_rng(seed)
    order = np.argsort([row.seconds for row in rows], kind="stable")
    return [rows[int(random.choice(part))] for part in np.array_split(order, count)]


def select_half(rows: Iterable[Row], seed: int) -> NDArray[np.bool_]:
    """Which rows to fit on: half of the configurations, all rows of one on the same side."""
    listed = [row.one for row in rows]
    kinds = sorted(set(listed), key=str)
    drawn = np.random.default_rng(seed).permutation(len(kinds)) < len(kinds) / 2
    side = dict(zip(kinds, drawn, strict=True))
    return np.array([side[one] for one in listed])


def is_unfitted(one: Xgemm) -> bool:
    """Whether a configuration belongs to the half that scores; the other half may be fitted on."""
    return hashlib.sha256(str(one).encode()).digest()[-1] % 2 == 1


def compile_work(spec: GpuSpec, one: Xgemm) -> Work | None:
    """Work by ptxas and the PTX machine; None where no block fits the GPU."""
    return get_kernel_work(spec, clblast.compile_kernel(one, SIDE, spec.arch))


def get_kernel_work(spec: GpuSpec, kernel: CompiledKernel) -> Work | None:
    """Work of a kernel of one launch."""
    return _make_work(spec, kernel.launches[0], kernel.resources[0], profile_kernel(kernel)[0])


def estimate_work(spec: GpuSpec, one: Xgemm) -> Work | None:
    """Work by the analysis."""
    return _make_work(spec, *estimated.estimate_work(one, SIDE))


def compute_works(
    spec: GpuSpec, rows: Iterable[Row], how: Callable[[GpuSpec, Xgemm], Work | None]
) -> dict[Xgemm, Work | None]:
    """The work of every configuration among the rows."""
    return {one: how(spec, one) for one in dict.fromkeys(row.one for row in rows)}


def _make_work(spec: GpuSpec, launch: Launch, resources: Resources, ran: LaunchProfile) -> Work | None:
    resident = compute_launch_occupancy(spec.capability, launch, resources)
    if resident.blocks == 0:
        return None
    return Work(count_events(spec, launch, resources, ran, resident), resident, resources.registers)


@dataclass(frozen=True)
class Fit:
    """Rates of the latency model, and the clocks of recordings that do not hold theirs."""

    rates: LatencyConstants
    clock_shares: tuple[float, ...]
    """One for each of `LATENCY`."""


SHIPPED = Fit(FITTED_CONSTANTS, tuple(one.clock_share or 1.0 for one in LATENCY))


def score(predicted: Vector, recorded: Vector) -> dict[str, Any]:
    """Rank correlation and median relative error."""
    rank, error = compute_rank(predicted, recorded), compute_error(predicted, recorded)
    return {"rows": len(recorded), "spearman": rank, "median_error": error}


def predict_times(
    spec: GpuSpec, pairs: Pairs, rates: LatencyConstants = FITTED_CONSTANTS, clock_share: float = 1.0
) -> Vector:
    """Modelled seconds of rows at their clocks."""
    work = stack_works([w for _, w in pairs])
    clocks_mhz = clock_share * np.array([row.clock_mhz for row, _ in pairs])
    return np.asarray(estimate_latency(spec, work.events, work.resident, clocks_mhz, rates).seconds)


def get_recorded(pairs: Pairs) -> Vector:
    """Recorded seconds."""
    return np.array([row.seconds for row, _ in pairs])


def fit(known: Sequence[tuple[Recording, Pairs]]) -> Fit:
    """The rates and clocks with the least mean absolute log error, every recording weighing the same."""
    free = [n for n, (recording, _) in enumerate(known) if recording.clock_share]

    def unpacked(values: Vector) -> Fit:
        shares = [1.0] * len(known)
        for n, value in zip(free, values[2:], strict=True):
            shares[n] = float(value)
        return Fit(LatencyConstants(norm=float(values[0]), global_cycles=float(values[1])), tuple(shares))

    def loss(values: Vector) -> float:
        if values.min() <= 0:
            return float("inf")
        tried = unpacked(values)
        errors = [
            np.log(predict_times(recording.spec, pairs, tried.rates, share) / get_recorded(pairs))
            for (recording, pairs), share in zip(known, tried.clock_shares, strict=True)
        ]
        return sum(float(np.mean(np.abs(error))) for error in errors)

    start = np.array([4.0, 1.0, *(1.1 for _ in free)])
    found = minimize(
        loss, start, method="Nelder-Mead", options={"maxfev": EVALUATIONS, "xatol": 1e-2, "fatol": 1e-4}
    )
    return unpacked(found.x)


def score_by_tile(pairs: Pairs) -> dict[str, Any]:
    """Minus the elements of C that a thread owns, which only ranks times."""
    area = np.array([-row.one.thread_tile for row, _ in pairs], dtype=np.float64)
    return score(area, get_recorded(pairs)) | {"median_error": None}


def run(spec: GpuSpec, work: Work, clock_mhz: float, activity: float = 1.0) -> SteadyState:
    """The state the simulator settles in, without the seeded residuals; `activity` is a factor on the energy
    of events, 1 for random data."""
    energy = power.compute_dynamic_energy(spec, work.events)
    dynamic = power.DynamicEnergy(activity * energy.core_j, energy.memory_j)
    return compute_steady_state(spec, Todo(((work.events, work.resident),), dynamic, (1.0,)), clock_mhz)


def predict_watts(spec: GpuSpec, state: SteadyState) -> float:
    """Board power of a state, warmed up."""
    if state.throttle:
        return spec.power.tdp_w
    found, temperature = 0.0, spec.power.ambient_c
    for _ in range(30):
        found = state.active_power_w + power.compute_idle_power(spec, state.clock_mhz, temperature)
        temperature = spec.power.ambient_c + spec.power.kelvin_per_w * found
    return found


def predict_by_table(flops_per_s: Vector, power_w: Vector, learn: NDArray[np.bool_]) -> Vector:
    """Power by TFLOP/s: the median of the learning rows in each of a few equal slices."""
    edges = np.quantile(flops_per_s[learn], np.linspace(0, 1, TABLE_ROWS + 1)[1:-1])
    slices = np.searchsorted(edges, flops_per_s)
    medians = [
        np.median(power_w[learn & (slices == n)])
        if np.any(learn & (slices == n))
        else np.median(power_w[learn])
        for n in range(TABLE_ROWS)
    ]
    return np.array(medians)[slices]


def predict_constant(values: Vector, learn: NDArray[np.bool_]) -> Vector:
    """The median of the learning rows, for every row."""
    return np.full(len(values), np.median(values[learn]))


def compute_rank(a: Vector, b: Vector) -> float:
    """Rank correlation; 0 where a side ranks nothing, or has a value that is no number."""
    return (spearman(a, b) or 0.0) if np.isfinite(a).all() and np.isfinite(b).all() else 0.0


def resample_groups(groups: ArrayLike, seed: int, draws: int) -> Iterator[NDArray[np.int64]]:
    """Rows of as many groups as there are, drawn with replacement; `groups` names the group of each row."""
    random, (names, index) = np.random.default_rng(seed), np.unique(groups, return_inverse=True)
    members = [np.flatnonzero(index == number) for number in range(len(names))]
    for _ in range(draws):
        yield np.concatenate([members[n] for n in random.integers(len(names), size=len(names))])


def compute_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of drawn values."""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)
