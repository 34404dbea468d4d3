"""The README: every command and every Python block works as written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from ekc.cli import main
from ekc.cli.arguments import OPERATOR_KINDS
from ekc.devices.simulated import specs
from tests.docs.blocks import ROOT, blocks, printed, read_commands

PAGE = (ROOT / "README.md").read_text()
BLOCKS = blocks(PAGE)
INSTALL_AND_TUNE, INSTALL_AND_TEST, *SHELL = read_commands(PAGE, "sh")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_first_command_tunes_and_leaves_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    install, _, tune = INSTALL_AND_TUNE.rpartition(" && .venv/bin/ekc ")
    assert install == "python -m venv .venv && .venv/bin/pip install -q ."
    words = shlex.split(tune)
    words[words.index("--trials") + 1] = "8"
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "8/8" in err
    assert "a100 (simulated)" in out
    assert Path("build/matmul.cu").is_file()


def test_second_command_is_what_ci_runs() -> None:
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    assert INSTALL_AND_TEST.startswith("python -m venv .venv && .venv/bin/pip install")
    assert INSTALL_AND_TEST in ci
    assert all("ruff" not in line and "mypy" not in line for line in ci[: ci.index(INSTALL_AND_TEST)])


def test_every_shell_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(SHELL) > 5
    for line in SHELL:
        program, *words = shlex.split(line)
        assert program == "ekc"
        status = main(words)
        out, err = capsys.readouterr()
        assert status == 0, (line, err)
        assert ("\nwarm start " in out) is ("--warm-start" in words), line
    assert any("--warm-start" in line for line in SHELL)


def test_every_python_block() -> None:
    """The CMake block names what the last of them exports."""
    namespace: dict[str, Any] = {}
    out = "".join(printed(block, namespace) for block in BLOCKS if block.language == "python")
    assert "a100 (simulated)" in out
    assert "__global__" in out
    assert Path("build/matmul.h").is_file()
    (cmake,) = (b for b in BLOCKS if b.language == "cmake")
    assert "include(build/ekc.cmake)\nadd_ekc_library(" in cmake.text
    assert "function(add_ekc_library)" in Path("build/ekc.cmake").read_text()


def test_every_operator_and_device_is_named_and_no_other() -> None:
    (table,) = re.findall(r"^Operators, .*\n\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(OPERATOR_KINDS)
    (devices,) = re.findall(r"The simulated devices are ([^.]+)\.", PAGE)
    assert sorted(re.findall(r"`([\w-]+)`", devices)) == sorted(specs.list_names())


def test_every_page_and_folder_that_is_named_exists() -> None:
    links = re.findall(r"\]\(([^):#]+)(?:#[^)]*)?\)", PAGE)
    paths = re.findall(r"(?<![\w/.-])((?:ekc|docs|benchmarks|examples|tests)/[\w./-]*)", PAGE)
    assert min(map(len, (links, paths))) >= 10
    assert "LICENSE" in links
    for name in {*links, *(path.rstrip(".") for path in paths)}:
        assert (ROOT / name).exists(), name
