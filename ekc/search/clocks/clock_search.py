"""Schedules and clocks searched together: which kernel is metered next at which clock, and the outcome.

Every kept kernel is timed at a few clocks. Then, one metering at a time: energies are drawn that the
measurements so far allow, the plan of least energy is chosen for each draw, and the kernel and clock are
metered that these plans contain most often and whose energies are least certain. The search ends where the
plans of the draws would save hardly more than the plan of the expected energies; then the kernels of the plan
are metered at its clock. It ends in any case with its budget. At the end the kernels of the plan are timed at
the chosen clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ekc.devices.statistics import NORMAL_QUANTILE_95, MeasuredValue
from ekc.gaussian_process import Array
from ekc.search.clocks.choose import (
    ClockChoice,
    KernelFront,
    LayerKernels,
    ModelFronts,
    WeightedFigures,
    choose_fastest,
    choose_plan,
    solve_all_clocks,
)
from ekc.search.clocks.clock_model import ClockModel, ClockPrediction, ClockReading
from ekc.search.clocks.plan import Estimate
from ekc.search.data.defaults import CLOCK_MODEL, CLOCK_SEARCH

FAILED_FACTOR = 1e9
"""Factor on time and energy at a clock that failed: no plan has it."""


@dataclass(frozen=True)
class ClockKernel:
    """A kernel to follow over clocks, with its figures at the default clock."""

    digest: str
    """Digest of the schedule."""
    role: str
    """As `KernelFront.role`."""
    readings: tuple[ClockReading, ...]
    """Readings at the default clock, one or more, `kernel` of no meaning; one of them with power."""


ClockLayer: TypeAlias = LayerKernels[ClockKernel]


@dataclass(frozen=True)
class ClockBoard:
    """The device that a plan is made for."""

    name: str
    simulated: bool
    clocks_mhz: tuple[int, ...]
    """Clocks that can be set, ascending."""
    default_mhz: float
    """SM clock of the readings at the default clock."""
    power_cap_w: float | None = None


class ClockMeter(Protocol):
    """Measures a kernel of a layer at a clock; None after a failure, which it has reported."""

    def time(self, layer: int, kernel: int, mhz: int) -> ClockReading | None:
        """Time a kernel at a clock that is set."""

    def meter(self, layer: int, kernel: int, mhz: int, repeat: int) -> ClockReading | None:
        """Time and meter a kernel; `repeat` numbers the meterings of one kernel at one clock from 1."""

    def can_continue(self) -> bool:
        """Whether there is time for another timing."""

    def can_meter(self) -> bool:
        """Whether another metering keeps within the metered seconds."""


@dataclass
class ClockSearch:
    """The search over the kernels of one or more layers on one board. Call `run` once; an exception from the
    meter leaves what was measured before."""

    layers: Sequence[ClockLayer]
    board: ClockBoard
    meter: ClockMeter
    max_slowdown: float
    seed: int = 0
    clocks_mhz: tuple[int, ...] = field(init=False)
    """Clocks that are considered: from `CLOCK_SEARCH.lowest_share` of the highest on."""
    meterings: dict[tuple[int, int, int], int] = field(default_factory=dict, init=False)
    """Meterings by layer, kernel and clock."""

    def __post_init__(self) -> None:
        highest = self.board.clocks_mhz[-1]
        default = min(self.board.clocks_mhz, key=lambda mhz: abs(mhz - self.board.default_mhz))
        least = min(CLOCK_SEARCH.lowest_share * highest, default)
        self.clocks_mhz = tuple(mhz for mhz in self.board.clocks_mhz if mhz >= least)
        self.default_mhz = default
        self._random = np.random.default_rng(self.seed)
        self._flat = [(n, k) for n, layer in enumerate(self.layers) for k in range(len(layer.kernels))]
        self._numbers = {pair: number for number, pair in enumerate(self._flat)}
        self._readings: list[ClockReading] = []
        self._timed: set[tuple[int, int, int]] = set()
        self._failed: set[int] = set()
        for (n, k), number in self._numbers.items():
            self._timed.add((n, k, default))
            self._readings += [replace(r, kernel=number) for r in self.layers[n].kernels[k].readings]

    def run(self) -> None:
        """Time the kernels at the anchor clocks, then meter where the plan could change."""
        for share in CLOCK_SEARCH.anchor_shares:
            mhz = min(self.clocks_mhz, key=lambda clock: abs(clock - share * self.clocks_mhz[-1]))
            for n, k in self._flat:
                if self._can_continue():
                    self._time(n, k, mhz)
        while self._can_continue() and self.meter.can_meter():
            pair = self._pick_next()
            if pair is None:
                break
            self._meter(*pair)
        self._time_plan()

    @property
    def has_moved(self) -> bool:
        """Whether any kernel was measured at another clock than the default."""
        return any(mhz != self.default_mhz for _, _, mhz in self._timed)

    def make_fronts(self) -> ModelFronts:
        """The figures of all kernels over the clocks, by all readings so far."""
        prediction = self._fit().predict()
        layers = []
        for n, layer in enumerate(self.layers):
            kernels = tuple(self._make_front(prediction, n, k) for k in range(len(layer.kernels)))
            layers.append(LayerKernels(layer.name, layer.operator, layer.calls, kernels))
        board = self.board
        return ModelFronts(board.name, board.simulated, self.clocks_mhz, self.default_mhz, tuple(layers))

    def _make_front(self, prediction: ClockPrediction, layer: int, kernel: int) -> KernelFront:
        row, found = self._numbers[layer, kernel], self.layers[layer].kernels[kernel]
        at_default = {self.default_mhz} if any(r.power_w for r in found.readings) else set()
        metered = at_default | {mhz for n, k, mhz in self.meterings if (n, k) == (layer, kernel)}
        return KernelFront(
            found.digest,
            found.role,
            _make_estimates(prediction.log_latency[row], prediction.latency_error[row]),
            _make_estimates(prediction.log_energy[row], prediction.energy_error[row]),
            tuple(mhz in metered for mhz in self.clocks_mhz),
        )

    def _fit(self) -> ClockModel:
        return ClockModel(self._readings, self.clocks_mhz, self.board.power_cap_w)

    def _can_continue(self) -> bool:
        return len(self._failed) < CLOCK_SEARCH.max_failures and self.meter.can_continue()

    def _time(self, layer: int, kernel: int, mhz: int) -> None:
        if (layer, kernel, mhz) in self._timed or mhz in self._failed:
            return
        self._add(layer, kernel, mhz, self.meter.time(layer, kernel, mhz))

    def _meter(self, layer: int, kernel: int, mhz: int) -> None:
        repeat = self.meterings.get((layer, kernel, mhz), 0) + 1
        reading = self.meter.meter(layer, kernel, mhz, repeat)
        if reading is not None:
            self.meterings[layer, kernel, mhz] = repeat
        self._add(layer, kernel, mhz, reading)

    def _add(self, layer: int, kernel: int, mhz: int, reading: ClockReading | None) -> None:
        if reading is None:
            self._failed.add(mhz)
            return
        self._timed.add((layer, kernel, mhz))
        self._readings.append(replace(reading, kernel=self._numbers[layer, kernel]))

    def _weigh(self, log_latency: Array, log_energy: Array) -> WeightedFigures:
        """Split [..., kernel, clock] arrays by layer, times its calls; clocks that failed are left out."""
        latency, energy, begin = [], [], 0
        for layer in self.layers:
            rows, calls = slice(begin, begin + len(layer.kernels)), layer.call_count
            begin += len(layer.kernels)
            latency.append(calls * np.exp(log_latency[rows]))
            energy.append(calls * np.exp(log_energy[..., rows, :]))
        for figures in (*latency, *energy):
            figures[..., self._is_failed] *= FAILED_FACTOR
        return WeightedFigures(tuple(latency), tuple(energy))

    @property
    def _is_failed(self) -> NDArray[np.bool_]:
        """Whether each clock has failed; the default never counts as failed."""
        return np.array([mhz in self._failed - {self.default_mhz} for mhz in self.clocks_mhz])

    def _choose(self, figures: WeightedFigures) -> tuple[ClockChoice | None, float]:
        """The plan by these figures, and the limit on the time of the model."""
        default = self.clocks_mhz.index(self.default_mhz)
        limit = (1 + self.max_slowdown) * choose_fastest(figures, default, self.layers).latency_s
        return choose_plan(figures, limit), limit

    def _pick_next(self) -> tuple[int, int, int] | None:
        """The layer, kernel and clock to meter next; None where nothing more would pay."""
        model = self._fit()
        prediction = model.predict()
        expected = self._weigh(prediction.log_latency, prediction.log_energy)
        choice, limit = self._choose(expected)
        if choice is None:
            return None
        drawn = self._weigh(prediction.log_latency, model.draw_log_energies(CLOCK_SEARCH.draws, self._random))
        found = solve_all_clocks(drawn, limit)
        clocks = np.argmin(found.energy_j, axis=-1)
        rows = np.arange(CLOCK_SEARCH.draws)
        planned = sum(e[:, k, choice.clock] for e, k in zip(drawn.energy_j, choice.kernels, strict=True))
        missed = float(np.mean(planned - np.minimum(found.energy_j[rows, clocks], planned)))
        if missed < CLOCK_SEARCH.stop_saving * choice.energy_j:
            return self._pick_unconfirmed(choice, expected)
        counts = np.zeros(prediction.log_energy.shape)
        for n, kernels in enumerate(found.kernels):
            begin = self._numbers[n, 0]
            np.add.at(counts, (begin + kernels[rows, clocks], clocks), 1.0)
            counts[begin + choice.kernels[n], choice.clock] += CLOCK_SEARCH.draws
        weights = np.concatenate(expected.energy_j)
        return self._pick_pair(counts * weights * prediction.power_error)

    def _pick_unconfirmed(
        self, choice: ClockChoice, expected: WeightedFigures
    ) -> tuple[int, int, int] | None:
        """The kernel of the plan that takes most energy among those not metered at its clock; None if there
        is none, as at the default clock."""
        mhz = self.clocks_mhz[choice.clock]
        weights = [-e[k, choice.clock] for e, k in zip(expected.energy_j, choice.kernels, strict=True)]
        for n in np.argsort(weights, kind="stable").tolist():
            pair = n, choice.kernels[n], mhz
            if mhz != self.default_mhz and pair not in self.meterings:
                return pair
        return None

    def _pick_pair(self, scores: Array) -> tuple[int, int, int] | None:
        for index in np.argsort(-scores, axis=None, kind="stable"):
            number, column = np.unravel_index(index, scores.shape)
            (n, k), mhz = self._flat[int(number)], self.clocks_mhz[int(column)]
            if scores[number, column] <= 0:
                return None
            is_open = (
                self.meterings.get((n, k, mhz), 0) < CLOCK_SEARCH.max_repeats and mhz not in self._failed
            )
            if is_open:
                return n, k, mhz
        return None

    def _time_plan(self) -> None:
        """Time the kernels of the plan at its clock until the plan consists of timed kernels."""
        for _ in range(CLOCK_SEARCH.front_clocks):
            prediction = self._fit().predict()
            choice, _ = self._choose(self._weigh(prediction.log_latency, prediction.log_energy))
            if choice is None or not self._can_continue():
                return
            mhz = self.clocks_mhz[choice.clock]
            wanted = [(n, k, mhz) for n, k in enumerate(choice.kernels) if (n, k, mhz) not in self._timed]
            if not wanted:
                return
            for pair in wanted:
                self._time(*pair)


def make_reading(
    clock_mhz: float,
    latency: MeasuredValue,
    power: MeasuredValue | None = None,
    idle_w: float | None = None,
    is_capped: bool = False,
    count: int = 1,
) -> ClockReading:
    """A reading of figures with their 95 % intervals: seconds, and watts of the board, means of `count`
    meterings."""
    more = CLOCK_MODEL.power_scatter / count**0.5
    scatter = 0.0 if power is None else float(np.hypot(_relative_std(power), more))
    watts = None if power is None else power.value
    return ClockReading(
        0, clock_mhz, latency.value, _relative_std(latency), watts, scatter, idle_w, is_capped
    )


def _relative_std(measured: MeasuredValue) -> float:
    return (measured.interval.high - measured.interval.low) / (2 * NORMAL_QUANTILE_95 * measured.value)


def _make_estimates(logs: Array, errors: Array) -> tuple[Estimate, ...]:
    """Values with 95 % intervals."""
    half = NORMAL_QUANTILE_95 * errors
    edges = zip(
        np.exp(logs).tolist(), np.exp(logs - half).tolist(), np.exp(logs + half).tolist(), strict=True
    )
    return tuple(Estimate(*figures) for figures in edges)
