"""Pages of docs/reference: every public name, step, command, operator, key and column has its entry."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import re
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ekc
from ekc.cli.main import ekc as ekc_command
from ekc.ir.dtypes import DTYPE_NAMES
from ekc.ir.epilogue import EPILOGUE_FUNCTIONS
from ekc.ir.schedule import STEP_CLASSES
from ekc.models.layer_file import OPERATOR_ARGUMENTS
from ekc.models.operator_arguments import OPERATOR_KINDS
from ekc.search.database.rows import CREATE_TABLE
from tests.docs.blocks import ROOT

REFERENCE = ROOT / "docs/reference"
PACKAGES = (
    *(
        "ekc",
        "ekc.codegen",
        "ekc.course",
        "ekc.devices",
        "ekc.devices.nvml",
        "ekc.devices.recording",
        "ekc.emulator",
    ),
    *("ekc.governor", "ekc.ir.operators", "ekc.ir.schedule", "ekc.runtime", "ekc.search"),
)
DIRECTIVE = re.compile(r"^\.\. (?:auto|py:)(?:function|class|exception|data|module):: ([\w.]+)", re.MULTILINE)
"""A directive of an entry, with the name."""


def read_page(name: str) -> str:
    return (REFERENCE / name).read_text()


def list_entries() -> list[str]:
    """Full names of all entries of the Python pages."""
    return [
        name for page in (REFERENCE / "python").glob("*.md") for name in DIRECTIVE.findall(page.read_text())
    ]


def find_object(name: str) -> Any:
    """The module, or the attribute of one, that a full name means."""
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute, None)
    return importlib.import_module(name) if found is None else found


def list_tables(page: str) -> list[str]:
    """Names in code in the first cells of all tables of a page."""
    cells = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_an_entry(package: str) -> None:
    entries = [e for e in list_entries() if not e.startswith("ekc.torch.")]
    objects = [find_object(entry) for entry in entries]
    module = importlib.import_module(package)
    missing = []
    for name in getattr(module, "__all__", []):
        value = getattr(module, name)
        if isinstance(value, ModuleType):
            is_found = any(entry.startswith(f"{value.__name__}.") for entry in entries)
        elif isinstance(value, str):
            is_found = f"{package}.{name}" in entries
        else:
            is_found = any(one is value for one in objects)
        if not is_found:
            missing.append(name)
    assert not missing


def test_no_name_has_two_entries() -> None:
    entries = list_entries()
    assert sorted(set(entries)) == sorted(entries)


def test_python_pages_are_in_the_list_of_pages() -> None:
    index = read_page("python/index.md")
    for page in (REFERENCE / "python").glob("*.md"):
        if page.name != "index.md":
            assert f"]({page.name})" in index
            assert f"\n{page.stem}\n" in index


def test_every_step_has_a_section_with_arguments_and_refusals() -> None:
    sections = dict(
        re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", read_page("steps.md"), re.MULTILINE | re.DOTALL)
    )
    assert set(sections) == set(STEP_CLASSES)
    for kind, step in STEP_CLASSES.items():
        section = sections[kind]
        fields = {f.name for f in dataclasses.fields(step)}
        assert {name.removeprefix("*") for name in list_tables(section)} >= fields, kind
        assert fields == set(inspect.signature(getattr(ekc.Schedule, kind)).parameters) - {"self"}
        assert "print(" in section, kind
        assert "refuse(" in section, kind
    methods = {name for name in vars(ekc.Schedule) if hasattr(ekc.Schedule, name) and name in STEP_CLASSES}
    assert methods == set(STEP_CLASSES)


def test_command_page_takes_every_command() -> None:
    page = read_page("cli.md")
    assert ".. click:: ekc.cli.main:ekc\n   :prog: ekc\n   :nested: full\n" in page
    assert all(command.help for command in ekc_command.commands.values())
    statuses = re.findall(r"^\| `ekc (\w+)", page, re.MULTILINE)
    assert set(statuses) <= set(ekc_command.commands)


def test_options_that_the_command_page_lists_once_are_those_of_an_operator() -> None:
    pytest.importorskip("sphinx")
    found = importlib.util.spec_from_file_location("cli_options", ROOT / "docs/_site/cli_options.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    names = {
        name for command in ("show", "tune") for p in ekc_command.commands[command].params for name in p.opts
    }
    assert names > module._NAMES
    assert {"--m", "--target"}.isdisjoint(module._NAMES)
    assert "--padding" in module._NAMES


def test_operator_page_has_every_operator_type_and_function() -> None:
    page = read_page("operators.md")
    calls = {re.match(r"\w+", name)[0] for name in list_tables(page)}  # type: ignore[index]
    assert not set(OPERATOR_KINDS) - calls
    assert not set(DTYPE_NAMES) - calls
    assert not set(EPILOGUE_FUNCTIONS) - calls


def test_layer_page_has_every_key_of_its_own() -> None:
    keys = set(list_tables(read_page("layer-file.md")))
    assert {"name", "model", "operator", "count", "epilogue", "inputs"} <= keys
    parameters = set(list_tables(read_page("operators.md")))
    page = read_page("operators.md") + read_page("layer-file.md")
    assert not [
        name for name in OPERATOR_ARGUMENTS if name not in parameters and not re.search(rf"\b{name}\b", page)
    ]


def test_record_page_has_every_column() -> None:
    columns = re.findall(r"^    (\w+) (integer|text|real)", CREATE_TABLE, re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)` \| (integer|text|real) \|", read_page("record-schema.md"), re.MULTILINE)
    assert rows == columns


def test_error_page_has_every_exception() -> None:
    errors = {n for n in ekc.__all__ if isinstance(v := getattr(ekc, n), type) and issubclass(v, Exception)}
    assert errors <= set(list_tables(read_page("errors.md")))
    assert {"OverLimit", "UnknownName", "MissingPrecondition"} <= set(list_tables(read_page("errors.md")))


def read_inventory(path: Path) -> bytes:
    """The lines of an inventory below its four lines of header."""
    return zlib.decompress(path.read_bytes().split(b"\n", 4)[4])


def test_inventories_hold_the_names_of_their_table(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    found = importlib.util.spec_from_file_location("inventories", ROOT / "docs/_site/make_inventories.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    for site in module.NAMES:
        kept, new = ROOT / f"docs/_site/inventories/{site}.inv", module.write_inventory(site, tmp_path)
        assert read_inventory(kept) == read_inventory(new), "run docs/_site/make_inventories.py"
