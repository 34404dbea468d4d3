"""`ekc tune --model FILE`: tune the layers of a model, print one table, write one library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ekc.cli.output import (
    EXIT_BAD_INPUT,
    EXIT_INTERRUPTED,
    LibraryTarget,
    format_functions,
    format_library,
    log,
    log_lost_kernels,
    prepare_library_folder,
    print_json,
    print_text,
)
from ekc.cli.report import format_report
from ekc.cli.tune_arguments import write_plan
from ekc.codegen.library.function_plan import name_layers, plan_functions
from ekc.codegen.library.legal_names import make_library_name
from ekc.codegen.library.write import write_bundle
from ekc.search.data.result import INTERRUPTED
from ekc.search.whole_model.model_result import NOT_TUNED

if TYPE_CHECKING:
    from ekc.cli.event_log import EventLog
    from ekc.cli.tune_arguments import TuneArguments
    from ekc.codegen.library.kernels import Bundle
    from ekc.models.model import Model
    from ekc.search.whole_model.model_result import ModelResult


def tune_layers(
    model: Model,
    options: TuneArguments,
    event_log: EventLog,
    target: LibraryTarget,
    report: Path | None,
    as_json: bool,
    plan: Path | None,
) -> int:
    """Tune the layers of a model, print them and write one library of them. Returns the exit status."""
    # Names that no library can have are refused before the first layer is tuned.
    plan_functions(name_layers(model.layers))
    options.check_model_options(model)
    name = target.name or make_library_name(model.name)
    folder = prepare_library_folder(target.out, name)
    result = options.run_model(model, event_log)
    failed = [x for x in result.layers if x.failure and not x.failure.startswith(NOT_TUNED)]
    for x in failed:
        log(f"ekc: layer {x.layer.name}: {x.failure}")
    library = result.make_bundle(name)
    with log_lost_kernels(folder, name):
        paths = write_bundle(library, folder, cubin=target.cubin)
    if as_json:
        print_json(_to_json(result, library, paths))
    else:
        print_text(f"{result.summary()}\n\n{format_functions(library)}{format_library(folder, name, paths)}")
    write_plan(plan, result.plan, result.clocks_note)
    if report is not None:
        page = result.make_report()
        page.write(report)
        log(format_report(report, page))
    if result.stopped == INTERRUPTED:
        log("ekc: interrupted")
        return EXIT_INTERRUPTED
    return EXIT_BAD_INPUT if failed else 0


def _to_json(result: ModelResult, library: Bundle, paths: tuple[Path, ...]) -> dict[str, object]:
    """The object that --json prints: each layer with the names of its functions."""
    functions: dict[str, list[str]] = {}
    for function in library.functions:
        for shape in function.shapes:
            functions.setdefault(shape.op.digest, []).append(function.name)
    facts = result.to_json()
    digests = [x.layer.op.digest for x in result.layers if x.result is not None]
    for layer, digest in zip(facts["layers"], digests, strict=True):
        layer["functions"] = functions[digest]
    return facts | {"exported": [str(p) for p in paths]}
