"""`ekc tune`: search for the kernel of least energy, print the result, write the kernel."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from ekc.cli.arguments import ALLOW_NEGATIVES, OperatorRequest, operator_arguments
from ekc.cli.event_log import EventLog
from ekc.cli.output import (
    FILE,
    ensure_writable,
    find_exit_status,
    format_written,
    json_option,
    out_option,
    print_json,
    print_text,
)
from ekc.cli.schedule_source import choice_options, log_replaced, target_option
from ekc.cli.tune_arguments import TuneArguments
from ekc.errors import InvalidInput


@click.command(context_settings=ALLOW_NEGATIVES)
@operator_arguments
@click.option("--layers", type=FILE, help="Tune every layer of this TOML file.")
@target_option
@click.option(
    "--effort",
    help="quick, standard or full: at most 64, 256 or 1024 trials, fewer where another round would not pay.",
)
@click.option("--trials", type=int, help="Schedules to compile and time, all of them. [default: 256]")
@choice_options
@click.option(
    "--clocks", default="fixed", show_default=True, help="fixed, or search for a second table over clocks."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--records", type=FILE, help="Keep every measurement in this SQLite file.")
@click.option(
    "--warm-start",
    type=FILE,
    help="Learn first from the records of other operators and devices in this file.",
)
@click.option(
    "--time-budget",
    "time_budget_s",
    type=float,
    metavar="SECONDS",
    help="End with the best so far (per layer).",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    help="Processes that compile, at most 32 [default: one per core]; the winner does not depend on it.",
)
@out_option
@click.option(
    "--name", help="Name of the files and functions; with --layers, their prefix. [default: as the operator]"
)
@click.option("--quiet", is_flag=True, help="No forecast, no progress, no names of layers.")
@click.option(
    "--log-json",
    metavar="FILE",
    help="Write every event of the run into this file, one JSON object a line; - is standard output. "
    "Only an empty file or an event log is overwritten.",
)
@json_option
def tune(
    request: OperatorRequest,
    layers: Path | None,
    out: Path,
    name: str | None,
    as_json: bool,
    log_json: str | None,
    **options: object,
) -> int:
    """Search the schedules of an operator; print the best and write its CUDA into a folder.

    \b
      ekc tune matmul 1024 1024 1024 --target a100
      ekc tune conv2d --n 1 --c 64 --h 56 --w 56 --out-channels 64 --kernel 3 --padding 1
      ekc tune einsum 'bmk,bkn->bmn' 8x64x32 8x32x64
      ekc tune --layers examples/layers.toml

    Ctrl-C ends the search with the best so far; the status then is 130.
    """
    chosen = TuneArguments(**options)  # type: ignore[arg-type]
    if name is not None:
        from ekc.ir.validate import check_identifier

        check_identifier("--name", name)
    with closing(EventLog(log_json)) as events:
        events.check_writable(chosen.records, chosen.warm_start)
        if layers is None:
            return _tune_one(request, chosen, events, out, name, as_json)
        if not request.is_empty:
            raise InvalidInput("--layers: the file names its operators itself; leave OPERATOR out")
        from ekc.cli.layers import tune_layers

        return tune_layers(layers, chosen, events, out, name or "", as_json)


def _tune_one(
    request: OperatorRequest,
    arguments: TuneArguments,
    event_log: EventLog,
    out: Path,
    name: str | None,
    as_json: bool,
) -> int:
    op = request.make_operator()
    arguments.check_options()
    ensure_writable(out)
    result = arguments.run_tuning(op, event_log)
    log_replaced(out, op, name)
    paths = result.export(out, name)
    if as_json:
        print_json(result.to_json() | {"exported": [str(p) for p in paths]})
    else:
        print_text(f"{result.summary()}\n\n{format_written(paths)}")
    return find_exit_status(result)
