"""The control loop that a request asks for: it governs, only advises, or holds the clock of a plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ekc.devices.clocks.limits import NvmlLimitReader
from ekc.errors import ActuatorError
from ekc.governor.event_records import Applied, Ended, EventCallback, Planned, Started
from ekc.governor.job_meter import PASSING_FAILURES, DriverRetries, JobEnded
from ekc.governor.protocols import Actuator, NullActuator, Probe, Settings
from ekc.governor.request import GovernorRequest, PlannedClock, Policy

LoopFunction = Callable[[Probe, Actuator, EventCallback], object]
"""Governs one job until it ends: `govern` or `advise` with a policy, or a function of a test."""


def make_loop(
    request: GovernorRequest,
    only_advise: bool,
    gpus: Sequence[str],
    job_start_s: float,
    on_note: Callable[[str], None],
) -> LoopFunction:
    """The loop for GPUs named by UUID; `job_start_s`: monotonic time at which the job began. A loop is
    imported when it starts, after the job. `on_note` gets a line where a saved choice is not used."""
    plan = request.plan
    policy = request.policy.for_unit(1 if request.each else len(gpus), time.monotonic() - job_start_s)

    def run_planned(probe: Probe, actuator: Actuator, on_event: EventCallback) -> None:
        from ekc.governor.live.loop_choice import hold_planned_clock

        assert plan is not None
        hold_planned_clock(probe, actuator, plan, on_event)

    def run_govern(probe: Probe, actuator: Actuator, on_event: EventCallback) -> object:
        from ekc.governor.loop import govern
        from ekc.governor.saved_choice import ChoiceFile

        if request.remember is None:
            return govern(probe, actuator, policy, on_event)
        file = ChoiceFile(request.remember, read_conditions(gpus, request.policy), on_note)
        return govern(probe, actuator, policy, on_event, saved=file.read(), save=file.write)

    def run_advise(probe: Probe, actuator: Actuator, on_event: EventCallback) -> None:
        from ekc.governor.advise import advise

        assert isinstance(actuator, NullActuator)
        advise(probe, actuator, policy, on_event)

    if plan is not None:
        return run_planned
    return run_advise if only_advise else run_govern


def read_conditions(gpus: Sequence[str], policy: Policy) -> dict[str, Any]:
    """Conditions under which a choice for these GPUs is used again."""
    from ekc.devices.clocks.limits import NvmlLimitReader
    from ekc.devices.nvml.library import call_nvml
    from ekc.governor.saved_choice import make_conditions

    boards = [NvmlLimitReader(gpu) for gpu in gpus]
    driver = str(call_nvml("the driver's version", boards[0].library.nvmlSystemGetDriverVersion))
    models = ", ".join(sorted({board.product_name for board in boards}))
    return make_conditions(models, len(boards), driver, policy)


RECORD_S = 5.0
"""Seconds of sensor samples at a time."""


def check_plan(plan: PlannedClock, gpus: Sequence[str]) -> None:
    """Raise `ActuatorError` for a GPU, named by UUID, that is not the plan's, or that has no such clock."""
    for gpu in gpus:
        board = NvmlLimitReader(gpu)
        if not plan.is_for(board.product_name):
            raise ActuatorError(f"{board.name} is no {plan.device}, which the plan is for; tune for this GPU")
        clocks = board.list_offered().sm_mhz
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
