#!/usr/bin/env python3
"""Check that ekc holds no module that only tests, or only one script of benchmarks/ or examples/, use.

    python .ci/check_reachability.py

Entry points are the public names of `ekc`, the command line, and what pyproject.toml offers to other
programs. From there the check follows every import, and every text that is the name of a module (lazy
exports, child processes). A module that is not reached belongs to the one script or to the tests that use it.
Exit status 1 where there is one.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USER_FOLDERS = ("benchmarks", "examples")


def list_modules() -> dict[str, Path]:
    """File of each module of ekc, by its dotted name."""
    paths = sorted((ROOT / "ekc").rglob("*.py"))
    names = [".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for p in paths]
    return dict(zip(names, paths, strict=True))


def list_entry_points() -> set[str]:
    """Modules that users and other programs import or run."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    offered = [project["scripts"], *project["entry-points"].values()]
    return {"ekc", "ekc.__main__"} | {text.partition(":")[0] for one in offered for text in one.values()}


def list_used_modules(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """Modules that a file imports or names in a text. Public names of a package are in its `.pyi` file."""
    stub = path.with_suffix(".pyi")
    texts = [path.read_text("utf-8"), *([stub.read_text("utf-8")] if stub.exists() else [])]
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        yield from (name for name in names if name in modules)


def find_reached(modules: dict[str, Path]) -> set[str]:
    """Modules that the entry points reach, and the packages that these are in."""
    reached, waiting = set(), sorted(list_entry_points())
    while waiting:
        name = waiting.pop()
        if name in modules and name not in reached:
            reached.add(name)
            waiting += [*list_used_modules(modules[name], modules), name.rpartition(".")[0]]
    return reached


def main() -> int:
    """Print each module that is not reached, with the scripts that use it."""
    modules = list_modules()
    lost = sorted(modules.keys() - find_reached(modules))
    scripts = [p for folder in USER_FOLDERS for p in sorted((ROOT / folder).rglob("*.py"))]
    used = {script: set(list_used_modules(script, modules)) for script in scripts}
    wrong = 0
    for name in lost:
        users = [str(script.relative_to(ROOT)) for script in scripts if name in used[script]]
        if len(users) < 2:
            wrong += 1
            print(f"{name}: used by {users[0] if users else 'tests only'}; move it there, or delete it")
    print(f"{len(modules)} modules, {wrong} that nothing of ekc reaches")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
