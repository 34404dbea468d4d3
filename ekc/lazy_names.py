"""Public names of a package that are imported at their first use, from the list in its `__init__.pyi`."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ekc.forks import hold_forks


def list_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, for its `__init__.py`.

    Each line of `__init__.pyi` is a name: "from ekc.ir.expr import exp as exp". Type checkers read it too. A
    module without "as" can be reached, and is not among the public names.
    """
    stub = Path(str(sys.modules[package].__file__)).with_suffix(".pyi")
    lines = ast.parse(stub.read_text("utf-8")).body
    froms = [line for line in lines if isinstance(line, ast.ImportFrom)]
    imports = [(str(line.module), name) for line in froms for name in line.names]
    homes = {name.name: module for module, name in imports}
    public = sorted(name.name for _, name in imports if name.asname)

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # A process forked by another thread in the middle of the import would wait for its end for ever.
        with hold_forks():
            if homes[name] == package:
                return importlib.import_module(f"{package}.{name}")
            return getattr(importlib.import_module(homes[name]), name)

    return find, lambda: public, public
