"""A governor beside a real job: whatever becomes of the governor, the job runs as it would have."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ekc.errors import ActuatorError, EkcError
from ekc.governor.actuators.advise import SetsNothing
from ekc.governor.actuators.choose import chosen
from ekc.governor.events import OnEvent
from ekc.governor.lease import Keeper
from ekc.governor.live import gpus
from ekc.governor.live.book import Book
from ekc.governor.live.job import Job
from ekc.governor.live.session import Audience, Loop, Session
from ekc.governor.live.units import ProbeOf, governed, watched
from ekc.governor.policy import Policy
from ekc.governor.protocols import Actuator, Probe, Settings


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    policy: Policy
    gpus: tuple[str, ...] = ()
    """UUIDs; empty for those that the job uses."""
    gpus_of: int | None = None
    """Process whose family's GPUs these are, if not the job."""
    actuator: str = "auto"
    advise: bool = False
    each: bool = False
    """A loop for each GPU; otherwise one for all of them together."""
    before: Settings | None = None
    """Clock limits that hold already, since they cannot be read."""


class Listener(Audience, Protocol):
    """An audience that also hears of what is no loop's business."""

    def note(self, line: str) -> None:
        """Of leases and permissions."""
        ...


@dataclass(frozen=True)
class End:
    """How it ended: the job's own exit status, and a book per loop."""

    status: int
    books: list[Book]
    problem: str | None
    """Why nothing was governed."""
    core_share: float
    """Of one core, that sampling and control took, guard not included."""


def beside(
    job: Job, request: Request, audience: Listener, probe_of: ProbeOf, loop: Loop | None = None
) -> End:
    """Govern, or advise, until the job ends; previous settings are back when this returns.

    Raises nothing for what goes wrong with the GPU: that is one line for the audience.
    """
    opened = _Opened()
    problem = None
    try:
        opened.open(job, request, audience, probe_of, loop)
    except EkcError as trouble:
        problem = str(trouble)
    except Exception as trouble:  # A bug of ours is no reason to touch the job.
        problem = f"a bug in ekc: {type(trouble).__name__}: {trouble}"
    if problem is not None:
        audience.note(f"{problem}; the job runs ungoverned")
    began, cpu = time.monotonic(), time.process_time()
    status = job.wait()
    share = (time.process_time() - cpu) / max(time.monotonic() - began, 1e-3)
    books = opened.session.finish() if opened.session else []
    for line in opened.keeper.close() if opened.keeper else []:
        audience.note(line)
    return End(status, books, problem, share)


class _Opened:
    """What has to be closed again, however far opening came."""

    keeper: Keeper | None = None
    session: Session | None = None

    def open(
        self, job: Job, request: Request, audience: Listener, probe_of: ProbeOf, loop: Loop | None
    ) -> None:
        """Raises what finding the GPUs, their actuators and probes raises."""
        found = list(request.gpus) or gpus.of(job, request.gpus_of or job.pid)
        advise = request.advise or not self._leased(found, request, audience)
        if self.keeper is None:
            units = watched(found, probe_of, request.each)
        else:
            units = governed(self.keeper, probe_of, request.each)
        self.session = Session(units, loop or _loop(request.policy, advise), audience)

    def _leased(self, found: Sequence[str], request: Request, audience: Listener) -> bool:
        """False where "auto" finds no way to set anything: advice is better than nothing."""
        try:
            settables = [chosen(request.actuator, gpu) for gpu in found]
        except ActuatorError as problem:
            if request.actuator != "auto":
                raise
            audience.note(f"may not set clocks here, so this is advice only: {problem}")
            return False
        self.keeper = Keeper(settables, request.before, audience.note)
        for actuator in self.keeper.actuators:
            if actuator.found is not None:
                audience.note(f"an earlier governor was killed; {actuator.found}")
        return True


def _loop(policy: Policy, advise: bool) -> Loop:
    """The heavy part is imported when it is needed."""

    def steer(probe: Probe, actuator: Actuator, hear: OnEvent) -> object:
        from ekc.governor.loop import govern

        return govern(probe, actuator, policy, hear)

    def watch(probe: Probe, actuator: Actuator, hear: OnEvent) -> None:
        from ekc.governor.advise import advise as advised

        assert isinstance(actuator, SetsNothing)
        advised(probe, actuator, policy, hear)

    return watch if advise else steer
