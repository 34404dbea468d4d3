"""Public names of a package that are imported at their first use, from the list in its `__init__.pyi`."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ekc.errors import InvalidInput
from ekc.forks import hold_forks


class OptionalPackage:
    """A package that ekc does without: `onnx.helper` imports it first, with the parts that are read. Raises
    `InvalidInput` with the text `missing` where it cannot be imported."""

    def __init__(self, name: str, *parts: str, missing: str) -> None:
        self._modules, self._missing = (name, *(f"{name}.{part}" for part in parts)), missing

    def __getattr__(self, name: str) -> Any:
        try:
            package, *_ = map(importlib.import_module, self._modules)
        except ImportError as problem:
            raise InvalidInput(self._missing) from problem
        return getattr(package, name)


def list_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, for its `__init__.py`.

    Each line of `__init__.pyi` is a name: "from ekc.ir.expr import exp as exp". Type checkers read it too. A
    module without "as" can be reached, and is not among the public names.
    """
    stub = Path(str(sys.modules[package].__file__)).with_suffix(".pyi")
    imports = [
        (str(line.module), name)
        for line in ast.parse(stub.read_text("utf-8")).body
        if isinstance(line, ast.ImportFrom)
        for name in line.names
    ]
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
