"""`--any-toolchain`: schedules of record files that were measured under other conditions."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

import ekc
from ekc.cli.main import main
from ekc.codegen.generate import describe_toolchain
from tests.search.helpers import tune

OP, SIZE = ekc.matmul(8, 16, 24), "matmul 8 16 24"
COMMANDS = (
    f"best {SIZE}",
    f"export {SIZE} --out o",
    f"run {SIZE}",
    f"show {SIZE}",
    f"check {SIZE}",
    f"explain naive best {SIZE}",
)
commands = pytest.mark.parametrize("command", COMMANDS, ids=lambda line: str(line).split()[0])


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record file made with an older NVRTC."""
    file = tmp_path_factory.mktemp("old") / "old.db"
    tune(OP, trials=2, records=file)
    with sqlite3.connect(file) as connection:
        connection.execute("update trials set nvrtc = '13.0, generator 3'")
    connection.close()
    return file


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@commands
def test_commands_without_any_toolchain_describe_the_file(
    command: str, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--records", str(old), "--target", "a100"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"was made with NVRTC {describe_toolchain()}; it holds " in line
    assert " with NVRTC 13.0, generator 3; --any-toolchain " in line


@commands
def test_any_toolchain_takes_the_schedule(
    command: str, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*command.split(), "--records", str(old), "--target", "a100", "--any-toolchain"]
    assert main(given) == 0
    capsys.readouterr()
    assert main([*given, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    schedule = ekc.best(OP, old, "a100", any_toolchain=True).schedule.digest
    assert answer.get("digest", answer.get("digest_b")) == schedule
    if "origin" in answer:
        assert ", measured elsewhere: a100 (simulated), NVRTC 13.0, generator 3, " in answer["origin"]


def test_figures_measured_elsewhere_are_marked(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--records", str(old), "--target", "a100", "--any-toolchain"]
    assert main(["best", *SIZE.split(), *where]) == 0
    out = capsys.readouterr().out
    assert "Measured elsewhere: these figures are not of this device and toolchain." in out
    assert "measured elsewhere: a100 (simulated), NVRTC 13.0, generator 3, " in out
    assert f"afresh for sm_80 with NVRTC {describe_toolchain()}" in out
    assert main(["export", *SIZE.split(), *where, "--out", "o"]) == 0
    header = Path("o/matmul.h").read_text()
    assert " * device: a100 (simulated), NVRTC 13.0, generator 3, " in header
    assert "mJ a call (metered elsewhere)" in header
    assert " * result: not executed" in header


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (f"show {SIZE} --any-toolchain", "add --records FILE"),
        ("explain naive abcd1234 --records r.db --any-toolchain", "neither A nor B is best or fastest"),
    ],
)
def test_any_toolchain_without_choice_is_refused(
    command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 2
    assert words in capsys.readouterr().err


def test_figures_of_these_conditions_are_not_marked(capsys: pytest.CaptureFixture[str]) -> None:
    tune(OP, trials=1, records="r.db")
    assert main(["best", *SIZE.split(), "--records", "r.db", "--target", "a100", "--any-toolchain"]) == 0
    assert "elsewhere" not in capsys.readouterr().out
