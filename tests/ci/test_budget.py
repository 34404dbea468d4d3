"""The check of the size of the code: a package over its budget is named with both figures."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def budget() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_budget", ROOT / ".ci" / "check_budget.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_sizes_are_statements_files_and_lines(budget: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "ekc/one.py", '"""Text."""\nx = 1\n')
    write(tmp_path, "ekc/ir/two.py", 'def f():\n    """Text."""\n    # A comment.\n    return 1\n')
    write(tmp_path, "ekc/ir/deep/three.py", "y = 2; z = 3\n")
    write(tmp_path, "ekc/ir/texts/four.j2", "a\nb\n")
    write(tmp_path, "benchmarks/five.py", "import ast\n")
    sizes = budget.measure_sizes(tmp_path)
    assert sizes["statements"] == {"ekc": 1, "ekc/ir": 4, "benchmarks": 1}
    assert sizes["files"] == {"ekc": 3, "benchmarks": 1}
    assert sizes["lines"] == {"ekc/ir": 2}


def test_package_over_its_budget_is_named(budget: ModuleType) -> None:
    text = budget.format_budget(
        {"statements": Counter({"ekc/ir": 10}), "files": Counter(ekc=2), "lines": Counter()}
    )
    allowed = budget.read_budget(text)
    assert budget.list_problems(allowed, allowed) == []
    grown = {"statements": Counter({"ekc/ir": 12}), "files": Counter(ekc=2), "lines": Counter({"ekc/new": 3})}
    assert budget.list_problems(grown, allowed) == [
        "ekc/ir: 12 statements, 2 more than its budget in budget.toml",
        "ekc/new: 3 lines, 3 more than its budget in budget.toml",
    ]


def test_all_packages_together_have_a_limit(budget: ModuleType) -> None:
    most = {"statements": Counter({"ekc/ir": budget.MAX_STATEMENTS}), "files": Counter(), "lines": Counter()}
    assert budget.list_problems(most, most) == []
    more = {
        "statements": Counter({"ekc/ir": budget.MAX_STATEMENTS, "ekc": 1}),
        "files": Counter(),
        "lines": Counter(),
    }
    assert budget.list_problems(more, more) == ["67711 statements in all, at most 67710"]
