"""`ekc bundle`: a C++ library of the best kernels of a record file, which selects one at run time.

`ekc export`: a C++ library of one kernel.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ekc.cli.arguments import OperatorCommand, parse_inputs, refuse_unused_options
from ekc.cli.output import (
    FILE,
    cubin_option,
    describe_functions,
    ensure_writable,
    format_functions,
    format_library,
    json_option,
    log,
    log_lost_kernels,
    out_option,
    prepare_library_folder,
    print_result,
)
from ekc.cli.sources import (
    READER_OPTIONS,
    LocatedSchedule,
    ScheduleSource,
    any_toolchain_option,
    model_option,
    read_model,
    schedule_source,
)
from ekc.errors import InvalidInput
from ekc.tables import choose_unit, format_figure, format_rounded, format_table

if TYPE_CHECKING:
    from ekc.codegen.library.build import KernelChoice
    from ekc.codegen.library.function_plan import NamedOperator
    from ekc.codegen.library.kernels import Bundle
    from ekc.devices.device import Device


@click.command()
@click.option("--records", type=FILE, required=True, help="Record file (SQLite) to read.")
@model_option(
    "Model: bundle its operators, under the names of the layers. A layer file (.toml), .onnx, or .pt2 of "
    "torch.export. [default: all]"
)
@click.option("--dtype", help="With --model: type that its float32 values get, such as float16.")
@click.option(
    "--input", "inputs", multiple=True, metavar="NAME=SHAPE", help="With --model: shape of an input of it."
)
@click.option("--targets", help="Devices with commas between, such as a100,h100. [default: all of the file]")
@click.option("--name", required=True, help="Name of the library: lower-case letters, digits and _.")
@click.option("--out", type=FILE, required=True, help="Folder for the library.")
@click.option("--version", default="0.1.0", show_default=True, help="Version of the library.")
@click.option(
    "--max-slowdown",
    type=float,
    default=0.05,
    show_default=True,
    help="Bundle kernels at most this much slower than the fastest: 0.05 is 5 %.",
)
@cubin_option
@any_toolchain_option
@json_option
def bundle(
    records: Path,
    model: Path | None,
    dtype: str | None,
    inputs: tuple[str, ...],
    targets: str | None,
    name: str,
    out: Path,
    version: str,
    max_slowdown: float,
    cubin: bool,
    any_toolchain: bool,
    as_json: bool,
) -> None:
    """Write a C++ library of the best kernels of a record file, which selects a kernel at run time.

    The folder is a project for CMake and make. The library needs the CUDA runtime, or with --cubin the driver
    alone, and no Python.
    """
    from ekc.bundle import collect_bundle
    from ekc.codegen.library.legal_names import check_bundle_name
    from ekc.codegen.library.write import check_folder, write_bundle
    from ekc.search.data.selection import SelectionRule

    check_folder(out, check_bundle_name(name))
    operators = _name_layers(model, dtype, inputs)
    found = collect_bundle(
        name,
        records,
        version=version,
        operators=operators,
        targets=_split_targets(targets),
        rule=SelectionRule("energy", max_slowdown),
        any_toolchain=any_toolchain,
    )
    for line in found.missing:
        log(f"ekc: warning: {line}")
    with log_lost_kernels(out, name):
        paths = write_bundle(found.bundle, ensure_writable(out), cubin=cubin)
    functions = describe_functions(found.bundle)
    facts = {"functions": functions, "missing": found.missing, "written": [str(p) for p in paths]}
    contents = format_functions(found.bundle) + format_contents(found.bundle)
    print_result(facts if as_json else f"{contents}\n\n{format_library(out, name, paths)}")


def _name_layers(file: Path | None, dtype: str | None, inputs: tuple[str, ...]) -> list[NamedOperator] | None:
    """Operators of a model under the names of its layers, each name of each model once; None without a model:
    all of the record file."""
    from ekc.codegen.library.function_plan import name_layers

    options: dict[str, object] = {} if dtype is None else {"dtype": dtype}
    options |= parse_inputs(inputs)
    if file is None:
        refuse_unused_options(READER_OPTIONS, "it is about the file of --model; add --model FILE")
        return None
    return name_layers(read_model(file, options).layers)


def _split_targets(text: str | None) -> list[str] | None:
    if text is None:
        return None

    targets = [target.strip() for target in text.split(",")]
    if not all(targets):
        raise InvalidInput(f"--targets: {text!r:.60} names no device between two commas; try a100,h100")
    return list(dict.fromkeys(targets))


def format_contents(bundle: Bundle) -> str:
    """Table of the kernels of a bundle: function, board, latency and energy of a call."""

    latency, unit_s = choose_unit([k.figures.latency_s for k in bundle.kernels], "s")
    energy, unit_j = choose_unit([k.figures.energy_j for k in bundle.kernels], "J")
    rows = [
        (
            f.name,
            "x".join(map(str, s.extents)),
            k.board.label,
            k.arch,
            k.role,
            format_figure(k.figures.latency_s, latency),
            format_figure(k.figures.energy_j, energy),
        )
        for f in bundle.functions
        for s in f.shapes
        for k in s.kernels
    ]
    headers = (
        "function",
        "extents",
        "figures of",
        "code",
        "for",
        f"latency [{unit_s}]",
        f"energy [{unit_j}]",
    )
    return format_table(headers, rows, f"ekc_{bundle.name} {bundle.version}", label_count=5)


@click.command(cls=OperatorCommand)
@schedule_source
@out_option
@click.option("--name", help="Name of the library. [default: name of the operator]")
@cubin_option
@json_option
def export(source: ScheduleSource, out: Path | None, name: str | None, cubin: bool, as_json: bool) -> None:
    """Write a C++ library of one kernel: a project for CMake and make, with a typed header.

    Without --records or --schedule the naive kernel is written. Two libraries of different names can be
    linked into one program; ekc bundle writes many kernels into one.
    """
    from ekc.codegen.library.build import export as write_library
    from ekc.codegen.library.kernels import TargetBoard
    from ekc.codegen.library.legal_names import name_library

    found, device = source.find_schedule(), source.open_device()
    name = name_library(name, found.schedule.op)
    folder = prepare_library_folder(out, name)
    if found.is_naive:
        log("ekc: the naive kernel, as neither --records nor --schedule is given")
    choice = _make_choice(found, device)
    board = TargetBoard(device.name, device.arch, device.simulated, device.limits.sms)
    with log_lost_kernels(folder, name):
        paths = write_library([choice], board, folder, limits=device.limits, name=name, cubin=cubin)
    facts = {"digest": found.schedule.digest, "exported": [str(p) for p in paths]}
    print_result(facts if as_json else format_library(folder, name, paths))


def _make_choice(found: LocatedSchedule, device: Device) -> KernelChoice:
    """The schedule with its figures; those of another device or toolchain are in the provenance alone."""
    from ekc.codegen.library.build import KernelChoice
    from ekc.codegen.library.kernels import KernelFigures
    from ekc.search.tuning_result import make_choice

    provenance, trial = _describe_provenance(found, device), found.trial
    if trial is None or trial.measured_elsewhere:
        return KernelChoice(found.schedule, KernelFigures(provenance=provenance))
    return make_choice(trial, provenance=provenance)


def _describe_provenance(found: LocatedSchedule, device: Device) -> dict[str, str]:
    """Origin of the schedule and of its figures, for the JSON record."""
    facts = {"origin": found.origin}
    trial = found.trial
    if trial is None:
        return facts | {"figures": "none: not measured"}
    elsewhere = trial.measured_elsewhere
    facts["device"] = elsewhere or f"{device.label}, {device.clock_regime}"
    if elsewhere:
        facts["figures"] = "measured elsewhere, on that device and with those programs; compiled afresh"
    if trial.latency_s is not None:
        facts["latency"] = f"{trial.latency_s * 1e6:.2f} us"
    if trial.energy_j is not None:
        how = ("metered" if trial.metered else "predicted") + (" elsewhere" if elsewhere else "")
        facts["energy"] = f"{format_rounded(trial.energy_j * 1e3, 4)} mJ a call ({how})"
    return facts | {"result": trial.checked or "not executed"}
