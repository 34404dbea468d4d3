"""`ekc govern -- COMMAND` with a loop for kill tests: sets random limits every few milliseconds.

`python restless_govern.py COMMAND...`. Job, lease, guard and session are the real ones; only the control loop
is another, so that kills hit a governor in the middle of setting far more often than the real one allows.
ACTUATOR names the actuator.
"""

import os
import random
import sys
import time
from types import SimpleNamespace

from ekc.governor.live.governed_job import CommandJob
from ekc.governor.live.governor_process import govern_job

# As `ekc govern`, before NumPy: its threads would not block the signals that the governor reads.
job = CommandJob(sys.argv[1:])

import numpy as np  # noqa: E402

from ekc.governor.protocols import Settings  # noqa: E402
from ekc.governor.request import GovernorRequest, Policy  # noqa: E402
from ekc.governor.samples import SensorSamples  # noqa: E402


def make_probe(gpu, is_running):
    """A probe without sensors."""
    return SimpleNamespace(
        label="nothing",
        simulated=False,
        is_running=is_running,
        now=time.monotonic,
        read_energy_j=lambda: 0.0,
        read_step_count=lambda: None,
        record=wait,
    )


def wait(seconds):
    time.sleep(seconds)
    return SensorSamples(*np.zeros((5, 0)))


def print_line(*arguments):
    print(f"ekc govern: {arguments[-1]}", file=sys.stderr, flush=True)


def set_random_limits(probe, actuator, hear):
    offered = actuator.list_offered()
    while probe.is_running() and not offered.sm_mhz:  # Advice only.
        probe.record(0.02)
    while probe.is_running():
        power = random.choice([None, *offered.power_w])
        actuator.apply(
            Settings(random.choice([None, *offered.sm_mhz]), random.choice(offered.memory_mhz), power)
        )
        probe.record(random.uniform(0.0, 0.02))


listener = SimpleNamespace(
    on_event=lambda *event: None,
    on_samples=lambda log: None,
    on_trouble=print_line,
    on_note=print_line,
    on_progress=print_line,
)
request = GovernorRequest(Policy(), actuator=os.environ.get("ACTUATOR", "auto"))
outcome = govern_job(job, request, listener, make_probe, set_random_limits)
sys.exit(outcome.status)
