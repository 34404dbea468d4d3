"""`ekc tune --plan FILE`: checks the file before the run, and writes the clock plan after it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ekc.cli.output import log
from ekc.errors import InvalidInput

if TYPE_CHECKING:
    from ekc.search.clocks.plan import ClockPlan


def check_plan_file(file: Path | None, clocks: str) -> None:
    """Raise `InvalidInput` for a file that cannot be written, and without `--clocks search`."""
    if file is None:
        return
    if clocks != "search":
        raise InvalidInput("--plan: a plan needs --clocks search; add it, or leave --plan out")
    if file.is_dir() or not file.parent.is_dir():
        raise InvalidInput(f"--plan {file}: not a file in a folder that exists")


def write_plan(file: Path | None, plan: ClockPlan | None, note: str) -> None:
    """Write the plan, and say so; where there is none, say why."""
    if file is None:
        return
    if plan is None:
        log(f"ekc: no plan was written to {file}: {note or 'the search of clocks did not begin'}")
        return
    plan.write(file)
    log(f"ekc: wrote {file}; apply it with: ekc govern --plan {file} -- COMMAND")
