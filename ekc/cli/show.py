"""`ekc show`: a schedule as Python, as a Program, CUDA or PTX. `ekc explore`: step by step, on a page."""

from __future__ import annotations

from pathlib import Path

import click

from ekc.cli.arguments import OperatorCommand
from ekc.cli.output import FILE, json_option, log, print_json, print_text, write_text_file
from ekc.cli.schedule_source import ScheduleSource, schedule_source
from ekc.errors import InvalidInput


@click.command(cls=OperatorCommand)
@schedule_source
@click.option("--cuda", is_flag=True, help="Also print the CUDA source.")
@click.option("--ptx", is_flag=True, help="Also print the PTX that NVRTC compiles.")
@click.option("--svg", type=FILE, help="Also write pictures of the schedule into this SVG file.")
@click.option(
    "--picture",
    help="Picture of --svg: loops, threads, staging, banks, fragments, or overview with all that apply. "
    "[default: overview]",
)
@json_option
def show(
    source: ScheduleSource, cuda: bool, ptx: bool, svg: Path | None, picture: str | None, as_json: bool
) -> None:
    """Print a schedule: the Python that makes it, its program, and with --cuda or --ptx its kernel.

    Without --records or --schedule the naive schedule is printed.
    """
    from ekc import devices
    from ekc.codegen.generate import compile_schedule, generate

    if picture is not None and svg is None:
        raise InvalidInput("--picture: no file to write it into; add --svg FILE")
    found, device = source.find_schedule(), devices.open(source.target)
    schedule = found.schedule
    parts = {"python": schedule.to_python(), "program": str(schedule)}
    if cuda:
        parts["cuda_source"] = generate(schedule, device.limits).source
    if ptx:
        parts["ptx"] = compile_schedule(schedule, device.arch, device.limits).ptx
    if svg is not None:
        write_text_file("--svg", svg, schedule.draw(picture or "overview"))
        parts["svg"] = str(svg)
    if as_json:
        head = {"operator": schedule.op.to_json(), "schedule": [s.to_json() for s in schedule.steps]}
        print_json(head | {"digest": schedule.digest, "origin": found.origin} | parts)
        return
    print_text(f"# {found.origin}, digest {schedule.digest}\n")
    if svg is not None:
        log(f"wrote {parts.pop('svg')}")
    print_text("\n\n".join(parts.values()))


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
