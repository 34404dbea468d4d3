#!/usr/bin/env python3
"""Check the shape of ekc: import circles, lengths of files and functions, names of classes and files.

    python .ci/check_structure.py

Imports inside functions and for types count; the lazy exports of `ekc` and `ekc.governor` do not. Exit
status 1 where a limit is passed.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES, MAX_FUNCTION_LINES = 450, 60
TABLES = {"ekc/search/data/defaults.py"}
"""Tables of data, which may be longer than `MAX_FILE_LINES`."""
LAZY_EXPORTS = {"ekc", "ekc.governor"}


def read_modules() -> dict[str, tuple[Path, ast.Module]]:
    """Path and syntax tree of each module of ekc, by its dotted name."""
    paths = sorted((ROOT / "ekc").rglob("*.py"))
    names = [".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for p in paths]
    return {name: (p, ast.parse(p.read_text("utf-8"))) for name, p in zip(names, paths, strict=True)}


def list_imports(tree: ast.Module, modules: set[str]) -> set[str]:
    """Modules of ekc that a module imports, anywhere in its text."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in modules else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & modules


def list_problems(modules: dict[str, tuple[Path, ast.Module]]) -> list[str]:
    """One line for each limit that is passed."""
    problems, classes = [], defaultdict(set)
    graph = {
        name: set() if name in LAZY_EXPORTS else list_imports(tree, set(modules)) - {name}
        for name, (_, tree) in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        problems.append(f"import circle: {' -> '.join(circle.args[1])}")
    for name, (path, tree) in modules.items():
        file, lines = str(path.relative_to(ROOT)), len(path.read_text("utf-8").splitlines())
        if lines > MAX_FILE_LINES and file not in TABLES:
            problems.append(f"{file}: {lines} lines, at most {MAX_FILE_LINES}")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES:
                problems.append(f"{file}: {node.name} has more than {MAX_FUNCTION_LINES} lines")
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].add(name.rpartition(".")[0])
    problems += [f"class {n} in {', '.join(sorted(p))}" for n, p in sorted(classes.items()) if len(p) > 1]
    return problems


def main() -> int:
    """Print the problems, and the file names that occur more than once."""
    modules = read_modules()
    problems = list_problems(modules)
    files = defaultdict(int)
    for path, _ in modules.values():
        files[path.name] += path.name != "__init__.py"
    repeated = sorted(name for name, count in files.items() if count > 1)
    for problem in problems:
        print(problem)
    print(f"{len(modules)} files, {len(problems)} problems")
    print(f"{len(repeated)} file names repeat: {', '.join(repeated)}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
