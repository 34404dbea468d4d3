"""Output of the commands: text, JSON, log lines, folders, exit status, a launch's report."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ekc.errors import InvalidInput
from ekc.tables import count_nouns, format_figure, format_rounded, format_table

if TYPE_CHECKING:
    from ekc.codegen.library.kernels import Bundle
    from ekc.emulator import Counters
    from ekc.runtime.verify import LaunchCheck
    from ekc.search.tuning_result import TuningResult
    from ekc.search.whole_model.model_result import ModelResult


DEFAULT_FOLDER = Path("ekc-out")
"""Folder of the folders that libraries are written into by default."""

FILE = click.Path(path_type=Path)
json_option: Callable[[Any], Any] = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of text."
)
out_option: Callable[[Any], Any] = click.option(
    "--out", type=FILE, help=f"Folder for the C++ library of the kernel. [default: {DEFAULT_FOLDER}/NAME]"
)
cubin_option: Callable[[Any], Any] = click.option(
    "--cubin", is_flag=True, help="Embed machine code: the library is built without nvcc and CUDA headers."
)


def print_result(result: str | Mapping[str, Any]) -> None:
    """Print a text, or an object as JSON, on standard output."""
    click.echo(result if isinstance(result, str) else json.dumps(result))


def log(text: str) -> None:
    """Print a line on standard error. A closed terminal or a full disk does not end the command."""
    try:
        click.echo(text, err=True)
    except OSError:
        # The text in its buffer would fail again at exit, and change the exit status.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as long as the process lives


def open_missing_streams() -> None:
    """Open /dev/null for each of stdin, stdout and stderr that this process was started without (`2>&-`)."""
    while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(lowest)
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def ensure_writable(folder: Path) -> Path:
    """Create a folder, and check that a file can be written into it, before the work whose result goes there;
    returns the folder. Raises `InvalidInput`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InvalidInput(f"cannot write into {folder} ({reason}); choose another folder") from problem


def write_text_file(option: str, path: Path, text: str) -> None:
    """Write a text into a file of an existing folder. Raises `InvalidInput`, which names the option."""
    try:
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InvalidInput(
            f"{option}: cannot write {path} ({reason}); name a file in a folder that exists"
        ) from None


def prepare_library_folder(out: Path | None, name: str) -> Path:
    """Create the folder of a library, before the work whose result goes there; returns it. Raises
    `InvalidInput` where it cannot be written, or holds a library of another name."""
    from ekc.codegen.library.write import check_folder

    folder = ensure_writable(DEFAULT_FOLDER / name if out is None else out)
    check_folder(folder, name)
    return folder


@contextmanager
def log_lost_kernels(folder: Path, name: str) -> Iterator[None]:
    """Write a library within the block; logs a line if it lacks kernels that the folder had before."""
    from ekc.codegen.library.write import describe_lost, read_contents

    before = read_contents(folder, name)
    yield
    if line := describe_lost(folder, before, read_contents(folder, name)):
        log(f"ekc: {line}")


def format_library(folder: Path, name: str, paths: tuple[Path, ...]) -> str:
    """A line for each of the files of a library that a reader opens first, and one for the rest."""
    shown = [p for p in paths if p.parent.name == "src" and p.name.startswith(f"{name}_sm_")]
    shown = [*shown[:4], folder / "include" / "ekc" / f"{name}.hpp", folder / "CMakeLists.txt"]
    return "\n".join([*(f"wrote {path}" for path in shown), f"and {len(paths) - len(shown)} more files"])


def format_functions(bundle: Bundle) -> str:
    """Table of the layers of a library: the C++ function of each, and its types; "" without layers."""

    rows = [(layer, f"ekc::{bundle.name}::{f.name}", f.types) for f in bundle.functions for layer in f.layers]
    return format_table(("layer", "C++ function", "types"), rows, label_count=3) + "\n\n" if rows else ""


def describe_functions(bundle: Bundle) -> list[dict[str, Any]]:
    """JSON objects of the functions of a library."""
    return [
        {
            "name": f.name,
            "layers": list(f.layers),
            "types": f.types,
            "kernels": [k.symbol for s in f.shapes for k in s.kernels],
        }
        for f in bundle.functions
    ]


_COUNT_SUFFIXES = ((1e9, " G"), (1e6, " M"), (1e3, " k"))


