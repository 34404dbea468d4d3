"""A process that does jobs for its parent: the far end of `workers.py`, started by
`python -m ekc.search.worker NUMBER MESSAGES LIFELINE`; the last two are file descriptors that it inherits."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from ekc.devices.cuda.lifeline import die_with
from ekc.search.jobs import do


def serve(connection: Connection) -> None:
    """Do jobs until the parent hangs up."""
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(do(job))


def _main(messages: int, lifeline: int) -> None:
    die_with(lifeline)
    serve(Connection(messages))


if __name__ == "__main__":
    _main(*map(int, sys.argv[2:]))
