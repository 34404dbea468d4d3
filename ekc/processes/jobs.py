"""What a worker process is asked, and what it answers.

A process that does jobs for its parent: the far end of `workers.py`, started by
`python -m ekc.processes.jobs NUMBER MESSAGES LIFELINE`; the last two are file descriptors that it inherits.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from ekc.errors import EkcError
from ekc.processes.child import exit_with_parent

ShownWarnings = dict[str | tuple[str, type[Warning], int], int]
"""Warnings that were shown, as `warnings` keeps them."""


JOB_TIMEOUT_S = 600.0
"""A job whose answer takes longer is given up, and its process with it."""


@dataclass(frozen=True)
class WorkerJob:
    """A function, known by its module and name, and what it is called with."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class JobOutcome:
    """What came of a job."""

    value: Any
    error: Exception | None
    warnings: tuple[tuple[str, type[Warning], str, int], ...]
    """Text, category, file and line of each; it is the parent who shows them."""

    def unwrap(self, shown: ShownWarnings) -> Any:
        """The value, or what was raised; warns of what was not yet shown."""
        for text, category, file, line in self.warnings:
            warnings.warn_explicit(text, category, file, line, registry=shown)
        if self.error is not None:
            raise self.error
        return self.value


def run_job(job: WorkerJob) -> JobOutcome:
    """Call the function; what it raises travels."""
    value, error = None, None
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            value = job.function(*job.arguments)
        except Exception as problem:
            error = problem
            if not isinstance(problem, EkcError):
                # A bug: the parent's traceback would end where the job was sent off.
                problem.add_note(traceback.format_exc())
    return JobOutcome(value, error, tuple((str(w.message), w.category, w.filename, w.lineno) for w in seen))


def serve_jobs(connection: Connection) -> None:
    """Do jobs until the parent hangs up."""
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(run_job(job))


def _main(messages_fd: int, lifeline_fd: int) -> None:
    exit_with_parent(lifeline_fd)
    serve_jobs(Connection(messages_fd))


if __name__ == "__main__":
    # Outcomes must pickle as classes of `ekc.processes.jobs`, not of `__main__`.
    from ekc.processes import jobs

    jobs._main(*map(int, sys.argv[2:]))
