"""`ekc tune`: search for the kernel of least energy, print the result, write the kernel."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from ekc.cli.arguments import OperatorCommand, OperatorRequest, operator_arguments
from ekc.cli.event_log import EventLog
from ekc.cli.model_file import model_option, read_model
from ekc.cli.output import (
    FILE,
    LibraryTarget,
    cubin_option,
    find_exit_status,
    format_library,
    json_option,
    log,
    log_lost_kernels,
    out_option,
    prepare_library_folder,
    print_json,
    print_text,
)
from ekc.cli.report import check_report_file, format_report, write_report
from ekc.cli.schedule_source import choice_options, target_option
from ekc.cli.tune_arguments import TuneArguments, check_plan_file, write_plan
from ekc.errors import InvalidInput


@click.command(cls=OperatorCommand)
@operator_arguments
@model_option(
    "Tune the layers of this model with one budget of trials: a layer file (.toml), .onnx, or .pt2 "
    "of torch.export. --dtype and --input set the type and the shapes of its inputs."
)
@target_option
@click.option(
    "--effort",
    help="quick, standard or full: at most 64, 256 or 1024 trials. The run stops when another round "
    "would cost more energy than it is expected to save.",
)
@click.option(
    "--trials",
    type=int,
    help="Number of schedules to compile and time, of all layers together with --model. "
    "[default: 256, times the number of layers]",
)
@click.option(
    "--trials-per-layer", type=int, help="With --model: the same number of schedules for each layer instead."
)
@choice_options
@click.option(
    "--clocks",
    default="fixed",
    show_default=True,
    help="fixed, or search: also search the GPU clock and the kernels for it that save most energy together. "
    "With --model one clock for all layers.",
)
@click.option(
    "--plan",
    type=FILE,
    help="With --clocks search: write the clock plan to this file, for `ekc govern --plan`.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the search.")
@click.option(
    "--records",
    type=FILE,
    help="Keep every measurement in this SQLite file. A run that was stopped resumes from it.",
)
@click.option(
    "--time-budget",
    "time_budget_s",
    type=float,
    metavar="SECONDS",
    help="Stop after this time and return the best so far.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    help="Processes that compile. The result does not depend on it. [default: one per core, at most 32]",
)
@click.option(
    "--contender",
    "contenders",
    multiple=True,
    help="library: on a real GPU, also measure the algorithms of cuBLASLt or cuDNN for this operator, and "
    "compare the best of them with ours. Not with --model.",
)
@out_option
@click.option("--name", help="Name of the C++ library. [default: that of the operator, or of the model]")
@cubin_option
@click.option(
    "--report", type=FILE, help="Also write a report of the run: one HTML page. It needs no network."
)
@click.option("--quiet", is_flag=True, help="Print no progress.")
@click.option(
    "--log-json",
    metavar="FILE",
    help="Write every event of the run to this file, one JSON object per line; - is standard output. "
    "Only an empty file or an event log is overwritten.",
)
@json_option
def tune(
    request: OperatorRequest,
    model: Path | None,
    out: Path | None,
    name: str | None,
    cubin: bool,
    report: Path | None,
    plan: Path | None,
    as_json: bool,
    log_json: str | None,
    **options: object,
) -> int:
    """Search the schedules of an operator, print the best kernel and write its CUDA source to a folder.

    The best kernel has the least energy among those at most --max-slowdown slower than the fastest.

    \b
      ekc tune matmul 1024 1024 1024 --target a100
      ekc tune conv2d --n 1 --c 64 --h 56 --w 56 --out-channels 64 --kernel 3 --padding 1
      ekc tune einsum 'bmk,bkn->bmn' 8x64x32 8x32x64
      ekc tune --model examples/layers.toml --trials 2000

    Ctrl-C ends the search and returns the best so far, with exit status 130.
    """
    chosen = TuneArguments(**options)  # type: ignore[arg-type]
    if name is not None:
        from ekc.codegen.library.legal_names import check_bundle_name

        check_bundle_name(name)
    target = LibraryTarget(out, name, cubin)
    check_plan_file(plan, chosen.clocks)
    check_report_file(report, chosen.records)
    with closing(EventLog(log_json)) as events:
        events.check_writable(chosen.records)
        if model is None:
            if chosen.trials_per_layer is not None:
                raise InvalidInput("--trials-per-layer: an operator has no layers; write --trials")
            return _tune_one(request, chosen, events, target, report, as_json, plan)
        if chosen.contenders:
            raise InvalidInput("--contender: no library is measured with --model; tune one operator")
        if not request.is_empty:
            raise InvalidInput("--model: the file names its operators itself; leave OPERATOR out")
        from ekc.cli.model import tune_layers

        read = read_model(model, request.options)
        return tune_layers(read, chosen, events, target, report, as_json, plan)


def _tune_one(
    request: OperatorRequest,
    arguments: TuneArguments,
    event_log: EventLog,
    target: LibraryTarget,
    report: Path | None,
    as_json: bool,
    plan: Path | None,
) -> int:
    from ekc.codegen.library.legal_names import name_library

    op = request.make_operator()
    arguments.check_options()
    name = name_library(target.name, op)
    folder = prepare_library_folder(target.out, name)
    result = arguments.run_tuning(op, event_log)
    with log_lost_kernels(folder, name):
        paths = result.export(folder, name, cubin=target.cubin)
    if as_json:
        print_json(result.to_json() | {"exported": [str(p) for p in paths]})
    else:
        print_text(f"{result.summary()}\n\n{format_library(folder, name, paths)}")
    write_plan(plan, result.plan, result.clocks_note)
    if report is not None:
        from ekc.search.run_data.from_result import collect_run

        log(format_report(report, write_report(report, [collect_run(result)])))
    return find_exit_status(result)
