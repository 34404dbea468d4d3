"""`ekc explain A B`: the causes of the difference in energy of two schedules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ekc.cli.arguments import (
    OperatorCommand,
    OperatorRequest,
    operator_arguments,
    refuse_options,
    refuse_unused_options,
)
from ekc.cli.output import FILE, format_count, format_signed, json_option, print_json, print_text
from ekc.cli.schedule_source import (
    CHOICE_OPTIONS,
    any_toolchain_option,
    choice_options,
    read_schedule,
    target_option,
)
from ekc.errors import InvalidInput

if TYPE_CHECKING:
    from ekc.devices.device import Device
    from ekc.ir.schedule.schedule import Schedule
    from ekc.search.data.selection import SelectionRule
    from ekc.search.explain.by_event import SimulatedExplanation


@click.command(cls=OperatorCommand)
@click.argument("a", callback=refuse_options)
@click.argument("b", callback=refuse_options)
@operator_arguments
@click.option("--records", type=FILE, help="Record file in which digests, best and fastest are looked up.")
@any_toolchain_option
@choice_options
@target_option
@json_option
def explain(
    a: str,
    b: str,
    request: OperatorRequest,
    records: Path | None,
    any_toolchain: bool,
    objective: str,
    max_slowdown: float,
    target: str,
    as_json: bool,
) -> None:
    """Explain why one schedule costs more energy than another.

    A simulated device attributes the difference to its causes exactly. For a GPU or a recording, an energy
    model is trained on the measurements and attributes it to features; its accuracy is printed.

    A and B are schedule files (.json), naive, or, with --records or a recording, best, fastest or the first
    digits of a digest. OPERATOR is needed for naive, and where the file has several operators.

    \b
      ekc explain a.json b.json --target a100
      ekc explain fastest best --records tuning.db
      ekc explain naive best matmul 512 512 512 --records tuning.db
      ekc explain fastest best --records tuning.db --target cuda:0
      ekc explain fastest best --target recorded:recording.jsonl.gz
    """
    from ekc import devices
    from ekc.search.data.selection import SelectionRule
    from ekc.search.explain.by_event import can_explain
    from ekc.search.explain.by_event import explain as account

    device, rule = devices.open(target), SelectionRule(objective, max_slowdown)
    _check_unused_options((a, b), request, records if can_explain(device) else None)
    one, other = (_find_schedule(word, request, records, device, rule, any_toolchain) for word in (a, b))
    labels = (_label_schedule(a, rule), _label_schedule(b, rule))
    if can_explain(device):
        exact = account(one, other, device)
        shown = exact.to_json() if as_json else _format_account(exact, one, labels)
        _print_account(shown, one, other, device)
        return
    from ekc.cli.explain_features import format_account
    from ekc.search.explain.by_feature import explain_learned

    learned = explain_learned(one, other, device, records)
    shown = learned.to_json() if as_json else format_account(learned, one, labels, device.simulated)
    _print_account(shown, one, other, device)


def _print_account(
    account: dict[str, Any] | str, schedule_a: Schedule, schedule_b: Schedule, device: Device
) -> None:
    if isinstance(account, str):
        print_text(account)
        return
    device_facts = {"name": device.name, "simulated": device.simulated}
    digests = {"digest_a": schedule_a.digest, "digest_b": schedule_b.digest}
    print_json({"operator": schedule_a.op.to_json(), "device": device_facts} | digests | account)


def _check_unused_options(arguments: tuple[str, str], request: OperatorRequest, records: Path | None) -> None:
    """Raise `InvalidInput` for options that neither A nor B needs."""
    named = {word for word in arguments if not _is_file(word)}
    if not request.is_empty and not named & {"naive", "best", "fastest"}:
        raise InvalidInput("OPERATOR: A and B name their own operators; leave it out")
    if records is not None and not named - {"naive"}:
        raise InvalidInput("--records: neither A nor B is in a record file; leave it out")
    if not named & {"best", "fastest"}:
        refuse_unused_options(("any_toolchain",), "neither A nor B is best or fastest; leave it out")
    if "best" not in named:
        refuse_unused_options(
            CHOICE_OPTIONS, "it defines the best schedule, and neither A nor B is best; leave it out"
        )


def _label_schedule(argument: str, rule: SelectionRule) -> str:
    return argument if argument != "best" or _is_file(argument) else f"best by {rule.objective}"


def _is_file(argument: str) -> bool:
    return argument != "naive" and (argument.endswith(".json") or Path(argument).is_file())


def _find_schedule(
    argument: str,
    request: OperatorRequest,
    records: Path | None,
    device: Device,
    rule: SelectionRule,
    any_toolchain: bool,
) -> Schedule:
    """Find the schedule that an argument names: a file, a digest, "naive", "best" or "fastest"."""
    from ekc.devices.recording import RecordedDevice
    from ekc.ir.schedule.naive import make_naive_schedule
    from ekc.search.database.measured_set import find_recorded_schedule, find_schedule

    if argument == "naive":
        if request.is_empty:
            raise InvalidInput("naive: name the operator after A and B, e.g. matmul 512 512 512")
        return make_naive_schedule(request.make_operator())
    if _is_file(argument):
        return read_schedule(Path(argument), "")
    op = None if request.is_empty else request.make_operator()
    if isinstance(device, RecordedDevice):
        return find_recorded_schedule(argument, device, op, rule)
    if records is None:
        raise InvalidInput(
            f"{argument!r} is no schedule file (.json); to name a schedule on file, add --records"
        )
    return find_schedule(argument, records, device, op, rule, any_toolchain)


def _format_account(explanation: SimulatedExplanation, schedule_a: Schedule, labels: tuple[str, str]) -> str:
    from ekc.search.summary import choose_unit, format_figure
    from ekc.tables import format_table

    sides = (explanation.a, explanation.b)
    scale, unit = choose_unit([side.energy_j for side in sides], "J")
    seconds, unit_s = choose_unit([side.latency_s for side in sides], "s")
    total = explanation.difference_j
    rows = [
        (
            line.cause,
            _format_line_count(line.count_a, line.unit),
            _format_line_count(line.count_b, line.unit),
            line.unit,
            format_figure(line.energy_a_j, scale),
            format_figure(line.energy_b_j, scale),
            format_signed(line.difference_j, scale),
        )
        for line in explanation.lines
        if line.energy_a_j or line.energy_b_j
    ]
    joules = [format_figure(side.energy_j, scale) for side in sides]
    sums = ("energy", "", "", "", *joules, format_signed(total, scale))
    clocks = ("clock", *(format_figure(side.clock_mhz) for side in sides), "MHz", "", "", "")
    times = ("latency", *(format_figure(side.latency_s, seconds) for side in sides), unit_s, "", "", "")
    title = (
        f"{str(schedule_a.op).splitlines()[0]} on {explanation.device}: "
        f"{labels[1]} (B) against {labels[0]} (A)\n"
        "Simulated: the device's own account of its energy, the board warm. Nothing ran on a GPU.\n"
    )
    headers = ("cause", "A", "B", "", f"A [{unit}]", f"B [{unit}]", f"B - A [{unit}]")
    return format_table(headers, [*rows, sums, times, clocks], title)


def _format_line_count(value: float, unit: str) -> str:
    """The count of a cause; "" for seconds, which the row "latency" has."""
    return "" if unit in ("", "s") else format_count(value)
