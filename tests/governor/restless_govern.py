"""`ekc govern -- COMMAND` whose loop never rests: sets random limits every few milliseconds.

`python restless_govern.py COMMAND...`. Job, lease, guard and session are the real ones; only the control loop
is another, so that kills hit a governor in the middle of setting far more often than the real one allows.
"""

import random
import sys
import time

import numpy as np

from ekc.governor.live.beside import beside
from ekc.governor.live.job import Command
from ekc.governor.live.request import Request
from ekc.governor.policy import Policy
from ekc.governor.protocols import Settings
from ekc.governor.samples import Samples


class Blind:
    """A probe that only knows whether the job runs."""

    label = "nothing"
    simulated = False

    def __init__(self, job):
        self.running = job.running

    def now(self):
        return time.monotonic()

    def record(self, seconds):
        time.sleep(seconds)
        return Samples(*np.zeros((5, 0)))

    def energy_j(self):
        return 0.0

    def steps(self):
        return None

    def counters(self, seconds):
        return None


class Aloud:
    """Prints what an audience hears of trouble."""

    def event(self, book, event): ...

    def fresh(self, book): ...

    def trouble(self, book, line):
        print(line, file=sys.stderr, flush=True)

    def note(self, line):
        print(line, file=sys.stderr, flush=True)


def restless(probe, actuator, hear):
    gears = actuator.gears()
    while probe.running():
        power = random.choice([None, *gears.power_w])
        actuator.apply(Settings(random.choice([None, *gears.sm_mhz]), random.choice(gears.memory_mhz), power))
        probe.record(random.uniform(0.0, 0.02))


job = Command(sys.argv[1:])
sys.exit(beside(job, Request(Policy()), Aloud(), lambda gpu: Blind(job), restless).status)
