"""A simulated job on its card under a virtual clock: probe and actuator of the governor in one."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ekc.devices.residual import generator
from ekc.governor.jobs.job import Job, sm_places
from ekc.governor.jobs.sensors import Truth, observe
from ekc.governor.jobs.stage import Tables, tables
from ekc.governor.protocols import Gears, Settings
from ekc.governor.samples import Samples

Values = NDArray[np.float64]
SWITCH_S = (0.02, 0.3)
"""How long a new limit takes to hold; it differs from clock to clock (arXiv 2502.20075)."""
COUNTER_GAIN = 0.01
"""The energy counter of each card is off by a constant share, one sigma."""
COUNTER_NOISE = 0.03
"""Counters of kernels, relative, one sigma."""
SWING_S = 1500.0
"""Period of `Job.swing_w`."""
CHUNK = 2048


class SimulatedRun:
    """Runs one job once. Probe and Actuator; `true_j`, `counted_at`, `regime` and `progress` are for
    the judge alone."""

    def __init__(self, job: Job, seed: int = 0, hooks: bool = False) -> None:
        self._job = job
        self._rng = generator(job.name, seed, "sensors")
        self._gain = 1.0 + COUNTER_GAIN * float(self._rng.standard_normal())
        self._hooks = hooks
        self._now = 0.0
        self._place = 0
        self._left = 1.0
        self._settings = Settings()
        self._switches: list[tuple[float, Settings]] = []
        self._columns: dict[Settings, Tables] = {}
        self._column = self._under(Settings())
        self._recent: list[Values] = [np.zeros((0, 5))]
        self.true_j = 0.0
        self.counted_at: list[tuple[float, int]] = []
        """When counter windows began, and in which true phase of the job."""

    label = "simulated sensors"
    simulated = True

    def gears(self) -> Gears:
        """What the card can be set to."""
        return self._job.card.gears()

    def settings(self) -> Settings:
        """What was last asked for."""
        return self._settings

    def apply(self, settings: Settings) -> None:
        """Ask for limits; they hold a moment later."""
        if settings != self._settings:
            self._settings = settings
            self._switches.append((self._now + float(self._rng.uniform(*SWITCH_S)), settings))

    def now(self) -> float:
        """Virtual seconds since the job began."""
        return self._now

    def running(self) -> bool:
        """Whether there is work left."""
        return self._place < len(self._job.stage)

    def regime(self) -> int:
        """The true phase the job is in; for the judge."""
        return int(self._job.regime[min(self._place, len(self._job.regime) - 1)])

    def progress(self) -> float:
        """How many of the job's stretches are done, the one under way in part; for the judge."""
        return self._place + (1.0 - self._left if self.running() else 0.0)

    def steps(self) -> float | None:
        """Training iterations ended, where the job has hooks; None until the first has, as with real ones."""
        if not self._hooks:
            return None
        return float(self._job.iteration[min(self._place, len(self._job.iteration) - 1)]) or None

    def energy_j(self) -> float:
        """The board's counter: the truth, a constant share off."""
        return self.true_j * self._gain

    def record(self, seconds: float) -> Samples:
        """Let time pass and tell what the sensors showed."""
        start = self._now
        self._run(start + seconds, 1.0)
        return observe(self._job.card, self._truth(), start, self._now, self._rng)

    def counters(self, seconds: float) -> dict[str, float] | None:
        """Counters of the next seconds, at the price that the card has for them."""
        if not self.running():
            return None
        self.counted_at.append((self._now, self.regime()))
        begin = len(self._recent)
        self._run(self._now + seconds, self._job.card.counting_slowdown)
        spans = np.concatenate(self._recent[begin:])
        return self._counted(spans)

    def _counted(self, spans: Values) -> dict[str, float]:
        stages = self._job.stages
        which = spans[:, 4].astype(int)
        weight = (
            np.bincount(which, weights=spans[:, 0] / spans[:, 3], minlength=len(stages)) / spans[:, 0].sum()
        )
        pipe = np.array([s.pipe_util for s in stages])
        tensor = np.array([s.tensor for s in stages])
        exact = {
            "sm_active": float(
                np.bincount(which, weights=spans[:, 0], minlength=len(stages))
                @ np.array([s.sm_util for s in stages])
                / spans[:, 0].sum()
            ),
            "dram": float(weight @ np.array([s.memory_util for s in stages])),
            "tensor": float(weight @ (pipe * tensor)),
            "fma": float(weight @ (pipe * (1 - tensor))),
        }
        return {k: v * float(self._rng.normal(1.0, COUNTER_NOISE)) for k, v in exact.items()}

    def _run(self, until: float, drag: float) -> None:
        while self._now < until and self.running():
            stop = min(until, self._switches[0][0]) if self._switches else until
            self._stretch(max(stop, self._now), drag)
            if self._switches and self._now >= self._switches[0][0] - 1e-12:
                self._column = self._under(self._switches.pop(0)[1])

    def _stretch(self, until: float, drag: float) -> None:
        """Go on under one setting, stage after stage."""
        while self._now < until and self.running():
            chunk = slice(self._place, self._place + CHUNK)
            stage = self._job.stage[chunk]
            stretch = self._column.stretch[stage] * drag
            lasts = self._job.seconds[chunk] * stretch
            lasts[0] *= self._left
            ends = self._now + np.cumsum(lasts)
            done = int(np.searchsorted(ends, until, side="right"))
            taken = lasts[: done + 1].copy()
            if done < len(ends):
                taken[done] = until - (ends[done] - lasts[done])
                whole = self._job.seconds[self._place + done] * stretch[done]
                before = self._left if done == 0 else 1.0
                self._left = before - taken[done] / whole
            else:
                self._left = 1.0
            self._note(stage[: len(taken)], taken, stretch)
            self._place += done
            self._now = until if done < len(ends) else float(ends[-1])

    def _note(self, stage: NDArray[np.int32], taken: Values, stretch: Values) -> None:
        """Bill what ran, and keep it for the sensors."""
        begins = self._now + np.concatenate([[0.0], np.cumsum(taken)[:-1]])
        watts = self._column.watts[stage] + self._job.swing_w * np.sin(2 * math.pi * begins / SWING_S)
        self.true_j += float(watts @ taken)
        clock = self._column.clock_mhz[stage]
        self._recent.append(np.stack([taken, watts, clock, stretch[: len(taken)], stage], axis=1))

    def _under(self, settings: Settings) -> Tables:
        """Stages under one setting: arrays of (stage)."""
        if settings not in self._columns:
            memory, gear, cap = sm_places(self._job.card, settings)
            table = tables(self._job.card, self._job.stages, cap)
            column = (a[:, memory, gear] for a in (table.stretch, table.watts, table.clock_mhz))
            self._columns[settings] = Tables(*column)
        return self._columns[settings]

    def _truth(self) -> Truth:
        spans = np.concatenate(self._recent)
        self._forget()
        spans = spans[spans[:, 0] > 0]
        which = spans[:, 4].astype(int)
        busy = np.array([s.sm_util for s in self._job.stages])[which]
        moving = np.array([s.memory_util for s in self._job.stages])[which] / spans[:, 3]
        edges = self._now - np.concatenate([np.cumsum(spans[::-1, 0])[::-1], [0.0]])
        return Truth(edges, spans[:, 1], busy, moving, spans[:, 2])

    def _forget(self) -> None:
        """Keep only what the longest window still needs."""
        spans = np.concatenate(self._recent)
        age = np.cumsum(spans[::-1, 0])[::-1]
        window = max(self._job.card.power_window_s, self._job.card.util_window_s)
        older = int(np.searchsorted(-age, -window, side="right"))
        self._recent = [spans[max(0, older - 1) :]]
