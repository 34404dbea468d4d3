"""The README: its two commands are what CI runs, and every page and folder that it names exists.

Its other blocks are executed with the site (docs/conf.py makes it the first page).
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ekc.cli import main
from tests.docs.blocks import ROOT, blocks, read_commands

PAGE = (ROOT / "README.md").read_text()
INSTALL_AND_TUNE, INSTALL_AND_TEST, *SHELL = read_commands(PAGE, "sh")


def test_first_command_tunes_and_leaves_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    install, _, tune = INSTALL_AND_TUNE.rpartition(" && .venv/bin/ekc ")
    assert install == "python -m venv .venv && .venv/bin/pip install -q ."
    words = shlex.split(tune)
    words[words.index("--trials") + 1] = "4"
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "4/4" in err
    assert "a100 (simulated)" in out
    assert Path("build/src/matmul_sm_80.cu").is_file()


def test_output_has_the_lines_of_a_summary() -> None:
    """12 lines: the title, the note on simulation, and the table."""
    (output,) = (block.text for block in blocks(PAGE) if block.language == "text")
    lines = output.splitlines()
    assert len(lines) <= 12
    assert lines[0].startswith("matmul(A[512, 768] float32")
    assert [line.split()[0] for line in lines if line.startswith(("best", "fastest", "naive"))] == [
        *("best", "fastest", "naive")
    ]


def test_second_command_is_what_ci_runs() -> None:
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    assert INSTALL_AND_TEST.startswith("python -m venv .venv && .venv/bin/pip install")
    assert INSTALL_AND_TEST in ci
    assert all("ruff" not in line and "mypy" not in line for line in ci[: ci.index(INSTALL_AND_TEST)])


def test_every_page_and_folder_that_is_named_exists() -> None:
    links = re.findall(r"\]\(([^):#]+)(?:#[^)]*)?\)", PAGE)
    paths = re.findall(r"(?<![\w/.<-])((?:ekc|docs|benchmarks|examples|tests)/[\w./-]*)", PAGE)
    assert min(map(len, (links, paths))) >= 10
    assert "LICENSE" in links
    for name in {*links, *(path.rstrip(".") for path in paths)}:
        assert (ROOT / name).exists(), name
