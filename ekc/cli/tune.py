"""`ekc tune`: search for the kernel of least energy, print the result, write the kernel. With `--model FILE`:
tune the layers of a model, print one table, write one library."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import ekc
from ekc import devices
from ekc.cli.arguments import OperatorCommand, OperatorRequest, operator_arguments
from ekc.cli.event_log import EventLog
from ekc.cli.output import (
    EXIT_BAD_INPUT,
    FILE,
    cubin_option,
    derive_exit_status,
    format_functions,
    format_library,
    json_option,
    log,
    log_lost_kernels,
    out_option,
    prepare_library_folder,
    print_result,
)
from ekc.cli.report import check_report_file, format_report, write_report
from ekc.cli.sources import choice_options, model_option, read_model, target_option
from ekc.errors import InvalidInput
from ekc.tables import group_pairs

if TYPE_CHECKING:
    from ekc.codegen.library.kernels import Bundle
    from ekc.ir.operator import Operator
    from ekc.models.model import Model
    from ekc.search.clocks.plan import ClockPlan
    from ekc.search.tuning_result import TuningResult
    from ekc.search.whole_model.model_result import ModelResult


@dataclass(frozen=True)
class TuneArguments:
    """Options of a tuning run that do not depend on the operator; each is an option of `ekc tune`."""

    target: str
    effort: str | None
    trials: int | None
    trials_per_layer: int | None
    objective: str
    max_slowdown: float
    clocks: str
    seed: int
    records: Path | None
    time_budget_s: float | None
    workers: int | None
    quiet: bool
    contenders: tuple[str, ...]
    evolve: bool
    out: Path | None
    """Folder of the C++ library; by default one named after it."""
    name: str | None
    """Name of the library; by default that of the operator or model."""
    cubin: bool

    def check_options(self) -> None:
        """Raise `InvalidInput` for options that `ekc.tune` would refuse, before any file is written."""
        from ekc.search.data.options import check_options, parse_contenders

        check_options(
            *(self.trials, self.effort, self.max_slowdown, self.clocks, self.seed, self.time_budget_s)
        )
        parse_contenders(self.contenders)
        self._check_devices_and_files()

    def check_model_options(self, model: Model) -> None:
        """Raise `InvalidInput` for options that `ekc.tune_model` would refuse, before any file is written."""
        from ekc.search.whole_model.model_search import check_model, check_model_options

        check_model_options(
            *(check_model(model), self.trials, self.effort, self.trials_per_layer),
            *(self.max_slowdown, self.clocks, self.seed, self.time_budget_s),
        )
        self._check_devices_and_files()

    def _check_devices_and_files(self) -> None:
        from ekc.search.data.selection import parse_objective
        from ekc.search.database.database import RecordStore

        parse_objective(self.objective)
        device = devices.open(self.target)
        if self.target == "auto" and device.simulated and not self.quiet:
            log(f"ekc: no GPU found: this run simulates the {device.name}; --target names another device")
        RecordStore(self.records).close()

    def run_tuning(self, op: Operator, event_log: EventLog) -> TuningResult:
        """Run `ekc.tune` and write its events to the log."""
        from ekc.search.data.options import parse_effort

        trials = self.trials or parse_effort(self.effort).trials
        with self._open_workers(trials) as executor:
            return ekc.tune(op, executor=executor, **self._list_options(event_log, "trials_per_layer"))

    def run_model(self, model: Model, event_log: EventLog) -> ModelResult:
        """Run `ekc.tune_model` and write its events to the log."""
        from ekc.search.whole_model.scheduler import make_budget

        trials = make_budget(model, self.trials, self.effort, self.trials_per_layer).trials
        with self._open_workers(trials) as executor:
            return ekc.tune_model(
                model, executor=executor, **self._list_options(event_log, "contenders", "evolve")
            )

    def _list_options(self, event_log: EventLog, *without: str) -> dict[str, Any]:
        """The arguments of `ekc.tune` or `ekc.tune_model` by name."""
        own = ("workers", "quiet", "out", "name", "cubin", *without)
        options = {name: value for name, value in vars(self).items() if name not in own}
        return options | {"progress": not self.quiet, "callback": event_log.make_listener()}

    @contextmanager
    def _open_workers(self, trials: int) -> Iterator[Executor | None]:
        """The pool of --workers; None without the option: the run opens its own."""
        from ekc.search.loop.compile_job import open_worker_pool

        if self.workers is None:
            yield None
            return
        with open_worker_pool(devices.open(self.target), trials, self.workers) as executor:
            yield executor


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
@click.option(
    "--evolve",
    is_flag=True,
    help="Also edit the steps of good schedules: insert, delete, exchange, move and cross them. Not with "
    "--model.",
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
    if chosen.name is not None:
        from ekc.codegen.library.legal_names import check_bundle_name

        check_bundle_name(chosen.name)
    check_plan_file(plan, chosen.clocks)
    check_report_file(report, chosen.records)
    with closing(EventLog(log_json)) as events:
        events.check_writable(chosen.records)
        if model is None:
            if chosen.trials_per_layer is not None:
                raise InvalidInput("--trials-per-layer: an operator has no layers; write --trials")
            return _tune_one(request, chosen, events, report, as_json, plan)
        if chosen.contenders:
            raise InvalidInput("--contender: no library is measured with --model; tune one operator")
        if chosen.evolve:
            raise InvalidInput("--evolve: steps are not edited with --model; tune one operator")
        if not request.is_empty:
            raise InvalidInput("--model: the file names its operators itself; leave OPERATOR out")
        read = read_model(model, request.options)
        return tune_layers(read, chosen, events, report, as_json, plan)


def _tune_one(
    request: OperatorRequest,
    options: TuneArguments,
    event_log: EventLog,
    report: Path | None,
    as_json: bool,
    plan: Path | None,
) -> int:
    from ekc.codegen.library.legal_names import name_library

    op = request.make_operator()
    options.check_options()
    name = name_library(options.name, op)
    folder = prepare_library_folder(options.out, name)
    result = options.run_tuning(op, event_log)
    with log_lost_kernels(folder, name):
        paths = result.export(folder, name, cubin=options.cubin)
    print_result(
        result.to_json() | {"exported": [str(p) for p in paths]}
        if as_json
        else f"{result.summary()}\n\n{format_library(folder, name, paths)}"
    )
    write_plan(plan, result.plan, result.clocks_note)
    if report is not None:
        from ekc.search.run_data.from_result import collect_run

        log(format_report(report, write_report(report, [collect_run(result)])))
    return derive_exit_status(result)


def tune_layers(
    model: Model,
    options: TuneArguments,
    event_log: EventLog,
    report: Path | None,
    as_json: bool,
    plan: Path | None,
) -> int:
    """Tune the layers of a model, print them and write one library of them. Returns the exit status."""
    from ekc.codegen.library.function_plan import name_layers, plan_functions
    from ekc.codegen.library.legal_names import make_library_name
    from ekc.codegen.library.write import write_bundle
    from ekc.search.whole_model.model_result import NOT_TUNED

    # Names that no library can have are refused before the first layer is tuned.
    plan_functions(name_layers(model.layers))
    options.check_model_options(model)
    name = options.name or make_library_name(model.name)
    folder = prepare_library_folder(options.out, name)
    result = options.run_model(model, event_log)
    failed = [x for x in result.layers if x.failure and not x.failure.startswith(NOT_TUNED)]
    for x in failed:
        log(f"ekc: layer {x.layer.name}: {x.failure}")
    library = result.make_bundle(name)
    with log_lost_kernels(folder, name):
        paths = write_bundle(library, folder, cubin=options.cubin)
    print_result(
        _to_json(result, library, paths)
        if as_json
        else f"{result.summary()}\n\n{format_functions(library)}{format_library(folder, name, paths)}"
    )
    write_plan(plan, result.plan, result.clocks_note)
    if report is not None:
        page = result.make_report()
        page.write(report)
        log(format_report(report, page))
    if status := derive_exit_status(result):
        log("ekc: interrupted")
        return status
    return EXIT_BAD_INPUT if failed else 0


def _to_json(result: ModelResult, library: Bundle, paths: tuple[Path, ...]) -> dict[str, object]:
    """The object that --json prints: each layer with the names of its functions."""
    functions = group_pairs((s.op.digest, one.name) for one in library.functions for s in one.shapes)
    facts = result.to_json()
    digests = [x.layer.op.digest for x in result.layers if x.result is not None]
    for layer, digest in zip(facts["layers"], digests, strict=True):
        layer["functions"] = functions[digest]
    return facts | {"exported": [str(p) for p in paths]}
