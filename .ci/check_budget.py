#!/usr/bin/env python3
"""Check the size of ekc and its benchmarks against .ci/budget.toml, package by package.

    python .ci/check_budget.py            # exit status 1 where a package is over its budget
    python .ci/check_budget.py --lower    # write today's sizes, where they are lower

Size is counted in statements of Python (`ast`), so comments, docstrings and long lines do not count, and
in lines of templates, C++ and CUDA text. A budget falls with the code. It rises only by hand, in a commit of
its own that says for what, and what was deleted elsewhere. All statements together are at most
`MAX_STATEMENTS`.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUDGET = Path(__file__).with_name("budget.toml")
HEADER = """\
# Sizes that .ci/check_budget.py checks; it says how they are counted. `--lower` writes smaller ones.
# A number rises only by hand, in a commit of its own that says for what, and what was deleted elsewhere.
"""
MAX_STATEMENTS = 67_710
"""5 % above the statements of commit 946a4c0c, from which on they are counted. It is not raised."""
TEXTS = (".j2", ".cpp", ".h", ".hpp", ".cu", ".cuh")
Sizes = dict[str, Counter[str]]


def measure_sizes(root: Path) -> Sizes:
    """Sizes by unit: "statements" and "files" of Python, "lines" of other text, each by package."""
    sizes: Sizes = {"statements": Counter(), "files": Counter(), "lines": Counter()}
    for path in sorted(p for top in ("ekc", "benchmarks") for p in (root / top).rglob("*") if p.is_file()):
        package = _name_package(path.relative_to(root))
        if path.suffix == ".py":
            tree = ast.parse(path.read_text("utf-8"))
            # A docstring is no statement of the program.
            count = sum(isinstance(node, ast.stmt) and not _is_text(node) for node in ast.walk(tree))
            sizes["statements"][package] += count
            sizes["files"][path.relative_to(root).parts[0]] += 1
        elif path.suffix in TEXTS:
            sizes["lines"][package] += len(path.read_text("utf-8").splitlines())
    return sizes


def _name_package(path: Path) -> str:
    """The folder below `ekc` or `benchmarks` that a file is in; those themselves for their own files."""
    return "/".join(path.parts[: min(2, len(path.parts) - 1)])


def _is_text(node: ast.stmt) -> bool:
    """Whether a statement is a string alone."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def read_budget(text: str) -> Sizes:
    """The budget by unit and package."""
    return {unit: Counter(sizes) for unit, sizes in tomllib.loads(text).items()}


def list_problems(sizes: Sizes, budget: Sizes) -> list[str]:
    """One line for each package that is over its budget, and one where all are over `MAX_STATEMENTS`."""
    total = sizes["statements"].total()
    over = [f"{total} statements in all, at most {MAX_STATEMENTS}"] if total > MAX_STATEMENTS else []
    return over + [
        f"{package}: {size} {unit}, {size - budget[unit][package]} more than its budget in {BUDGET.name}"
        for unit, by_package in sizes.items()
        for package, size in by_package.items()
        if size > budget[unit][package]
    ]


def format_budget(sizes: Sizes) -> str:
    """The text of the file."""
    parts = [HEADER.rstrip()]
    for unit, by_package in sizes.items():
        parts += ["", f"[{unit}]", *(f'"{name}" = {size}' for name, size in sorted(by_package.items()))]
    return "\n".join(parts) + "\n"


def main() -> int:
    """Print sizes and problems; with --lower, write smaller sizes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lower", action="store_true", help="write today's sizes, where they are lower")
    arguments = parser.parse_args()
    sizes, budget = measure_sizes(ROOT), read_budget(BUDGET.read_text())
    problems = list_problems(sizes, budget)
    print("\n".join(problems))
    print(", ".join(f"{sum(by_package.values())} {unit}" for unit, by_package in sizes.items()))
    if arguments.lower and not problems:
        BUDGET.write_text(format_budget(sizes))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