def format_count(value: float) -> str:
    """A count with a decimal prefix: 1234 -> 1.23 k."""

    size, suffix = next(((s, x) for s, x in _COUNT_SUFFIXES if value >= s), (1.0, ""))
    return f"{format_rounded(value / size, 3)}{suffix}"


def format_signed(value: float, scale: float) -> str:
    """A figure with its sign, also if it is positive; without one, if it rounds to 0."""

    size = format_figure(abs(value), scale)
    sign = "-" if value < 0 else "+"
    return f"{sign}{size}" if float(size) else size


def describe_execution(checked: LaunchCheck) -> dict[str, Any]:
    """JSON object of an executed launch: blocks that ran, errors, findings, and counts over these blocks."""
    report = checked.report
    counters = asdict(report.counters)
    # One entry for each PTX line is too much to read; `_sum_accesses` has them by opcode.
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
    """Name -> text of each fact of `describe_execution`; counts are over the blocks that ran."""
    from ekc.ir.comparison.compare import INT32_WRAP_NOTE

    counters = facts["counters"]
    classes = sorted(counters["warp_instructions"].items(), key=lambda item: -item[1])
    return {
        "executed": f"{facts['blocks']} of {facts['total_blocks']} blocks, on the CPU",
        "result": f"{'agrees' if facts['right'] else 'DOES NOT AGREE'} with the reference: "
        f"max error {facts['max_error']:.3g}, tolerance {facts['tolerance']:.3g}"
        + (f"; {INT32_WRAP_NOTE}" if facts["wrapped"] else ""),
        "sanitizer": count_nouns(len(facts["findings"]), "finding") if facts["findings"] else "no findings",
        "sectors": f"{counters['global_sectors']} in {counters['global_requests']} global requests",
        "wavefronts": _format_wavefronts(counters),
        "barriers": f"{counters['barriers']}; {counters['divergent_branches']} branches diverged",
        "issued": ", ".join(f"{kind} {count}" for kind, count in classes if count),
    }


def format_accesses(facts: dict[str, Any]) -> str:
    """Table of memory accesses: requests per block; sectors, wavefronts, bank conflicts per request."""

    headers = ("memory access", "in the PTX", "requests a block", "sectors", "wavefronts", "conflicts")
    return format_table(
        headers, [_format_access(a, facts["blocks"]) for a in facts["accesses"]], label_count=1
    )


def _format_access(access: dict[str, Any], blocks: int) -> tuple[str, ...]:
    """A row of that table."""

    requests, on_chip = access["requests"], not access["sectors"]
    return (
        access["opcode"],
        str(access["places"]),
        format_rounded(requests / blocks, 6),
        "" if on_chip else f"{access['sectors'] / requests:.1f}",
        f"{access['wavefronts'] / requests:.1f}" if on_chip else "",
        f"{access['conflicts'] / requests:.1f}" if on_chip else "",
    )


def _sum_accesses(counters: Counters) -> list[dict[str, Any]]:
    """Counts of the executed memory instructions, summed by opcode, in the order of the PTX text."""
    found: dict[str, dict[str, Any]] = {}
    counted = ("requests", "sectors", "wavefronts", "conflicts", "bytes")
    for site in counters.instructions.values():
        if not site.requests:
            continue
        # A guard such as "@%p1" may precede the opcode.
        opcode = next(word for word in site.instruction.split() if not word.startswith("@"))
        total = found.setdefault(opcode, {"opcode": opcode, "places": 0} | dict.fromkeys(counted, 0))
        total["places"] += 1
        for name in counted:
            total[name] += getattr(site, name)
    return list(found.values())


def _format_wavefronts(counters: dict[str, Any]) -> str:
    if not counters["shared_requests"]:
        return "none: no shared memory"
    passes = f"{counters['shared_wavefronts']} in {counters['shared_requests']} shared requests"
    return f"{passes}, {counters['bank_conflicts']} of them bank conflicts"


EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 plus the number of SIGINT, as in shells."""


def derive_exit_status(result: TuningResult | ModelResult) -> int:
    """Exit status of a tuning run: `EXIT_INTERRUPTED` if Ctrl-C ended it, although it has a best so far."""
    from ekc.search.data.result import INTERRUPTED

    return EXIT_INTERRUPTED if result.stopped == INTERRUPTED else 0
