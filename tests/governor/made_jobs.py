"""Jobs put together by hand for the tests of the loop, and what the loop told of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ekc.governor.events import Event
from ekc.governor.jobs.card import card
from ekc.governor.jobs.job import Job
from ekc.governor.jobs.stage import Stage
from ekc.governor.jobs.timeline import Timeline, iterations
from ekc.governor.jobs.world import SimulatedRun
from ekc.governor.loop import govern
from ekc.governor.samples import Samples

HOST = Stage("host", 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
WAIT = replace(HOST, name="pause", paused=True)
FORWARD = Stage("forward", 0.8, 4.0, 0.75, 100.0, 35.0, 80.0, 0.9)
UPDATE = Stage("update", 0.1, 4.0, 0.6, 100.0, 85.0, 20.0, 0.0)
GATHER = Stage("gather", 0.05, 4.0, 0.35, 100.0, 70.0, 10.0, 0.0)
STAGES = (WAIT, HOST, FORWARD, UPDATE, GATHER)
LASTS = np.array([0.05, 1.0, 0.45])


def plain(seconds: float, seed: int = 0, stages=(1, 2, 3), lasts=(0.05, 1.0, 0.45)) -> Timeline:
    return iterations(np.random.default_rng(seed), np.array(stages), np.array(lasts), seconds)


def job(parts: list[Timeline], name: str = "made", device: str = "h200") -> Job:
    return Timeline.joined(parts).job(name, "made", card(device), STAGES, 0.0)


def governed(made: Job, hooks: bool = False, **options: object) -> tuple[SimulatedRun, list[Event]]:
    run = SimulatedRun(made, hooks=hooks)
    told: list[Event] = []
    govern(run, run, on_event=told.append, **options)  # type: ignore[arg-type]
    return run, told


def at_default(made: Job) -> SimulatedRun:
    run = SimulatedRun(made)
    while run.running():
        run.record(60.0)
    return run


def of(told: list[Event], kind: type) -> list:
    return [event for event in told if isinstance(event, kind)]


class Disturbed(SimulatedRun):
    """Falls idle, as its sensors have it, from some second on, for so long."""

    idle_s = (40.0, 60.0)

    def record(self, seconds: float) -> Samples:
        told = super().record(seconds)
        first, last = self.idle_s
        away = (told.time_s > first) & (told.time_s < last)
        return replace(told, sm_util=np.where(away, 0.0, told.sm_util))
