"""A simulated training job, and its run under a virtual clock: both probe and actuator of the governor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ekc.devices.simulated.residual import make_generator
from ekc.governor.protocols import Limit, OfferedSettings, Settings
from ekc.governor.samples import SensorSamples, Values
from ekc.governor.simulation.card import SimulatedCard, TrueSignals, sample_sensors

PAUSED_POWER_SHARE = 0.6
"""Share of the constant power that a board draws after a while without work (estimate)."""


@dataclass(frozen=True)
class JobStage:
    """A stretch of an iteration with kernels of one kind, or the host alone (`sm_util` 0), at the top clocks
    without a power cap."""

    name: str
    core_share: float
    """Share of the time that follows the SM clock; the rest follows the memory clock (`KernelClockFit`)."""
    sharpness: float
    """Sharpness of the bend between the two (`KernelClockFit`)."""
    power_share: float
    """Power drawn, as a share of the board's power limit."""
    sm_util: float
    """SM use in percent."""
    memory_util: float
    """Memory use in percent."""
    pipe_util: float
    """Use of the busiest arithmetic pipe in percent."""
    tensor_share: float
    """Share of the arithmetic on tensor cores, 0 to 1."""
    is_paused: bool = False
    """Whether the job waits so long that the board's power falls."""


@dataclass(frozen=True)
class StageTables:
    """Time and power of stages under every limit: arrays of (stage, memory clock, SM clock)."""

    stretch: Values
    """Seconds over the seconds at the top clocks without a cap."""
    watts: Values
    clock_mhz: Values
    """SM clock under the power cap."""


def compute_tables(card: SimulatedCard, stages: tuple[JobStage, ...], cap_w: float) -> StageTables:
    """Time and power of every stage at every clock limit under one power cap."""
    uncapped = [_compute_uncapped(card, stage) for stage in stages]
    stretch = np.array([s for s, _ in uncapped])
    watts = np.array([w for _, w in uncapped])
    is_within = np.maximum.accumulate(watts <= cap_w, axis=2)
    # The highest clock within limit and cap; the lowest one where none is within the cap.
    places = np.where(watts <= cap_w, np.arange(watts.shape[2]), 0)
    sm = np.where(is_within, np.maximum.accumulate(places, axis=2), 0)
    stretch, watts = (np.take_along_axis(table, sm, axis=2) for table in (stretch, watts))
    return StageTables(stretch, watts, card.list_sm_clocks_mhz()[sm])


def _compute_uncapped(card: SimulatedCard, stage: JobStage) -> tuple[Values, Values]:
    """(stretch, watts) by memory clock and SM clock, without a cap."""
    resting = card.compute_resting_w()
    if stage.is_paused:
        return np.ones_like(resting), np.full_like(resting, PAUSED_POWER_SHARE * card.spec.power.constant_w)
    if stage.sm_util == 0:
        return np.ones_like(resting), resting
    sm_ratio = card.list_sm_clocks_mhz()[-1] / card.list_sm_clocks_mhz()[None, :]
    memory_ratio = card.memory_mhz[-1] / np.array(card.memory_mhz, float)[:, None]
    p = stage.sharpness
    stretch = (stage.core_share * sm_ratio**p + (1 - stage.core_share) * memory_ratio**p) ** (1 / p)
    awake_w, spec = resting + card.clock_tree_w[None, :], card.spec
    memory_w = stage.memory_util / 100 * spec.memory_bytes_per_s * spec.power.memory_pj_per_byte * 1e-12
    core_w = max(0.0, stage.power_share * spec.power.tdp_w - awake_w[-1, -1] - memory_w)
    return stretch, awake_w + (core_w * card.voltage_squared[None, :] + memory_w) / stretch


