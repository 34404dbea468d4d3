"""`ekc explain A B`: where the difference in energy of two schedules comes from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ekc.cli.given import refuse_unread
from ekc.cli.operators import NEGATIVES, Request, no_options, operator_arguments
from ekc.cli.output import json_option, say, say_json
from ekc.cli.sources import CHOICE, any_toolchain_option, choice_options, read_schedule, target_option
from ekc.errors import InvalidInput

if TYPE_CHECKING:
    from ekc.devices.base import Device
    from ekc.ir.schedule import Schedule
    from ekc.search.explain.simulated import Explanation
    from ekc.search.records.best import Rule


@click.command(context_settings=NEGATIVES)
@click.argument("a", callback=no_options)
@click.argument("b", callback=no_options)
@operator_arguments
@click.option("--records", type=click.Path(path_type=Path), help="Where digests, best and fastest are found.")
@any_toolchain_option
@choice_options
@target_option
@json_option
def explain(
    a: str,
    b: str,
    request: Request,
    records: Path | None,
    any_toolchain: bool,
    objective: str,
    max_slowdown: float,
    target: str,
    as_json: bool,
) -> None:
    """Where the energy of two schedules differs: cause by cause, or feature by feature.

    A simulated device gives its own account, which is exact. A GPU does not tell: there, and for a recording,
    the energy model learns from what was measured, and says how good it is.

    A and B are schedule files (.json), or with --records or a recording a digest (its first digits will do)
    or best (by --objective) or fastest. OPERATOR is needed with best and fastest where the file holds
    several, and for naive.

    \b
      ekc explain a.json b.json --target a100
      ekc explain fastest best --records tuning.db
      ekc explain naive best matmul 512 512 512 --records tuning.db
      ekc explain fastest best --records tuning.db --target cuda:0
      ekc explain fastest best --target recorded:recording.jsonl.gz
    """
    from ekc import devices
    from ekc.search.explain.simulated import explain as account
    from ekc.search.explain.simulated import tells
    from ekc.search.records.best import Rule

    device, rule = devices.open(target), Rule(objective, max_slowdown)
    _check_read((a, b), request, records if tells(device) else None)
    one, other = (_schedule(word, request, records, device, rule, any_toolchain) for word in (a, b))
    words = (_told(a, rule), _told(b, rule))
    if tells(device):
        exact = account(one, other, device)
        _say(exact.to_json() if as_json else _text(exact, one, words), one, other, device)
        return
    from ekc.cli import explain_learned as learned
    from ekc.search.explain.learned import explain_learned

    found = explain_learned(one, other, device, records)
    told = found.to_json() if as_json else learned.text(found, one, words, device.simulated)
    _say(told, one, other, device)


def _say(told: dict[str, Any] | str, one: Schedule, other: Schedule, device: Device) -> None:
    if isinstance(told, str):
        say(told)
        return
    heads = {"operator": one.op.to_json(), "device": {"name": device.name, "simulated": device.simulated}}
    digests = {"digest_a": one.digest, "digest_b": other.digest}
    say_json(heads | digests | told)


def _check_read(words: tuple[str, str], request: Request, records: Path | None) -> None:
    """Refuse what is given and neither of A and B asks for."""
    named = {word for word in words if not _is_file(word)}
    if not request.empty and not named & {"naive", "best", "fastest"}:
        raise InvalidInput("OPERATOR: A and B say themselves of which they are; leave it out")
    if records is not None and not named - {"naive"}:
        raise InvalidInput("--records: neither A nor B is looked for in a file; leave it out")
    if not named & {"best", "fastest"}:
        refuse_unread(("any_toolchain",), "neither A nor B is best or fastest; leave it out")
    if "best" not in named:
        refuse_unread(CHOICE, "it says which schedule is the best, and neither A nor B is; leave it out")


def _told(word: str, rule: Rule) -> str:
    return word if word != "best" or _is_file(word) else f"best by {rule.objective}"


def _is_file(word: str) -> bool:
    return word != "naive" and (word.endswith(".json") or Path(word).is_file())


def _schedule(
    word: str, request: Request, records: Path | None, device: Device, rule: Rule, any_toolchain: bool
) -> Schedule:
    """The schedule that a word on the command line stands for."""
    from ekc.devices.recording import RecordedDevice
    from ekc.search.records.named import named, named_in_recording
    from ekc.search.space.naive import naive

    if word == "naive":
        if request.empty:
            raise InvalidInput("naive: name the operator after A and B, e.g. matmul 512 512 512")
        return naive(request.operator())
    if _is_file(word):
        return read_schedule(Path(word), "")
    op = None if request.empty else request.operator()
    if isinstance(device, RecordedDevice):
        return named_in_recording(word, device, op, rule)
    if records is None:
        raise InvalidInput(f"{word!r} is no schedule file (.json); to name a schedule on file, add --records")
    return named(word, records, device, op, rule, any_toolchain)


def _text(found: Explanation, one: Schedule, words: tuple[str, str]) -> str:
    from ekc.search.summary import figure, unit_of
    from ekc.search.text_table import text_table

    energies = (found.a.energy_j, found.b.energy_j)
    scale, unit = unit_of(energies, "J")
    seconds, unit_s = unit_of((found.a.latency_s, found.b.latency_s), "s")
    total = found.difference_j
    rows = [
        (
            line.cause,
            _count(line.count_a, line.unit),
            _count(line.count_b, line.unit),
            line.unit,
            figure(line.energy_a_j, scale),
            figure(line.energy_b_j, scale),
            _signed(line.difference_j, scale),
        )
        for line in found.lines
        if line.energy_a_j or line.energy_b_j
    ]
    sums = ("energy", "", "", "", *(figure(e, scale) for e in energies), _signed(total, scale))
    clocks = ("clock", figure(found.a.clock_mhz), figure(found.b.clock_mhz), "MHz", "", "", "")
    times = (
        "latency",
        figure(found.a.latency_s, seconds),
        figure(found.b.latency_s, seconds),
        unit_s,
        "",
        "",
        "",
    )
    title = (
        f"{str(one.op).splitlines()[0]} on {found.device}: {words[1]} (B) against {words[0]} (A)\n"
        "Simulated: the device's own account of its energy, the board warm. Nothing ran on a GPU.\n"
    )
    headers = ("cause", "A", "B", "", f"A [{unit}]", f"B [{unit}]", f"B - A [{unit}]")
    return text_table(headers, [*rows, sums, times, clocks], title)


def _count(value: float, unit: str) -> str:
    """Counts in thousands, millions and so on; seconds are in the row of latencies."""
    if not unit or unit == "s":
        return ""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def _signed(value: float, scale: float) -> str:
    from ekc.search.summary import figure

    return f"{'-' if value < 0 else '+' if value else ''}{figure(abs(value), scale)}"
