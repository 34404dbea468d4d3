"""Latency and power of kernels over SM clocks, from a few measurements of each.

Each kernel has a physical curve with few numbers, and a Gaussian process for what the curve misses:

    latency(f) = a + b / f                            b: work of the core, a: memory and waiting
    power(f)   = idle(f) + (c V(f)^2 + d) / latency(f)   c: energy of the core per call, d: of the memory
    idle(f)    = i0 + i1 V(f)^2 + i2 f V(f)^2         shared by all kernels of the board
    V(f)       = 1 + rise ((f - knee) / (top - knee))^1.5 above the knee: core voltage, shared likewise

All numbers are fitted by least squares without negative values, in relative errors, and held near usual
values where few measurements decide them. The process has a part that all kernels share (an error of the
board's curve) and a part of each kernel, over the logarithm of the clock. So meterings of one kernel tell of
the others. A kernel over the power cap runs at the clock where it just keeps the cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.gaussian_process import Array, GaussianProcess
from ekc.search.data.defaults import CLOCK_MODEL

Kernels = int | NDArray[np.intp]
"""Number of a kernel, or of each of several."""

VOLTAGE_EXPONENT = 1.5
"""Exponent of the rise of the core voltage above its knee, by recordings of two A100 boards (EnergAIzer,
arXiv 2604.20105); `ekc.devices.simulated.specs` has the same form."""


@dataclass(frozen=True)
class ClockReading:
    """A kernel measured at one clock. Errors are relative standard deviations."""

    kernel: int
    """Number of the kernel."""
    clock_mhz: float
    """SM clock while it was measured."""
    latency_s: float
    latency_error: float
    power_w: float | None = None
    """Board power; None where it was timed alone."""
    power_error: float = 0.0
    idle_w: float | None = None
    """Power of the board without a kernel at that clock, where it was measured."""
    is_capped: bool = False
    """Whether the power cap held the clock down."""


@dataclass(frozen=True)
class ClockPrediction:
    """Latency and energy over clocks, as natural logarithms: arrays [kernel, clock]."""

    log_latency: Array
    latency_error: Array
    """Standard deviation of `log_latency`."""
    log_energy: Array
    energy_error: Array
    power_error: Array
    """Standard deviation of the logarithm of the power."""


@dataclass(frozen=True)
class _BoardCurve:
    """Voltage and idle power of the board over clocks."""

    knee_mhz: float
    top_mhz: float
    rise: float
    idle_parts_w: Array
    """i0, i1, i2 of the idle power, the last per GHz."""

    def compute_voltage_square(self, clock_mhz: Array) -> Array:
        above = np.maximum(0.0, clock_mhz - self.knee_mhz) / (self.top_mhz - self.knee_mhz)
        return np.asarray((1.0 + self.rise * above**VOLTAGE_EXPONENT) ** 2)

    def compute_idle_w(self, clock_mhz: Array) -> Array:
        square = self.compute_voltage_square(clock_mhz)
        return np.asarray(_stack_idle_terms(clock_mhz, square) @ self.idle_parts_w)


class ClockModel:
    """The fitted model of some kernels on one board. Needs a reading with power of some kernel, and a timed
    reading of every kernel."""

    def __init__(
        self, readings: Sequence[ClockReading], clocks_mhz: Sequence[int], power_cap_w: float | None = None
    ) -> None:
        self._readings = list(readings)
        self._clocks = np.array(clocks_mhz, dtype=float)
        self._kernels = max(r.kernel for r in readings) + 1
        self._latency_parts = self._fit_latencies()
        self._metered = [r for r in self._readings if r.power_w is not None]
        self._board, self._work_parts = self._fit_board()
        self._columns = self._find_columns(power_cap_w)
        at = self._clocks[self._columns]
        rows = np.arange(self._kernels)[:, np.newaxis]
        timed, metered = self._readings, self._metered
        log_curve = np.log(self._compute_latency(rows, at))
        self._latency = self._make_process(
            timed,
            [np.log(r.latency_s) - np.log(self._compute_latency(r.kernel, r.clock_mhz)) for r in timed],
            [r.latency_error for r in timed],
            (CLOCK_MODEL.shared_latency_std, CLOCK_MODEL.own_latency_std),
        )
        self._power = self._make_process(
            metered,
            [np.log(_get_power(r)) - np.log(self._compute_power(r.kernel, r.clock_mhz)) for r in metered],
            [r.power_error for r in metered],
            (CLOCK_MODEL.shared_power_std, CLOCK_MODEL.own_power_std),
        )
        self._log_latency_curve = log_curve
        self._log_power_curve = np.log(self._compute_power(rows, at))

    def predict(self) -> ClockPrediction:
        """Predict all kernels at all clocks."""
        (time_mean, time_std), (power_mean, power_std) = self._latency.predict(), self._power.predict()
        log_latency = self._log_latency_curve + time_mean
        log_energy = self._log_power_curve + power_mean + log_latency
        return ClockPrediction(log_latency, time_std, log_energy, np.hypot(time_std, power_std), power_std)

    def draw_log_energies(self, count: int, random: np.random.Generator) -> Array:
        """Draw [draw, kernel, clock] energies that the measurements allow, at the expected latencies."""
        log_latency = self._log_latency_curve + self._latency.predict()[0]
        return np.asarray(self._log_power_curve + log_latency + self._power.draw(count, random))

    def _fit_latencies(self) -> Array:
        """a in seconds and b in seconds x GHz, [kernel, 2]. Raises `ValueError` for a kernel never timed."""
        kernels = np.array([r.kernel for r in self._readings])
        missing = set(range(self._kernels)) - set(kernels.tolist())
        if missing:
            raise ValueError(f"kernel {min(missing)} was never timed")
        inverse = np.array([1e3 / r.clock_mhz for r in self._readings])
        seconds = np.array([r.latency_s for r in self._readings])
        first = np.unique(kernels, return_index=True)[1]
        share = CLOCK_MODEL.usual_fixed_time_share
        usual = np.stack([share * seconds[first], (1 - share) * seconds[first] / inverse[first]], axis=1)
        terms = np.stack([np.ones_like(inverse), inverse], axis=1) / seconds[:, np.newaxis]
        return _fit_pairs(terms, np.ones_like(seconds), kernels, usual)

    def _compute_latency(self, kernels: Kernels, clock_mhz: Array | float) -> Array:
        fixed, core = np.moveaxis(self._latency_parts[kernels], -1, 0)
        return np.asarray(fixed + core * 1e3 / clock_mhz)

    def _compute_power(self, kernels: Kernels, clock_mhz: Array | float) -> Array:
        core, memory = np.moveaxis(self._work_parts[kernels], -1, 0)
        clock = np.asarray(clock_mhz, dtype=float)
        work = core * self._board.compute_voltage_square(clock) + memory
        return np.asarray(self._board.compute_idle_w(clock) + work / self._compute_latency(kernels, clock))

    def _fit_board(self) -> tuple[_BoardCurve, Array]:
        """The voltage curve under which the kernels' powers fit best, and the parts of their energies."""
        tried = [
            self._try_board(knee_share, rise)
            for knee_share in CLOCK_MODEL.knee_shares
            for rise in CLOCK_MODEL.rises
        ]
        _, board, parts = min(tried, key=lambda one: one[0])
        return board, parts

    def _try_board(self, knee_share: float, rise: float) -> tuple[float, _BoardCurve, Array]:
        """Squared errors in units of their standard deviations, the curve, and the parts of the energies."""
        top = float(self._clocks[-1])
        empty = _BoardCurve(knee_share * top, top, rise, np.zeros(3))
        board = _BoardCurve(knee_share * top, top, rise, self._fit_idle(empty))
        parts, cost = self._fit_work(board)
        cost += ((knee_share - CLOCK_MODEL.usual_knee_share) / CLOCK_MODEL.knee_share_std) ** 2
        cost += ((rise - CLOCK_MODEL.usual_rise) / CLOCK_MODEL.rise_std) ** 2
        return cost, board, parts

    def _fit_idle(self, board: _BoardCurve) -> Array:
        """Parts of the idle power, from all idle readings."""
        found = [(r.clock_mhz, r.idle_w) for r in self._readings if r.idle_w]
        if not found:
            least = min(self._metered, key=_get_power)
            found = [(least.clock_mhz, CLOCK_MODEL.usual_idle_share * _get_power(least))]
        clock, watts = np.array(found, dtype=float).T
        terms = _stack_idle_terms(clock, board.compute_voltage_square(clock))
        usual = np.mean(watts) * np.array(CLOCK_MODEL.usual_idle_shares) / terms.mean(axis=0)
        return _fit_near(terms / watts[:, np.newaxis], usual)

    def _fit_work(self, board: _BoardCurve) -> tuple[Array, float]:
        """Joules of core and memory of each kernel, [kernel, 2]; and the squared errors in units of the
        model's error. A kernel that was never metered gets the mean power above idle of the others."""
        kernels = np.array([r.kernel for r in self._metered])
        clock = np.array([r.clock_mhz for r in self._metered])
        power = np.array([_get_power(r) for r in self._metered])
        seconds = self._compute_latency(kernels, clock)
        idle = np.minimum(board.compute_idle_w(clock), CLOCK_MODEL.max_idle_share * power)
        square = board.compute_voltage_square(clock)
        top_seconds = self._compute_latency(np.arange(self._kernels), self._clocks[-1])
        share = CLOCK_MODEL.usual_memory_share
        usual = float(np.mean(power - idle)) * np.stack(
            [(1 - share) * top_seconds, share * top_seconds], axis=1
        )
        seen, first = np.unique(kernels, return_index=True)
        joules = (power - idle)[first] * seconds[first]
        usual[seen] = np.stack([(1 - share) * joules / square[first], share * joules], axis=1)
        terms = np.stack([square, np.ones_like(square)], axis=1) / (seconds * power)[:, np.newaxis]
        parts = _fit_pairs(terms, 1.0 - idle / power, kernels, usual)
        errors = idle / power + np.einsum("nt,nt->n", terms, parts[kernels]) - 1.0
        return parts, float(np.sum((errors / CLOCK_MODEL.curve_error) ** 2))

    def _find_columns(self, power_cap_w: float | None) -> NDArray[np.intp]:
        """Index of the clock that each kernel runs at, at each clock that is set: [kernel, clock]."""
        columns = np.tile(np.arange(len(self._clocks)), (self._kernels, 1))
        for k in range(self._kernels):
            last = len(self._clocks) - 1
            if power_cap_w is not None:
                under = np.flatnonzero(self._compute_power(k, self._clocks) <= power_cap_w)
                last = int(under[-1]) if len(under) else 0
            mine = [r for r in self._readings if r.kernel == k]
            capped = [self._find_nearest(r.clock_mhz) for r in mine if r.is_capped]
            free = [self._find_nearest(r.clock_mhz) for r in mine if not r.is_capped and r.power_w]
            last = min(capped) if capped else max([last, *free])
            columns[k] = np.minimum(columns[k], last)
        return columns

    def _find_nearest(self, clock_mhz: float) -> int:
        return int(np.argmin(np.abs(self._clocks - clock_mhz)))

    def _make_process(
        self,
        readings: list[ClockReading],
        residuals: list[float],
        errors: list[float],
        stds: tuple[float, float],
    ) -> _ResidualProcess:
        kernels = np.array([r.kernel for r in readings])
        clocks = np.array([self._find_nearest(r.clock_mhz) for r in readings])
        observed = np.array(residuals), np.maximum(errors, CLOCK_MODEL.min_error)
        return _ResidualProcess((kernels, clocks), *observed, np.log(self._clocks), self._columns, *stds)


