"""The package `ekc`: a cheap import, and its list of public names."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

import ekc

LIMIT_S = 0.4
HEAVY = {"xgboost", "jinja2", "cuda", "pynvml", "rich", "click"}


def _measure_cpu_s(code: str) -> float:
    """CPU seconds of the quickest of three runs, which other processes of a busy machine affect little."""
    took = []
    for _ in range(3):
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(ended.ru_utime - began.ru_utime + ended.ru_stime - began.ru_stime)
    return min(took)


def test_import_is_quick() -> None:
    assert _measure_cpu_s("import ekc") - _measure_cpu_s("pass") < LIMIT_S


def test_import_loads_nothing_heavy() -> None:
    code = "import sys, ekc; ekc.matmul(4, 4, 4); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert not HEAVY & set(loaded)


@pytest.mark.parametrize("package", [ekc, ekc.models, ekc.governor], ids=lambda package: package.__name__)
def test_public_names_exist(package: ModuleType) -> None:
    assert sorted(package.__all__) == package.__all__
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert dir(package) == package.__all__
    with pytest.raises(AttributeError, match=rf"module '{package.__name__}' has no attribute 'matmull'"):
        _ = package.matmull


def test_version_is_in_one_place() -> None:
    assert metadata.version("ekc") == ekc.__version__


def _list_format_specs() -> Iterator[tuple[str, str]]:
    """(place, text) of each format of an f-string in ekc, without the parts that are filled in."""
    for path in sorted(Path(ekc.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FormattedValue) and isinstance(node.format_spec, ast.JoinedStr):
                parts = node.format_spec.values
                text = "".join(str(x.value) for x in parts if isinstance(x, ast.Constant))
                yield f"{path.name}:{node.lineno}", text


def test_signed_figures_never_print_as_negative_zero() -> None:
    """`z` in a format turns -0.0 into 0.0, after rounding."""
    signed = [(place, text) for place, text in _list_format_specs() if "+" in text]
    assert len(signed) > 10
    assert not [(place, text) for place, text in signed if "z" not in text]