@dataclass(frozen=True)
class Timeline:
    """Stretches of work in order; arrays of one length. Stretch i is `seconds[i]` of stage `stage_indices[i]`
    at the top clocks without a power cap."""

    stage_indices: NDArray[np.int32]
    seconds: Values
    iteration: NDArray[np.int32]
    """Number of the training iteration of each stretch, ascending."""
    regime: NDArray[np.int16]
    """Number of the true phase of each stretch; a job without a change has one phase."""

    def with_regime(self, number: int) -> Timeline:
        """The timeline as another true phase."""
        return replace(self, regime=np.full_like(self.regime, number))

    def split(self, share: float) -> tuple[Timeline, Timeline]:
        """Split in two between two iterations."""
        place = int(np.searchsorted(self.iteration, int(share * self.iteration[-1]) or 1))
        first, rest = (
            Timeline(self.stage_indices[p], self.seconds[p], self.iteration[p], self.regime[p])
            for p in (slice(None, place), slice(place, None))
        )
        return first, replace(rest, iteration=rest.iteration - rest.iteration[0])

    @staticmethod
    def concatenate(parts: Sequence[Timeline]) -> Timeline:
        """Timelines one after the other."""
        begins = np.concatenate([[0], np.cumsum([p.iteration[-1] + 1 for p in parts])])
        iterations = [p.iteration + b for p, b in zip(parts, begins[:-1], strict=True)]
        return Timeline(
            np.concatenate([p.stage_indices for p in parts]),
            np.concatenate([p.seconds for p in parts]),
            np.concatenate(iterations).astype(np.int32),
            np.concatenate([p.regime for p in parts]),
        )


@dataclass(frozen=True)
class SimulatedJob(Timeline):
    """All work of a job at any clock."""

    name: str
    kind: str
    card: SimulatedCard
    stages: tuple[JobStage, ...]
    swing_w: float = 0.0
    """Amplitude of a slow swing of power at all clocks, from the room and other cards (`SWING_PERIOD_S`)."""

    def count_regimes(self) -> int:
        """Number of true phases."""
        return int(self.regime.max()) + 1


def compute_clock_indices(card: SimulatedCard, settings: Settings) -> tuple[int, int, float]:
    """(place of the memory clock, place of the SM clock, power cap) under some settings."""
    clocks = card.list_sm_clocks_mhz()
    limit = clocks[-1] if settings.sm_mhz is None else settings.sm_mhz
    sm = max(0, int(np.searchsorted(clocks, limit, side="right")) - 1)
    top = card.memory_mhz[-1]
    memory = np.abs(np.array(card.memory_mhz) - (settings.memory_mhz or top)).argmin()
    return int(memory), sm, settings.power_w or card.spec.power.tdp_w


@dataclass(frozen=True)
class PhaseCosts:
    """Seconds and joules of each true phase at every limit: arrays of (regime, memory clock, SM clock)."""

    seconds: Values
    joules: Values


def compute_costs(job: SimulatedJob) -> PhaseCosts:
    """Exact costs of each true phase of a job under each constant limit, without `swing_w`."""
    table = compute_tables(job.card, job.stages, job.card.spec.power.tdp_w)
    work = np.zeros((job.count_regimes(), len(job.stages)))
    np.add.at(work, (job.regime, job.stage_indices), job.seconds)
    seconds = np.einsum("rs,smg->rmg", work, table.stretch)
    return PhaseCosts(seconds, np.einsum("rs,smg->rmg", work, table.stretch * table.watts))


SWITCH_RANGE_S = (0.02, 0.3)
"""Range of the seconds until a new limit takes effect (differs by clock, arXiv 2502.20075)."""
COUNTER_GAIN = 0.01
"""Standard deviation of the constant relative error of a card's energy counter."""
COUNTER_NOISE = 0.03
"""Relative standard deviation of kernel counters."""
SWING_PERIOD_S = 1500.0
"""Period of `SimulatedJob.swing_w` in seconds."""
CHUNK_SIZE = 2048
"""Number of stretches that are simulated at once."""


