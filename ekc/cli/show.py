"""`ekc show`: a schedule as Python, as a Program, as CUDA, as PTX."""

from __future__ import annotations

import click

from ekc.cli.arguments import OperatorCommand
from ekc.cli.output import json_option, print_json, print_text
from ekc.cli.schedule_source import ScheduleSource, schedule_source


@click.command(cls=OperatorCommand)
@schedule_source
@click.option("--cuda", is_flag=True, help="Also print the CUDA source.")
@click.option("--ptx", is_flag=True, help="Also print the PTX that NVRTC compiles.")
@json_option
def show(source: ScheduleSource, cuda: bool, ptx: bool, as_json: bool) -> None:
    """Print a schedule: the Python that makes it, its program, and with --cuda or --ptx its kernel.

    Without --records or --schedule the naive schedule is printed.
    """
    from ekc import devices
    from ekc.codegen.generate import compile_schedule, generate

    found, device = source.find_schedule(), devices.open(source.target)
    schedule = found.schedule
    parts = {"python": schedule.to_python(), "program": str(schedule)}
    if cuda:
        parts["cuda_source"] = generate(schedule, device.limits).source
    if ptx:
        parts["ptx"] = compile_schedule(schedule, device.arch, device.limits).ptx
    if as_json:
        head = {"operator": schedule.op.to_json(), "schedule": [s.to_json() for s in schedule.steps]}
        print_json(head | {"digest": schedule.digest, "origin": found.origin} | parts)
        return
    print_text(f"# {found.origin}, digest {schedule.digest}\n")
    print_text("\n\n".join(parts.values()))
