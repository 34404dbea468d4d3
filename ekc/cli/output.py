"""What commands print, and where they write.

What `ekc run` and `ekc check` tell of a launch that was executed.

How a command ends, as a number for the shell. 0: done; 1: a check said no.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ekc.errors import InvalidInput

if TYPE_CHECKING:
    from ekc.emulator import Counters
    from ekc.runtime.verify import LaunchCheck
    from ekc.search.tuning_result import TuningResult


DEFAULT_FOLDER = "ekc-out"
"""Where kernels are written unless told otherwise."""

json_option: Callable[[Any], Any] = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of text."
)


def print_text(text: str) -> None:
    """A result, on stdout."""
    click.echo(text)


def log(text: str) -> None:
    """Anything else, on stderr. A terminal that is gone, or a full disk, is no reason to end."""
    try:
        click.echo(text, err=True)
    except OSError:
        # Text in its buffer would fail again when Python ends, and change the exit status.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as long as the process lives


def open_missing_streams() -> None:
    """Where we were started without stdin, stdout or stderr (`2>&-`): nothing is read there, and what is
    written is lost. A command that we start is without them too."""
    while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(lowest)
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def join_lines(text: str) -> str:
    """A text without its line ends."""
    return " ".join(text.split())


def print_json(value: dict[str, Any]) -> None:
    """One JSON object, on stdout."""
    click.echo(json.dumps(value))


def ensure_writable(folder: Path) -> Path:
    """The folder, made if need be, once it is known that a file can be written into it.

    Asked before any work whose result would go there. Raises `InvalidInput`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InvalidInput(f"cannot write into {folder} ({reason}); choose another folder") from problem


def format_written(paths: tuple[Path, ...]) -> str:
    """The files written, one a line."""
    return "\n".join(f"wrote {path}" for path in paths)


def describe_execution(checked: LaunchCheck) -> dict[str, Any]:
    """As JSON: how much of the grid ran, how right it was, findings, and counts over the blocks that ran."""
    report = checked.report
    counters = asdict(report.counters)
    # One entry for each PTX line is too much to read; they are told by opcode.
    del counters["instructions"]
    return {
        "name": report.kernel,
        "blocks": report.blocks_run,
        "total_blocks": report.total_blocks,
        "max_error": checked.agreement.max_error,
        "tolerance": checked.agreement.tolerance,
        "right": checked.agreement.ok,
        "wrapped": checked.agreement.wrapped,
        "findings": [asdict(f) | {"text": str(f)} for f in report.findings],
        "notes": list(report.notes),
        "counters": counters,
        "accesses": _sum_accesses(report.counters),
    }


def format_counts(facts: dict[str, Any]) -> dict[str, str]:
    """The same in words, a line each; counts are of the blocks that ran."""
    from ekc.ir.interpreter.compare import INT32_WRAP_NOTE

    counters = facts["counters"]
    classes = sorted(counters["warp_instructions"].items(), key=lambda item: -item[1])
    return {
        "executed": f"{facts['blocks']} of {facts['total_blocks']} blocks, on the CPU",
        "result": f"{'agrees' if facts['right'] else 'DOES NOT AGREE'} with the reference: "
        f"max error {facts['max_error']:.3g}, tolerance {facts['tolerance']:.3g}"
        + (f"; {INT32_WRAP_NOTE}" if facts["wrapped"] else ""),
        "sanitizer": f"{len(facts['findings']) or 'no'} findings",
        "sectors": f"{counters['global_sectors']} in {counters['global_requests']} global requests",
        "wavefronts": _format_wavefronts(counters),
        "barriers": f"{counters['barriers']}; {counters['divergent_branches']} branches diverged",
        "issued": ", ".join(f"{kind} {count}" for kind, count in classes if count),
    }


def format_accesses(facts: dict[str, Any]) -> str:
    """One row for each kind of memory access that ran: how often, and how a warp's addresses fit together."""
    from ekc.tables import format_table

    headers = ("memory access", "in the PTX", "requests a block", "sectors", "wavefronts", "conflicts")
    return format_table(
        headers, [_format_access(a, facts["blocks"]) for a in facts["accesses"]], label_count=1
    )


def _format_access(access: dict[str, Any], blocks: int) -> tuple[str, ...]:
    requests, on_chip = access["requests"], not access["sectors"]
    return (
        access["opcode"],
        str(access["places"]),
        f"{requests / blocks:.6g}",
        "" if on_chip else f"{access['sectors'] / requests:.1f}",
        f"{access['wavefronts'] / requests:.1f}" if on_chip else "",
        f"{access['conflicts'] / requests:.1f}" if on_chip else "",
    )


def _sum_accesses(counters: Counters) -> list[dict[str, Any]]:
    """Memory instructions that ran, summed over all places of one opcode, in order of the text."""
    found: dict[str, dict[str, Any]] = {}
    counted = ("requests", "sectors", "wavefronts", "conflicts", "bytes")
    for site in counters.instructions.values():
        if not site.requests:
            continue
        # A guard such as "@%p1" may stand before it.
        opcode = next(word for word in site.instruction.split() if not word.startswith("@"))
        one = found.setdefault(opcode, {"opcode": opcode, "places": 0} | dict.fromkeys(counted, 0))
        one["places"] += 1
        for name in counted:
            one[name] += getattr(site, name)
    return list(found.values())


def _format_wavefronts(counters: dict[str, Any]) -> str:
    if not counters["shared_requests"]:
        return "none: no shared memory"
    passes = f"{counters['shared_wavefronts']} in {counters['shared_requests']} shared requests"
    return f"{passes}, {counters['bank_conflicts']} of them bank conflicts"


EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
"""128 and the number of SIGINT, as shells have it."""


def find_exit_status(result: TuningResult) -> int:
    """Of a tuning run: one that Ctrl-C ended has a best so far, and still is not what was asked for."""
    from ekc.search.data import result as told

    return EXIT_INTERRUPTED if result.stopped == told.INTERRUPTED else 0
