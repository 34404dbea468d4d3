"""The parts that all benchmark scripts share: options, version line, verdict, JSON.

A script has a function `measure(arguments) -> result` and ends in

    main = make_main(__doc__, measure, BAR, options={"--trials": {"type": int, "default": 64}})

    if __name__ == "__main__":
        raise SystemExit(main())

An option has the arguments of `argparse.ArgumentParser.add_argument`. The result holds "lines", one for each
row of the table. A line that a bar judges holds "pass". `format_lines` makes the table, of columns that each
name a figure of the lines.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ekc
from ekc.errors import EkcError, InvalidInput
from ekc.processes.pool import count_cores
from ekc.tables import format_table

Arguments = argparse.Namespace
"""Options of a script, as attributes."""
WIDE_TABLE = 220
"""Width in characters of the tables of benchmarks, which are for wide terminals and files."""
Option = Mapping[str, Any]
ONLY: Option = {"metavar": "TEXT", "default": "", "help": "operators with this in their name"}
"""The option that selects operators by a part of their name."""
DATA: Option = {"type": Path, "required": True, "help": "the folder of the recordings"}
"""The option that names the folder of recordings."""


class Column(NamedTuple):
    """A column of a table."""

    header: str
    key: str
    """Key of its figure in a line. "pass" is the verdict."""
    form: str | Callable[[Any], str] = ""
    """Format specification of the figure, or a function of it. Empty: the figure as it is."""
    factor: float = 1
    """Factor on a figure with a format: 1e6 shows seconds as microseconds."""


def format_lines(
    columns: Sequence[Column], lines: Iterable[Mapping[str, Any]], title: str = "", label_count: int = 1
) -> str:
    """Format the table of some lines. A figure that is None, not a number or not in the line is "-"."""
    rows = [[format_figure(line, column) for column in columns] for line in lines]
    return format_table([c.header for c in columns], rows, title, label_count, WIDE_TABLE)


def format_figure(line: Mapping[str, Any], column: Column) -> str:
    """Format one figure of a line, or both ends of an interval."""
    if callable(column.form):
        return column.form(line.get(column.key))
    if column.key == "pass":
        return format_verdict(line)
    value = line.get(column.key)
    if value is None or value != value:
        return "-"
    if not column.form:
        return str(value)
    ends = value if isinstance(value, (list, tuple)) else (value,)
    return " to ".join(format(end * column.factor, column.form) for end in ends)


def make_main(
    doc: str | None,
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    bar: Mapping[str, Any] | None = None,
    options: Mapping[str, Option] | None = None,
    seed: int = 0,
) -> Callable[..., int]:
    """Make the `main` of a script: it parses the options, measures, prints the verdict and writes the JSON.

    `main(words=None)` returns 1 where the bar is missed, else 0. The JSON holds the result, `bar` and `pass`;
    without a bar both are null. A result may hold its own "bar" and "pass". `seed`: the default of `--seed`.
    """

    shared: dict[str, Option] = {
        "--json": {"type": Path, "metavar": "FILE", "help": "write the results there"},
        "--seed": {"type": int, "default": seed, "help": "first random seed, default %(default)s"},
    }

    def main(words: Sequence[str] | None = None) -> int:
        parser = make_parser(doc, shared | (options or {}))
        arguments = parser.parse_args(words)
        print(describe_versions(), flush=True)
        try:
            result = {"bar": bar} | measure(arguments)
        except EkcError as problem:
            parser.error(str(problem))
        result.setdefault("pass", judge_lines(result.get("lines", ())))
        print({True: "pass", False: "FAIL", None: "no bar here"}[result["pass"]])
        if arguments.json:
            arguments.json.write_text(json.dumps(result, indent=1))
        return int(result["pass"] is False)

    return main


def make_parser(
    doc: str | None, options: Mapping[str, Option], program: str | None = None
) -> argparse.ArgumentParser:
    """Make the parser of a script with these options; its help is `doc`."""
    parser = argparse.ArgumentParser(
        prog=program, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, settings in options.items():
        parser.add_argument(name, **settings)
    return parser


@contextmanager
def use_compile_cache(folder: Path | None = None) -> Iterator[Path]:
    """Keep compiled kernels in a folder; without one, in an empty folder that is removed in the end."""
    before = os.environ.get("EKC_CACHE_DIR")
    with tempfile.TemporaryDirectory() as empty:
        os.environ["EKC_CACHE_DIR"] = str(folder or empty)
        try:
            yield folder or Path(empty)
        finally:
            del os.environ["EKC_CACHE_DIR"]
            if before is not None:
                os.environ["EKC_CACHE_DIR"] = before


def describe_versions() -> str:
    """Versions of ekc, Python and NumPy, and the number of cores."""
    versions = f"ekc {ekc.__version__}, Python {platform.python_version()}, NumPy {np.__version__}"
    return f"{versions}, {count_cores()} cores"


def judge_lines(lines: Iterable[Mapping[str, Any]]) -> bool | None:
    """Whether all lines with a verdict pass; None where no line has one."""
    verdicts = [line["pass"] for line in lines if line.get("pass") is not None]
    return all(verdicts) if verdicts else None


def select_names(names: Iterable[str], only: str) -> list[str]:
    """Select the names that contain `only`. Raises `InvalidInput` where there is none."""
    every = list(names)
    selected = [name for name in every if only in name]
    if not selected:
        raise InvalidInput(f"--only: nothing contains {only!r}; there are {', '.join(every)}")
    return selected


def format_verdict(line: Mapping[str, Any]) -> str:
    """The verdict of a line as a cell of the table; empty where no bar judges it."""
    return {True: "pass", False: "FAIL", None: ""}[line.get("pass")]
