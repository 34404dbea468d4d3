"""The command line, called in this process in a folder of its own."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ekc.cli import main
from tests.cli.hostile import files, originals

__all__ = ["files", "originals"]


class Printed(NamedTuple):
    """Output of a command on its two streams."""

    out: str
    err: str


class CommandLine:
    """`ekc` in this process: `cli("show matvec 8 8").out`."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, command: str, status: int = 0) -> Printed:
        """Output of a command that ends with this status."""
        self._capsys.readouterr()
        ended = main(shlex.split(command))
        printed = Printed(*self._capsys.readouterr())
        assert ended == status, printed
        return printed

    def json(self, command: str, status: int = 0) -> dict[str, Any]:
        """The one JSON object that a command prints with `--json`."""
        value = json.loads(self(f"{command} --json", status).out)
        assert isinstance(value, dict)
        return value

    def refusal(self, command: str) -> str:
        """The one line with which a command is refused."""
        out, err = self(command, status=2)
        assert out == ""
        assert err.startswith("ekc: ")
        assert err.count("\n") == 1, err
        return err


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return CommandLine(capsys)