class _ResidualProcess:
    """Gaussian process of residuals over clocks: a shared part and one of each kernel. `columns[kernel,
    clock]`: index of the clock at each point. `places`: kernel, and index of the clock, of each observed
    residual."""

    def __init__(
        self,
        places: tuple[NDArray[np.intp], NDArray[np.intp]],
        residuals: Array,
        errors: Array,
        log_clocks: Array,
        columns: NDArray[np.intp],
        shared_std: float,
        own_std: float,
    ) -> None:
        distance = np.subtract.outer(log_clocks, log_clocks) / CLOCK_MODEL.length_log_clock
        self._similarity = np.exp(-0.5 * distance**2)
        self._places, self._residuals, self._errors, self._columns = places, residuals, errors, columns
        self._shared_std, self._own_std = shared_std, own_std
        covariance = self._compute_cross(*places) + np.diag(errors**2)
        self._process = GaussianProcess(covariance, residuals)
        kernels = np.arange(len(columns))[:, np.newaxis]
        self._cross = self._compute_cross(kernels, columns).reshape(columns.size, -1)

    def predict(self) -> tuple[Array, Array]:
        """Mean and standard deviation of the residual: [kernel, clock]."""
        explained = self._process.compute_explained_variance(self._cross)
        std = np.sqrt(np.maximum(self._shared_std**2 + self._own_std**2 - explained, 0.0))
        shape = self._columns.shape
        return self._process.predict_mean(self._cross).reshape(shape), std.reshape(shape)

    def draw(self, count: int, random: np.random.Generator) -> Array:
        """Draws [draw, kernel, clock]."""
        kernels, clocks = self._columns.shape
        root = np.linalg.cholesky(self._similarity + 1e-9 * np.eye(clocks))
        shared = self._shared_std * random.standard_normal((count, 1, clocks)) @ root.T
        own = self._own_std * random.standard_normal((count, kernels, clocks)) @ root.T
        prior, (seen_kernels, seen_clocks) = shared + own, self._places
        noise = self._errors * random.standard_normal((count, len(self._errors)))
        missed = self._residuals - prior[:, seen_kernels, seen_clocks] - noise
        here = np.take_along_axis(prior, np.broadcast_to(self._columns, prior.shape), axis=2)
        return self._process.move_draws(here.reshape(count, -1), missed, self._cross).reshape(here.shape)

    def _compute_cross(self, kernels: NDArray[np.intp], columns: NDArray[np.intp]) -> Array:
        """Covariance of points with the observations: the shape of the points, and a last axis of these."""
        seen_kernels, seen_clocks = self._places
        same = kernels[..., np.newaxis] == seen_kernels
        similar = self._similarity[columns][..., seen_clocks]
        return np.asarray(similar * (self._shared_std**2 + self._own_std**2 * same))


