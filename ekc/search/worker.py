"""A process that does jobs for its parent: the far end of `workers.py`, started by
`python -m ekc.search.worker NUMBER MESSAGES LIFELINE`; the last two are file descriptors that it inherits."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from ekc.processes.child import exit_with_parent
from ekc.search.jobs import run_job


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
    _main(*map(int, sys.argv[2:]))
