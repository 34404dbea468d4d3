"""Holds the clock of a plan for the whole job, and checks that the plan is for these GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ekc.devices.clocks.nvml_limits import NvmlLimitReader
from ekc.errors import ActuatorError
from ekc.governor.event_records import Applied, Ended, EventCallback, Planned, Started
from ekc.governor.job_meter import PASSING_FAILURES, DriverRetries, JobEnded
from ekc.governor.protocols import Actuator, Probe, Settings
from ekc.governor.request import PlannedClock

RECORD_S = 5.0
"""Seconds of sensor samples at a time."""


def check_plan(plan: PlannedClock, gpus: Sequence[str]) -> None:
    """Raise `ActuatorError` for a GPU, named by UUID, that is not the plan's, or that has no such clock."""
    for gpu in gpus:
        board = NvmlLimitReader(gpu)
        if not plan.is_for(board.product_name):
            raise ActuatorError(f"{board.name} is no {plan.device}, which the plan is for; tune for this GPU")
        clocks = board.gears().sm_mhz
        if not clocks:
            raise ActuatorError(
                f"{board.name} has no SM clock that can be limited, so no plan can be applied"
            )
        if plan.clock_mhz not in clocks:
            nearest = min(clocks, key=lambda mhz: abs(mhz - plan.clock_mhz))
            raise ActuatorError(
                f"{board.name} has no SM clock of {plan.clock_mhz} MHz, which the plan sets; it offers "
                f"{clocks[0]} to {clocks[-1]} MHz; nearest: {nearest}"
            )


def hold_planned_clock(probe: Probe, actuator: Actuator, plan: PlannedClock, on_event: EventCallback) -> None:
    """Set the clock of the plan and watch the job until it ends. Nothing is restored here: the owner of the
    actuator does that. Where the driver fails and may answer again, the clock is set again later. Raises what
    else probe and actuator raise."""
    start, joules, settings = probe.now(), probe.read_energy_j(), Settings(sm_mhz=plan.clock_mhz)
    is_simulated = probe.simulated or actuator.simulated
    on_event(Started(start, probe.label, actuator.label, is_simulated, "the clock of a plan"))
    on_event(Planned(probe.now(), settings, plan.slowdown, plan.saving))
    retries = DriverRetries(probe, actuator, on_event)
    with suppress(JobEnded):
        while probe.is_running():
            try:
                if actuator.settings() != settings:
                    actuator.apply(settings)
                    on_event(Applied(probe.now(), settings, "the clock of the plan"))
                probe.record(RECORD_S)
                retries.note_success()
            except PASSING_FAILURES as problem:
                retries.recover(problem)
    on_event(Ended(probe.now(), probe.now() - start, probe.read_energy_j() - joules))
