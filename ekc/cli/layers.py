"""`ekc tune --layers FILE`: tune the layers of a network one after another; one table of all."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ekc.cli.arguments import OPERATOR_KINDS, build_operator
from ekc.cli.layer_file import Layer, read_layers
from ekc.cli.output import (
    EXIT_BAD_INPUT,
    EXIT_INTERRUPTED,
    LibraryTarget,
    find_exit_status,
    format_library,
    join_lines,
    log,
    log_lost_kernels,
    prepare_library_folder,
    print_json,
    print_text,
)
from ekc.cli.report import format_report, write_report
from ekc.codegen.library.build import build_library
from ekc.codegen.library.function_plan import NamedOperator, plan_functions
from ekc.codegen.library.kernels import Bundle, TargetBoard
from ekc.codegen.library.legal_names import make_library_name
from ekc.codegen.library.write import write_bundle
from ekc.errors import EkcError, InvalidInput
from ekc.search.data.trial import describe_energy_source
from ekc.search.summary import choose_unit, format_figure, format_speedup
from ekc.search.tuning_result import make_choice
from ekc.tables import format_rounded, format_table

if TYPE_CHECKING:
    from ekc.cli.event_log import EventLog
    from ekc.cli.tune_arguments import TuneArguments
    from ekc.ir.operator import Operator
    from ekc.search.tuning_result import TuningResult


@dataclass(frozen=True)
class TunedLayer:
    """A layer and its result."""

    layer: Layer
    result: TuningResult


NOT_TUNED = "not tuned"


@dataclass(frozen=True)
class UntunedLayer:
    """A layer without a kernel, and the reason."""

    layer: Layer
    reason: str
    """`NOT_TUNED`, or the error message."""

    @property
    def short_reason(self) -> str:
        """The reason in one or two words."""
        return self.reason if self.reason == NOT_TUNED else "failed"


def tune_layers(
    file: Path,
    options: TuneArguments,
    event_log: EventLog,
    target: LibraryTarget,
    report: Path | None,
    as_json: bool,
) -> int:
    """Tune every layer of a file, also after a failure, and write one library of them; Ctrl-C ends that and
    prints the layers so far. Returns the exit status."""
    layers = read_operators(file)
    operators = name_operators(layers)
    plan_functions(operators)
    options.check_options()
    name = target.name or make_library_name(file.stem)
    folder = prepare_library_folder(target.out, name)
    done: list[TunedLayer] = []
    missing: list[UntunedLayer] = []
    interrupted = False
    began = time.monotonic()
    for number, (layer, op) in enumerate(layers, 1):
        if not options.quiet:
            left = _format_remaining(time.monotonic() - began, number - 1, len(layers))
            log(f"layer {number} of {len(layers)}: {layer.name}{left}")
        try:
            done.append(TunedLayer(layer, options.run_tuning(op, event_log, layer)))
            interrupted = find_exit_status(done[-1].result) == EXIT_INTERRUPTED
        except EkcError as problem:
            missing.append(UntunedLayer(layer, join_lines(str(problem))))
            log(f"ekc: layer {layer.name}: {missing[-1].reason}")
        except KeyboardInterrupt:
            interrupted = True
        if interrupted:
            log(f"ekc: interrupted in layer {number} of {len(layers)}")
            break
    failed = bool(missing)
    missing += [UntunedLayer(layer, NOT_TUNED) for layer, _ in layers[len(done) + len(missing) :]]
    library = _build_library(name, operators, done) if done else None
    paths: tuple[Path, ...] = ()
    if library:
        with log_lost_kernels(folder, name):
            paths = write_bundle(library, folder, cubin=target.cubin)
    if as_json:
        print_json(_to_json(done, missing, library, paths))
    elif library:
        print_text(f"{_format_table(done)}\n\n{_format_totals(done, missing)}\n")
        print_text(format_library(folder, name, paths))
    if report is not None and done:
        log(_write_report(report, file, done, missing))
    return EXIT_INTERRUPTED if interrupted else EXIT_BAD_INPUT if failed else 0


def _write_report(
    report: Path, file: Path, tuned_layers: Sequence[TunedLayer], untuned_layers: Sequence[UntunedLayer]
) -> str:
    """Write one page of all layers; returns the line that says so."""
    from ekc.search.run_data.from_result import collect_run

    runs = [replace(collect_run(t.result), layer=t.layer.name, calls=t.layer.count) for t in tuned_layers]
    absent = [f"{m.layer.name}: {m.reason}" for m in untuned_layers]
    return format_report(report, write_report(report, runs, f"Layers of {file.name}", absent))


def _build_library(
    name: str, operators: Sequence[NamedOperator], tuned_layers: Sequence[TunedLayer]
) -> Bundle:
    """The library of the best kernels, and of the fastest where these are others. Functions have the same
    names whatever layers were tuned."""
    choices = {}
    for tuned in tuned_layers:
        result = tuned.result
        best = make_choice(result.best, provenance=result.provenance())
        if result.best.schedule != result.fastest.schedule:
            choices[result.op.digest] = [make_choice(result.fastest, "latency"), replace(best, role="energy")]
        else:
            choices[result.op.digest] = [best]
    device = tuned_layers[0].result.device
    board = TargetBoard(device.name, device.arch, device.simulated)
    return build_library(name, operators, choices, board)


def _format_remaining(spent_s: float, done_count: int, layer_count: int) -> str:
    """Estimate of the remaining time, from the mean time of a layer; "" before the first is done."""
    if not done_count:
        return ""
    minutes = math.ceil(spent_s / done_count * (layer_count - done_count) / 60)
    return f" (about {minutes} min left at the pace so far)"


def read_operators(file: Path) -> list[tuple[Layer, Operator]]:
    """The layers of a file and their operators, each operator once. All are built before the first is tuned,
    so that a mistake in the last layer is reported at once."""
    found: dict[str, tuple[Layer, Operator]] = {}
    for layer in read_layers(file, frozenset(OPERATOR_KINDS) - {"einsum"}):
        op = _build_layer_operator(file, layer)
        if op.digest in found:
            first = found[op.digest][0]
            layer = replace(first, uses=first.uses + layer.uses)
        found[op.digest] = (layer, op)
    return list(found.values())


def _build_layer_operator(file: Path, layer: Layer) -> Operator:
    try:
        return build_operator(layer.operator_kind, layer.arguments)
    except InvalidInput as problem:
        raise InvalidInput(f"{file}: layer {layer.name}: {problem}") from problem


def name_operators(layers: Sequence[tuple[Layer, Operator]]) -> list[NamedOperator]:
    """Operators under the names of the layers. Of two that one model calls `conv` the second is `conv_2`."""
    named: dict[tuple[str, str], list[Operator]] = {}
    for layer, op in layers:
        for use in layer.uses:
            own = named.setdefault((use.model, use.name), [])
            if op not in own:
                own.append(op)
    return [
        NamedOperator(op, label, model)
        for (model, name), own in named.items()
        for label, op in zip(_number_names(model, name, named), own, strict=False)
    ]


def _number_names(model: str, name: str, taken: Collection[tuple[str, str]]) -> Iterator[str]:
    """The name, then the name with 2, 3, ... that no other layer of the model has."""
    yield name
    yield from (label for n in count(2) if (model, label := f"{name}_{n}") not in taken)


def _to_json(
    tuned_layers: Sequence[TunedLayer],
    untuned_layers: Sequence[UntunedLayer],
    library: Bundle | None,
    paths: Sequence[Path],
) -> dict[str, Any]:
    """The object that --json prints."""
    functions: dict[str, list[str]] = {}
    for function in library.functions if library else ():
        for shape in function.shapes:
            functions.setdefault(shape.op.digest, []).append(function.name)
    layers = [
        _uses_to_json(t.layer) | t.result.to_json() | {"functions": functions[t.result.op.digest]}
        for t in tuned_layers
    ]
    failures = [_uses_to_json(m.layer) | {"reason": m.reason} for m in untuned_layers]
    return {"layers": layers, "failed": failures, "exported": [str(p) for p in paths]}


def _uses_to_json(layer: Layer) -> dict[str, Any]:
    return {"name": layer.name, "count": layer.count, "uses": [vars(use) for use in layer.uses]}


def _format_table(tuned_layers: list[TunedLayer]) -> str:
    """The table of tuned layers, each shape once, with the number of times it occurs in the file."""
    latency, unit_s = choose_unit([t.result.best.latency_s for t in tuned_layers], "s")
    energy, unit_j = choose_unit([t.result.best.energy_j for t in tuned_layers], "J")
    figures = (f"latency [{unit_s}]", "power [W]", f"energy [{unit_j}]", "source", "of roofline", "vs naive")
    rows = [
        (
            t.layer.uses[0].model,
            t.layer.name,
            str(t.layer.count),
            format_figure(t.result.best.latency_s, latency),
            format_figure(t.result.best.power_w),
            format_figure(t.result.best.energy_j, energy),
            describe_energy_source(t.result.best),
            f"{100 * t.result.roofline_share:.1f}%",
            format_speedup(t.result.baseline, t.result.best),
        )
        for t in tuned_layers
    ]
    labels = {t.result.device.label for t in tuned_layers}
    title = f"Best schedules on {', '.join(sorted(labels))}; latency and energy of one call"
    return format_table(("model", "layer", "times", *figures), rows, title, label_count=2)


def _format_totals(tuned_layers: list[TunedLayer], untuned_layers: list[UntunedLayer]) -> str:
    """Latency and energy of one pass of each model: the sum over its layers, and the layers left out."""
    layers = [t.layer for t in tuned_layers] + [m.layer for m in untuned_layers]
    models = dict.fromkeys(use.model for layer in layers for use in layer.uses)
    return "\n".join(_format_total(model, tuned_layers, untuned_layers) for model in models)


def _format_total(model: str, tuned_layers: list[TunedLayer], untuned_layers: list[UntunedLayer]) -> str:
    uses = [(t.result.best, use.count) for t in tuned_layers for use in t.layer.uses if use.model == model]
    seconds = sum((best.latency_s or 0.0) * count for best, count in uses)
    joules = sum((best.energy_j or 0.0) * count for best, count in uses)
    calls = sum(count for _, count in uses)
    figures = f"{format_rounded(seconds * 1e3, 4)} ms, {format_rounded(joules, 4)} J in sum"
    total = f"{model or 'all layers'}: {calls} calls, {figures}"
    absent = [
        f"{use.name} ({m.short_reason})" for m in untuned_layers for use in m.layer.uses if use.model == model
    ]
    return total + (f", without {', '.join(absent)}" if absent else "")