def _get_power(reading: ClockReading) -> float:
    assert reading.power_w is not None
    return reading.power_w


def _stack_idle_terms(clock_mhz: Array, voltage_square: Array) -> Array:
    return np.stack([np.ones_like(voltage_square), voltage_square, clock_mhz / 1e3 * voltage_square], axis=-1)


def _fit_near(terms: Array, usual: Array) -> Array:
    """Non-negative `x` with `terms @ x` near 1, held near `usual` with the weight of a part of a row."""
    weight = CLOCK_MODEL.usual_weight
    rows = np.concatenate([terms * usual, weight * np.eye(len(usual))])
    wanted = np.concatenate([np.ones(len(terms)), np.full(len(usual), weight)])
    from scipy.optimize import nnls  # Half a second, which most runs need not spend.

    return np.asarray(nnls(rows, wanted)[0] * usual)


def _fit_pairs(terms: Array, target: Array, kernels: NDArray[np.intp], usual: Array) -> Array:
    """The same for two numbers of each kernel at once: `terms` is [row, 2], `usual` [kernel, 2]. The least of
    the solutions with both numbers, or with one of them 0, that are not negative."""
    scaled = terms * usual[kernels]
    normal = np.tile(CLOCK_MODEL.usual_weight**2 * np.eye(2), (len(usual), 1, 1))
    right = np.full((len(usual), 2), CLOCK_MODEL.usual_weight**2)
    np.add.at(normal, kernels, scaled[:, :, np.newaxis] * scaled[:, np.newaxis, :])
    np.add.at(right, kernels, scaled * target[:, np.newaxis])
    both = np.linalg.solve(normal, right[:, :, np.newaxis])[:, :, 0]
    alone = np.maximum(right, 0.0) / np.diagonal(normal, axis1=1, axis2=2)
    options = np.stack([both, alone * [1.0, 0.0], alone * [0.0, 1.0]])
    costs = np.einsum("okt,ktu,oku->ok", options, normal, options) - 2 * np.einsum(
        "okt,kt->ok", options, right
    )
    costs[0, (both < 0).any(axis=1)] = np.inf
    return np.asarray(options[np.argmin(costs, axis=0), np.arange(len(usual))] * usual)
