"""`ekc best` and `ekc export`: what earlier runs found, without tuning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ekc.cli.operators import ALLOW_NEGATIVES, OperatorRequest, operator_arguments
from ekc.cli.output import (
    DEFAULT_FOLDER,
    ensure_writable,
    format_written,
    json_option,
    print_json,
    print_text,
)
from ekc.cli.sources import (
    LocatedSchedule,
    ScheduleSource,
    any_toolchain_option,
    choice_options,
    log_replaced,
    schedule_source,
    target_option,
)

if TYPE_CHECKING:
    from ekc.devices.device import Device


@click.command(context_settings=ALLOW_NEGATIVES)
@operator_arguments
@click.option(
    "--records", type=click.Path(path_type=Path), required=True, help="The record file to look into."
)
@any_toolchain_option
@choice_options
@target_option
@json_option
def best(
    request: OperatorRequest,
    records: Path,
    any_toolchain: bool,
    target: str,
    objective: str,
    max_slowdown: float,
    as_json: bool,
) -> None:
    """The best schedule on file for an operator and a device."""
    from ekc import devices
    from ekc.codegen.generate import describe_toolchain
    from ekc.search.database.query import SelectionRule, choose_best
    from ekc.search.summary import (
        choose_unit,
        describe_rounding,
        format_figure,
        format_relative_interval,
        wrap_note,
    )
    from ekc.tables import format_table

    op, rule, device = request.make_operator(), SelectionRule(objective, max_slowdown), devices.open(target)
    trial = choose_best(op, records, device, rule, any_toolchain)
    if as_json:
        print_json(
            {"operator": op.to_json(), "device": {"name": device.name, "simulated": device.simulated}}
            | vars(rule)
            | trial.to_json()
        )
        return
    latency, energy = choose_unit([trial.latency_s], "s"), choose_unit([trial.energy_j], "J")
    row = (
        format_figure(trial.latency_s, latency[0])
        + format_relative_interval(trial.latency_s, trial.latency_interval_s),
        format_figure(trial.power_w),
        format_figure(trial.energy_j, energy[0])
        + format_relative_interval(trial.energy_j, trial.energy_interval_j),
    )
    elsewhere = trial.measured_elsewhere
    title = f"{str(op).splitlines()[0]} on {device.label}: best of {records}" + (
        "\nMeasured elsewhere: these figures are not of this device and toolchain." if elsewhere else ""
    )
    print_text(
        format_table(
            (f"latency [{latency[1]}]", "power [W]", f"energy [{energy[1]}]"), [row], title, label_count=0
        )
    )
    notes = [
        *wrap_note("best", str(rule)),
        *wrap_note("figures", f"measured elsewhere: {elsewhere}" if elsewhere else ""),
        *wrap_note(
            "compiled", f"afresh for {device.arch} with NVRTC {describe_toolchain()}" if elsewhere else ""
        ),
        *wrap_note("checked", trial.checked or "not executed"),
        *wrap_note("atomics", describe_rounding(trial)),
    ]
    print_text("\n".join(["", *notes, "", trial.schedule.to_python()]))


@click.command(context_settings=ALLOW_NEGATIVES)
@schedule_source
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="Folder for the kernel.",
)
@click.option("--name", help="What files and functions are called. [default: as the operator]")
@json_option
def export(source: ScheduleSource, out: Path, name: str | None, as_json: bool) -> None:
    """Write a kernel for a C++ project: .cu with a launcher, header, JSON record, CMake function.

    Without --records or --schedule it is the naive one. Two shapes of one operator need two names to lie in
    one folder, and to be linked into one program.
    """
    import ekc
    from ekc import devices
    from ekc.codegen import export as bundle

    found, device = source.find_schedule(), devices.open(source.target)
    ensure_writable(out)
    kernel = ekc.compile(found.schedule, arch=device.arch, limits=device.limits, name=name)
    log_replaced(out, found.schedule.op, name)
    paths = bundle.export(
        kernel.compiled, found.schedule, out, provenance=_describe_provenance(found, device)
    )
    if as_json:
        print_json({"digest": found.schedule.digest, "exported": [str(p) for p in paths]})
    else:
        print_text(format_written(paths))


def _describe_provenance(found: LocatedSchedule, device: Device) -> dict[str, str]:
    """Where the schedule and its figures come from."""
    facts = {"origin": found.origin}
    trial = found.trial
    if trial is None:
        return facts | {"figures": "none: not measured"}
    there = trial.measured_elsewhere
    facts["device"] = there or f"{device.label}, {device.clock_regime}"
    if there:
        facts["figures"] = "measured elsewhere, on that device and with those programs; compiled afresh"
    if trial.latency_s is not None:
        facts["latency"] = f"{trial.latency_s * 1e6:.2f} us"
    if trial.energy_j is not None:
        how = ("metered" if trial.metered else "predicted") + (" elsewhere" if there else "")
        facts["energy"] = f"{trial.energy_j * 1e3:.4g} mJ a call ({how})"
    return facts | {"result": trial.checked or "not executed"}