class SimulatedRun:
    """Runs one job once: probe and actuator. `job`, `true_j`, `get_regime` and `get_progress` are the truth,
    which no governor reads."""

    def __init__(self, job: SimulatedJob, seed: int = 0, has_hooks: bool = False) -> None:
        self.job = job
        self._rng = make_generator(job.name, seed, "sensors")
        self._counter_gain = 1.0 + COUNTER_GAIN * float(self._rng.standard_normal())
        self._has_hooks = has_hooks
        self._now_s = 0.0
        self._stretch_index = 0
        self._remaining_share = 1.0
        self._settings = Settings()
        self._switches: list[tuple[float, Settings]] = []
        self._tables_by_settings: dict[Settings, StageTables] = {}
        self._current_tables = self._get_tables(Settings())
        self._recent_spans: list[Values] = [np.zeros((0, 5))]
        self.true_j = 0.0

    label = "simulated sensors"
    simulated = True

    def list_offered(self) -> OfferedSettings:
        """Values to which each limit can be set."""
        return self.job.card.list_offered()

    def settings(self) -> Settings:
        """Settings that were applied last."""
        return self._settings

    def taken_limits(self) -> frozenset[Limit]:
        """None: a simulated card has no other user."""
        return frozenset()

    def apply(self, settings: Settings) -> None:
        """Apply limits; they take effect a little later."""
        if settings != self._settings:
            self._settings = settings
            self._switches.append((self._now_s + float(self._rng.uniform(*SWITCH_RANGE_S)), settings))

    def now(self) -> float:
        """Virtual seconds since the job began."""
        return self._now_s

    def is_running(self) -> bool:
        """Whether work is left."""
        return self._stretch_index < len(self.job.stage_indices)

    def get_regime(self) -> int:
        """Number of the true phase now."""
        return int(self.job.regime[min(self._stretch_index, len(self.job.regime) - 1)])

    def get_progress(self) -> float:
        """Number of finished stretches, with the finished part of the current one."""
        return self._stretch_index + (1.0 - self._remaining_share if self.is_running() else 0.0)

    def read_step_count(self) -> float | None:
        """Finished training iterations; None without hooks and before the first one, as with real hooks."""
        if not self._has_hooks:
            return None
        return float(self.job.iteration[min(self._stretch_index, len(self.job.iteration) - 1)]) or None

    def read_energy_j(self) -> float:
        """Energy counter of the board: the true joules with a constant relative error."""
        return self.true_j * self._counter_gain

    def record(self, seconds: float) -> SensorSamples:
        """Run the job for `seconds` and return the sensor samples."""
        start = self._now_s
        self._run_until(start + seconds, 1.0)
        return sample_sensors(self.job.card, self._get_true_signals(), start, self._now_s, self._rng)

    def read_counters(self, seconds: float) -> dict[str, float]:
        """Mean counters of the next `seconds`, 0 to 100, with the slowdown that they cost on the card; all 0
        after the end of the job."""
        begin = len(self._recent_spans)
        self._run_until(self._now_s + seconds, self.job.card.counter_slowdown)
        # A span of no length, since a job that has ended has none.
        spans = np.concatenate([[(0.0, 0.0, 0.0, 1.0, 0.0)], *self._recent_spans[begin:]])
        stages, which = self.job.stages, spans[:, 4].astype(int)
        share = spans[:, 0] / (spans[:, 0].sum() or 1.0)
        work = np.bincount(which, share / spans[:, 3], minlength=len(stages))
        busy = np.bincount(which, share, minlength=len(stages))
        pipe = np.array([s.pipe_util for s in stages])
        tensor = np.array([s.tensor_share for s in stages])
        exact = {
            "sm_active": busy @ np.array([s.sm_util for s in stages]),
            "dram": work @ np.array([s.memory_util for s in stages]),
            "tensor": work @ (pipe * tensor),
            "fma": work @ (pipe * (1 - tensor)),
        }
        return {k: float(v * self._rng.normal(1.0, COUNTER_NOISE)) for k, v in exact.items()}

    def _run_until(self, end_s: float, slowdown: float) -> None:
        while self._now_s < end_s and self.is_running():
            stop = min(end_s, self._switches[0][0]) if self._switches else end_s
            self._advance(max(stop, self._now_s), slowdown)
            if self._switches and self._now_s >= self._switches[0][0] - 1e-12:
                self._current_tables = self._get_tables(self._switches.pop(0)[1])

    def _advance(self, end_s: float, slowdown: float) -> None:
        """Run under one setting until `end_s`."""
        while self._now_s < end_s and self.is_running():
            chunk = slice(self._stretch_index, self._stretch_index + CHUNK_SIZE)
            stage = self.job.stage_indices[chunk]
            stretch = self._current_tables.stretch[stage] * slowdown
            seconds = self.job.seconds[chunk] * stretch
            seconds[0] *= self._remaining_share
            ends = self._now_s + np.cumsum(seconds)
            finished = int(np.searchsorted(ends, end_s, side="right"))
            run_s = seconds[: finished + 1].copy()
            if finished < len(ends):
                run_s[finished] = end_s - (ends[finished] - seconds[finished])
                full_s = self.job.seconds[self._stretch_index + finished] * stretch[finished]
                share = self._remaining_share if finished == 0 else 1.0
                self._remaining_share = share - run_s[finished] / full_s
            else:
                self._remaining_share = 1.0
            self._record_spans(stage[: len(run_s)], run_s, stretch)
            self._stretch_index += finished
            self._now_s = end_s if finished < len(ends) else float(ends[-1])

    def _record_spans(self, stage: NDArray[np.int32], seconds: Values, stretch: Values) -> None:
        """Add the joules of what ran, and keep it for the sensors."""
        begins = self._now_s + np.concatenate([[0.0], np.cumsum(seconds)[:-1]])
        swing_w = self.job.swing_w * np.sin(2 * math.pi * begins / SWING_PERIOD_S)
        watts = self._current_tables.watts[stage] + swing_w
        self.true_j += float(watts @ seconds)
        clock = self._current_tables.clock_mhz[stage]
        self._recent_spans.append(np.stack([seconds, watts, clock, stretch[: len(seconds)], stage], axis=1))

    def _get_tables(self, settings: Settings) -> StageTables:
        """Time and power of stages under one setting: arrays of (stage,)."""
        if settings not in self._tables_by_settings:
            memory, sm, cap = compute_clock_indices(self.job.card, settings)
            table = compute_tables(self.job.card, self.job.stages, cap)
            column = (a[:, memory, sm] for a in (table.stretch, table.watts, table.clock_mhz))
            self._tables_by_settings[settings] = StageTables(*column)
        return self._tables_by_settings[settings]

    def _get_true_signals(self) -> TrueSignals:
        spans = np.concatenate(self._recent_spans)
        self._recent_spans = [self._drop_old_spans(spans)]
        spans = spans[spans[:, 0] > 0]
        stage = spans[:, 4].astype(int)
        sm_util = np.array([s.sm_util for s in self.job.stages])[stage]
        memory_util = np.array([s.memory_util for s in self.job.stages])[stage] / spans[:, 3]
        edges = self._now_s - np.concatenate([np.cumsum(spans[::-1, 0])[::-1], [0.0]])
        return TrueSignals(edges, spans[:, 1], sm_util, memory_util, spans[:, 2])

    def _drop_old_spans(self, spans: Values) -> Values:
        """The spans that are not older than the longest averaging window."""
        age = np.cumsum(spans[::-1, 0])[::-1]
        window = max(self.job.card.power_window_s, self.job.card.util_window_s)
        older = int(np.searchsorted(-age, -window, side="right"))
        return spans[max(0, older - 1) :]
