"""`ekc best` and `ekc export`: what earlier runs found, without tuning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ekc.cli.operators import NEGATIVES, Request, operator_arguments
from ekc.cli.output import OUT, json_option, say, say_json, writable, wrote
from ekc.cli.sources import (
    Found,
    Source,
    any_toolchain_option,
    choice_options,
    schedule_source,
    target_option,
    tell_replaced,
)

if TYPE_CHECKING:
    from ekc.devices.base import Device


@click.command(context_settings=NEGATIVES)
@operator_arguments
@click.option(
    "--records", type=click.Path(path_type=Path), required=True, help="The record file to look into."
)
@any_toolchain_option
@choice_options
@target_option
@json_option
def best(
    request: Request,
    records: Path,
    any_toolchain: bool,
    target: str,
    objective: str,
    max_slowdown: float,
    as_json: bool,
) -> None:
    """The best schedule on file for an operator and a device."""
    from ekc import devices
    from ekc.codegen.generate import toolchain
    from ekc.search.records.best import Rule, choose_best
    from ekc.search.summary import figure, note, rounding, spread, unit_of
    from ekc.search.text_table import text_table

    op, rule, device = request.operator(), Rule(objective, max_slowdown), devices.open(target)
    trial = choose_best(op, records, device, rule, any_toolchain)
    if as_json:
        say_json(
            {"operator": op.to_json(), "device": {"name": device.name, "simulated": device.simulated}}
            | vars(rule)
            | trial.to_json()
        )
        return
    latency, energy = unit_of([trial.latency_s], "s"), unit_of([trial.energy_j], "J")
    row = (
        figure(trial.latency_s, latency[0]) + spread(trial.latency_s, trial.latency_interval_s),
        figure(trial.power_w),
        figure(trial.energy_j, energy[0]) + spread(trial.energy_j, trial.energy_interval_j),
    )
    elsewhere = trial.measured_elsewhere
    title = f"{str(op).splitlines()[0]} on {device.label}: best of {records}" + (
        "\nMeasured elsewhere: these figures are not of this device and toolchain." if elsewhere else ""
    )
    say(text_table((f"latency [{latency[1]}]", "power [W]", f"energy [{energy[1]}]"), [row], title, labels=0))
    notes = [
        *note("best", str(rule)),
        *note("figures", f"measured elsewhere: {elsewhere}" if elsewhere else ""),
        *note("compiled", f"afresh for {device.arch} with NVRTC {toolchain()}" if elsewhere else ""),
        *note("checked", trial.checked or "not executed"),
        *note("atomics", rounding(trial)),
    ]
    say("\n".join(["", *notes, "", trial.schedule.to_python()]))


@click.command(context_settings=NEGATIVES)
@schedule_source
@click.option(
    "--out", type=click.Path(path_type=Path), default=OUT, show_default=True, help="Folder for the kernel."
)
@click.option("--name", help="What files and functions are called. [default: as the operator]")
@json_option
def export(source: Source, out: Path, name: str | None, as_json: bool) -> None:
    """Write a kernel for a C++ project: .cu with a launcher, header, JSON record, CMake function.

    Without --records or --schedule it is the naive one. Two shapes of one operator need two names to lie in
    one folder, and to be linked into one program.
    """
    import ekc
    from ekc import devices
    from ekc.codegen import bundle

    found, device = source.find(), devices.open(source.target)
    writable(out)
    kernel = ekc.compile(found.schedule, arch=device.arch, limits=device.limits, name=name)
    tell_replaced(out, found.schedule.op, name)
    paths = bundle.export(kernel.compiled, found.schedule, out, provenance=_provenance(found, device))
    if as_json:
        say_json({"digest": found.schedule.digest, "exported": [str(p) for p in paths]})
    else:
        say(wrote(paths))


def _provenance(found: Found, device: Device) -> dict[str, str]:
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
