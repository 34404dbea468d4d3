"""`ekc govern -- COMMAND` with a loop for kill tests: sets random limits every few milliseconds.

`python restless_govern.py COMMAND...`. Job, lease, guard and session are the real ones; only the control loop
is another, so that kills hit a governor in the middle of setting far more often than the real one allows.
"""

import random
import sys
import time

import numpy as np

from ekc.governor.live.governed_job import CommandJob
from ekc.governor.live.governor_process import govern_job
from ekc.governor.policy import GovernorRequest, Policy
from ekc.governor.protocols import Settings
from ekc.governor.samples import SensorSamples


class SensorlessProbe:
    """A probe without sensors."""

    label = "nothing"
    simulated = False

    def __init__(self, job):
        self.is_running = job.is_running

    def now(self):
        return time.monotonic()

    def record(self, seconds):
        time.sleep(seconds)
        return SensorSamples(*np.zeros((5, 0)))

    def read_energy_j(self):
        return 0.0

    def read_step_count(self):
        return None

    def read_counters(self, seconds):
        return None


class PrintingListener:
    """Prints failures and messages."""

    def on_event(self, governor_log, event): ...

    def on_samples(self, governor_log): ...

    def on_trouble(self, governor_log, line):
        print(line, file=sys.stderr, flush=True)

    def on_note(self, line):
        print(line, file=sys.stderr, flush=True)


def set_random_limits(probe, actuator, hear):
    gears = actuator.gears()
    while probe.is_running():
        power = random.choice([None, *gears.power_w])
        actuator.apply(Settings(random.choice([None, *gears.sm_mhz]), random.choice(gears.memory_mhz), power))
        probe.record(random.uniform(0.0, 0.02))


job = CommandJob(sys.argv[1:])
sys.exit(
    govern_job(
        job,
        GovernorRequest(Policy()),
        PrintingListener(),
        lambda gpu: SensorlessProbe(job),
        set_random_limits,
    ).status
)
