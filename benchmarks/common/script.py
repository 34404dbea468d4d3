"""The parts that all benchmark scripts share: options, version line, verdict, JSON.

A script has a function `measure(arguments) -> result` and ends in

    main = make_main(__doc__, measure, BAR, add_options)

The result holds "lines", one for each row of the table. A line that a bar judges holds "pass".
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ekc
from ekc.errors import EkcError, InvalidInput
from ekc.processes.pool import count_cores

WIDE_TABLE = 220
"""Width in characters of the tables of benchmarks, which are for wide terminals and files."""


def make_main(
    doc: str | None,
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    bar: Mapping[str, Any] | None = None,
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> Callable[..., int]:
    """Make the `main` of a script: it parses the options, measures, prints the verdict and writes the JSON.

    `main(words=None)` returns 1 where the bar is missed, else 0. The JSON holds the result, `bar` and `pass`;
    without a bar both are null. A result may hold its own "bar" and "pass".
    """

    def main(words: Sequence[str] | None = None) -> int:
        parser = argparse.ArgumentParser(
            description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
        parser.add_argument("--seed", type=int, default=0, help="first random seed, default %(default)s")
        add_options(parser)
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
