"""A governor for kill tests: sets random limits every few milliseconds, under a real lease.

`python restless.py [SECONDS]`: with it, the kill tests hit a governor in the middle of setting far more often
than with the real loop. Prints the guard's process id whenever that changes.
"""

import random
import sys
import time

from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.open import choose_actuator
from ekc.devices.nvml.library import list_uuids
from ekc.governor.protocols import Settings

last_guard_pid = None
with LeaseKeeper(
    [choose_actuator("auto", uuid) for uuid in list_uuids().values()], on_message=print
) as keeper:
    latest = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < latest:
        if keeper.guard_pid != last_guard_pid:
            last_guard_pid = keeper.guard_pid
            print("guard", last_guard_pid, flush=True)
        for actuator in keeper.actuators:
            offered = actuator.list_offered()
            actuator.apply(
                Settings(
                    random.choice([None, *offered.sm_mhz]),
                    random.choice([None, *offered.memory_mhz]),
                    random.choice([None, *offered.power_w]),
                )
            )
        time.sleep(random.uniform(0.0, 0.02))
