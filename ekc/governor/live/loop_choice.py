"""The control loop that a request asks for: it governs, only advises, or holds the clock of a plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ekc.governor.event_records import EventCallback
from ekc.governor.live.session import LoopFunction
from ekc.governor.protocols import Actuator, NullActuator, Probe
from ekc.governor.request import GovernorRequest, Policy


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
        from ekc.governor.live.planned_clock import hold_planned_clock

        assert plan is not None
        hold_planned_clock(probe, actuator, plan, on_event)

    def run_govern(probe: Probe, actuator: Actuator, on_event: EventCallback) -> object:
        from ekc.governor.live.choice_file import ChoiceFile
        from ekc.governor.loop import govern

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
    from ekc.devices.clocks.nvml_limits import NvmlLimitReader
    from ekc.devices.nvml.library import call_nvml
    from ekc.governor.live.choice_file import make_conditions

    boards = [NvmlLimitReader(gpu) for gpu in gpus]
    driver = str(call_nvml("the driver's version", boards[0].library.nvmlSystemGetDriverVersion))
    models = ", ".join(sorted({board.product_name for board in boards}))
    return make_conditions(models, len(boards), driver, policy)
