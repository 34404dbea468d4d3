"""Jobs (a function with its arguments), outcomes, and the process that runs them: `python -m
ekc.processes.jobs INDEX MESSAGES LIFELINE`, started by `child.ChildProcess`."""

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
"""Warnings that were shown, in the form of `__warningregistry__`."""

JOB_TIMEOUT_S = 600.0
"""Seconds after which a job without a reply is given up; its process is ended."""


@dataclass(frozen=True)
class WorkerJob:
    """A function, which pickles by its module and name, and its arguments."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class JobOutcome:
    """Result of a job: a value or an error, and the warnings."""

    value: Any
    error: Exception | None
    warnings: tuple[tuple[str, type[Warning], str, int], ...]
    """Text, category, file and line of each warning; the parent shows them."""

    def unwrap(self, shown: ShownWarnings) -> Any:
        """Return the value or raise the error; show the warnings that are not in `shown`."""
        for text, category, file, line in self.warnings:
            warnings.warn_explicit(text, category, file, line, registry=shown)
        if self.error is not None:
            raise self.error
        return self.value


def run_job(job: WorkerJob) -> JobOutcome:
    """Call the function; the outcome has the exception that it raises."""
    value, error = None, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = job.function(*job.arguments)
        except Exception as problem:
            error = problem
            if not isinstance(problem, EkcError):
                # A bug: the traceback of the parent would end where the job was sent.
                problem.add_note(traceback.format_exc())
    return JobOutcome(value, error, tuple((str(w.message), w.category, w.filename, w.lineno) for w in caught))


def serve_jobs(connection: Connection) -> None:
    """Run jobs until the parent closes the connection."""
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(run_job(job))


def main(messages_fd: int, lifeline_fd: int) -> None:
    """Serve the parent that holds the other ends of these file descriptors."""
    exit_with_parent(lifeline_fd)
    serve_jobs(Connection(messages_fd))


if __name__ == "__main__":
    # Not the functions of this module: outcomes must pickle as classes of `ekc.processes.jobs`, not of
    # `__main__`.
    from ekc.processes import jobs

    jobs.main(*map(int, sys.argv[2:]))
