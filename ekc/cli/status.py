"""How a command ends, as a number for the shell. 0: done; 1: a check said no."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ekc.search.data.result import TuningResult

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
"""128 and the number of SIGINT, as shells have it."""


def find_exit_status(result: TuningResult) -> int:
    """Of a tuning run: one that Ctrl-C ended has a best so far, and still is not what was asked for."""
    from ekc.search.data import result as told

    return EXIT_INTERRUPTED if result.stopped == told.INTERRUPTED else 0
