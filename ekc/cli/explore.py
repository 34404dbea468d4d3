"""`ekc explore`: the next steps of a schedule with their figures, on a page in the browser."""

from __future__ import annotations

import click

from ekc.cli.arguments import OperatorCommand
from ekc.cli.output import log, print_text
from ekc.cli.schedule_source import ScheduleSource, schedule_source


@click.command(cls=OperatorCommand)
@schedule_source
@click.option("--port", type=int, default=0, help="Port of 127.0.0.1. [default: a free one]")
@click.option("--no-browser", is_flag=True, help="Print the address and open no browser.")
def explore(source: ScheduleSource, port: int, no_browser: bool) -> None:
    """Explore schedules step by step, on a page in the browser, until Ctrl-C.

    At every point the page lists the legal next steps with their estimated time and joules. Without --records
    or --schedule it begins at the naive schedule.
    """
    from ekc.explorer.server import explore as serve

    found = source.find_schedule()
    log("ekc explore: Ctrl-C ends it; the address holds the token of this server")
    serve(found.schedule, source.target, port=port, open_browser=not no_browser, announce=print_text)
    log("ekc explore: stopped")
