"""A governor beside a real job: whatever becomes of the governor, the job runs as it would have."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ekc.devices.lease import Keeper
from ekc.devices.limits.choose import chosen
from ekc.devices.limits.nvml_board import NvmlBoard
from ekc.devices.nvml.sensors import Sensors
from ekc.errors import ActuatorError, EkcError, InvalidInput
from ekc.governor.events import OnEvent
from ekc.governor.live import gpus, models
from ekc.governor.live.book import Book
from ekc.governor.live.job import Job
from ekc.governor.live.request import Request
from ekc.governor.live.session import LEAVING_S, Audience, Loop, Session
from ekc.governor.live.units import ProbeOf, governed, watched
from ekc.governor.measure import JobEnded
from ekc.governor.policy import Policy
from ekc.governor.protocols import Actuator, Probe
from ekc.governor.sets_nothing import SetsNothing

if TYPE_CHECKING:
    from ekc.governor.phase import Model


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
    core_share: float | None
    """Of one core, that sampling and control took, guard not included."""


def beside(
    job: Job, request: Request, audience: Listener, probe_of: ProbeOf, loop: Loop | None = None
) -> End:
    """Govern, or advise, until the job ends; previous settings are back when this returns.

    Raises nothing for what goes wrong with the GPU: that is one line for the audience. The job is waited for
    in this thread, which asks nothing of a driver until then.
    """
    opened = _Opened(job, request, audience, probe_of, loop)
    try:
        return _waited(job, opened, audience)
    finally:
        job.release()


def _waited(job: Job, opened: _Opened, audience: Listener) -> End:
    opener = threading.Thread(target=opened.open, name="ekc-open", daemon=True)
    opener.start()
    status = job.wait()
    opener.join(LEAVING_S)
    if opener.is_alive():
        audience.note("the governor was not ready when the job had ended; nothing was set")
    share = opened.core_share()
    books = opened.session.finish() if opened.session else []
    opened.close()
    return End(status, books, opened.problem, share)


class _Opened:
    """What has to be closed again, however far opening came."""

    keeper: Keeper | None = None
    session: Session | None = None
    problem: str | None = None

    def __init__(
        self, job: Job, request: Request, audience: Listener, probe_of: ProbeOf, loop: Loop | None
    ) -> None:
        self._job = job
        self._request = request
        self._audience = audience
        self._probe_of = probe_of
        self._loop = loop
        self._began = self._core_s = 0.0

    def open(self) -> None:
        """Tells why nothing is governed, where that is so."""
        try:
            self._open()
        except JobEnded:
            pass  # While its model was being trained.
        except EkcError as trouble:
            self.problem = str(trouble)
        except Exception as trouble:  # A bug of ours is no reason to touch the job.
            self.problem = f"a bug in ekc: {type(trouble).__name__}: {trouble}"
        if self.problem is not None and self._job.running():
            self._audience.note(f"{self.problem}; the job runs ungoverned")
            self._job.leave()

    def close(self) -> None:
        """Previous settings back; a driver that does not answer is left to the guard."""
        keeper = self.keeper
        if keeper is None:
            return
        problems: list[str] = []
        closer = threading.Thread(target=lambda: problems.extend(keeper.close()), daemon=True)
        closer.start()
        closer.join(LEAVING_S)
        if closer.is_alive():
            problems.append(
                "the driver does not answer; the guard tries on, after that: ekc govern --restore"
            )
        for line in problems:
            self._audience.note(line)

    def core_share(self) -> float | None:
        """Since the loops began."""
        if self.session is None:
            return None
        return (time.process_time() - self._core_s) / max(time.monotonic() - self._began, 1e-3)

    def _open(self) -> None:
        """Raises what finding the GPUs, their actuators and probes raises."""
        request = self._request
        found = list(request.gpus) or gpus.of(self._job, request.gpus_of or self._job.pid)
        if not self._job.running():
            return
        _check_whole(found)
        advise = request.advise or not self._leased(found)
        if self.keeper is None:
            units = watched(found, self._probe_of, request.each)
        else:
            units = governed(self.keeper, self._probe_of, request.each)
        self._began, self._core_s = time.monotonic(), time.process_time()
        loop = self._loop or _loop(request.policy, advise, self._model(found))
        self.session = Session(units, loop, self._audience)

    def _model(self, found: Sequence[str]) -> Model | None:
        """None where there is none for these cards: it is no condition for governing."""
        word = self._request.model
        try:
            cards = sorted({NvmlBoard(gpu).card for gpu in found})
            if len(cards) > 1 and word != models.NONE:
                raise InvalidInput(f"--model {word}: a model is of one card, and here are {', '.join(cards)}")
            return models.opened(word, cards[0], self._job.running)
        except EkcError as problem:
            self._audience.note(f"{problem}; governed without a model")
            return None

    def _leased(self, found: Sequence[str]) -> bool:
        """False where "auto" finds no way to set anything: advice is better than nothing."""
        request, audience = self._request, self._audience
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


def _check_whole(found: Sequence[str]) -> None:
    """Raises `ActuatorError` for a GPU that is split: what is set and billed there is others' work too."""
    for gpu in found:
        if Sensors(gpu).shared():
            raise ActuatorError(
                f"GPU {NvmlBoard(gpu).index} is split by MIG: its clocks and its energy are those of all "
                "parts; govern a whole GPU"
            )


def _loop(policy: Policy, advise: bool, model: Model | None) -> Loop:
    """The heavy part is imported when it is needed."""

    def steer(probe: Probe, actuator: Actuator, hear: OnEvent) -> object:
        from ekc.governor.loop import govern

        return govern(probe, actuator, policy, hear, model)

    def watch(probe: Probe, actuator: Actuator, hear: OnEvent) -> None:
        from ekc.governor.advise import advise as advised

        assert isinstance(actuator, SetsNothing)
        advised(probe, actuator, policy, hear, model)

    return watch if advise else steer
