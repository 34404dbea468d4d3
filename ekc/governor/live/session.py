"""Runs one control loop per GPU, or per group, beside the job, and keeps our troubles away from it."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ekc.errors import EkcError
from ekc.governor.events import Event, OnEvent
from ekc.governor.live.book import Book
from ekc.governor.live.noted import Noted
from ekc.governor.protocols import Actuator, Probe, Settings

LEAVING_S = 5.0
"""How long a loop may take to notice that its job has ended."""
RETRY_S = 5.0
"""Between two tries to go back."""

Loop = Callable[[Probe, Actuator, OnEvent], object]
"""Steers one job until it ends: `govern` or `advise` with a policy, or a test's own."""


@dataclass(frozen=True)
class Unit:
    """What one loop governs: a GPU, or several alike."""

    name: str
    probe: Probe
    actuator: Actuator


class Audience(Protocol):
    """Who hears what happens; called from any thread."""

    def event(self, book: Book, event: Event) -> None:
        """The loop told something."""
        ...

    def fresh(self, book: Book) -> None:
        """There are new samples."""
        ...

    def trouble(self, book: Book, line: str) -> None:
        """Governing ended before the job did."""
        ...


class Session:
    """Loops in threads of their own, from creation until `finish`."""

    def __init__(self, units: Sequence[Unit], loop: Loop, audience: Audience) -> None:
        self.books = [Book(u.name, u.probe.simulated or u.actuator.simulated) for u in units]
        self._audience = audience
        self._threads = [
            threading.Thread(target=self._run, args=(unit, loop, book), name=f"ekc-{unit.name}", daemon=True)
            for unit, book in zip(units, self.books, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> list[Book]:
        """Once the job has ended: wait for the loops; one that hangs in a driver's call is left behind."""
        for thread, book in zip(self._threads, self.books, strict=True):
            thread.join(LEAVING_S)
            if thread.is_alive():
                self._give_up(book, f"the driver has not answered for {LEAVING_S:.0f} s")
        return self.books

    def wait(self) -> list[Book]:
        """Until the loops end by themselves, as those of simulated jobs do."""
        for thread in self._threads:
            thread.join()
        return self.books

    def _run(self, unit: Unit, loop: Loop, book: Book) -> None:
        def hear(event: Event) -> None:
            book.events.append(event)
            self._audience.event(book, event)

        try:
            loop(Noted(unit.probe, book, self._audience.fresh), unit.actuator, hear)
        except EkcError as problem:
            self._abandon(unit, book, str(problem))
        except Exception as problem:  # A bug of ours is no reason to touch the job.
            where = traceback.extract_tb(problem.__traceback__)[-1]
            line = f"a bug in ekc: {type(problem).__name__}: {problem} ({where.filename}:{where.lineno})"
            self._abandon(unit, book, line)

    def _abandon(self, unit: Unit, book: Book, line: str) -> None:
        """Previous settings at once, or as soon as may be; the lease puts them back once more at the end."""
        if not unit.probe.running():
            return  # What fails while the job is ending is of no interest any more.
        line += "; the job goes on ungoverned, "
        why = _gone_back(unit.actuator)
        if why is None:
            self._give_up(book, line + "at its previous settings")
            return
        again = "" if why in line else f": {why}"
        self._give_up(book, f"{line}and what was set may stay until it ends; it is tried to go back{again}")
        while _later(unit.probe):
            if _gone_back(unit.actuator) is None:
                self._audience.trouble(book, "previous settings are back")
                return

    def _give_up(self, book: Book, line: str) -> None:
        book.problem = line
        self._audience.trouble(book, line)


def _gone_back(actuator: Actuator) -> str | None:
    """To the previous settings; why that failed, whatever it was."""
    try:
        actuator.apply(Settings())
    except Exception as problem:
        return str(problem)
    return None


def _later(probe: Probe) -> bool:
    """Let some time pass; False where the job has ended, or the card is gone."""
    try:
        probe.record(RETRY_S)
    except Exception:
        return False
    return probe.running()
