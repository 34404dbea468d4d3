"""The command `ekc` itself: version, help, doctor, warnings, a closed standard output."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import ekc
from ekc.cli.main import ekc as command_group
from tests.cli.conftest import CommandLine


def test_doctor_prints_versions_and_devices(cli: CommandLine) -> None:
    out = cli("doctor").out
    assert all(word in out for word in ("nvrtc", "sm_80", "xgboost", "a100", "cache")), out
    assert cli.json("doctor")["nvrtc"]["version"]


def test_version_and_help_of_every_command(cli: CommandLine) -> None:
    assert ekc.__version__ in cli("--version").out
    commands = list(list_commands(command_group))
    assert len(commands) >= 14
    for words, command in commands:
        text = cli(f"{words} --help").out
        if isinstance(command, click.Group):
            assert all(f"\n  {name} " in text for name in command.commands), words
        else:
            assert ("--json" in text) is (words not in (" recording t4", " explore")), words


def list_commands(command: click.Command, words: str = "") -> Iterator[tuple[str, click.Command]]:
    """(words, command) of a command and all its subcommands."""
    yield words, command
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from list_commands(below, f"{words} {name}")


def test_closed_stdout_has_no_traceback() -> None:
    start = "import sys; from ekc.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", start, "show", "matmul", "64", "64", "64"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.close()
        assert run.stderr.read() == b""


def test_warning_is_one_line(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("")
    monkeypatch.setenv("EKC_CACHE_DIR", "file/cache")
    err = cli("check matmul 32 32 32").err
    assert err.startswith("ekc: warning: compile cache file/cache cannot be written")
    assert err.count("\n") == 1


INTERRUPT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's job in the background ignores it.
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from ekc.cli import main
sys.exit(main(["tune", "matmul", "8", "8", "8", "--trials", "1", "--out", {out!r}]))
"""
"""Ctrl-C at the import of one module."""


@pytest.mark.parametrize("module", ["click", "ekc.cli.govern", "numpy", "ekc.search.run"])
def test_interrupt_while_modules_are_imported_is_one_line(module: str, tmp_path: Path) -> None:
    text = INTERRUPT.format(module=module, out=str(tmp_path / "out"))
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 130, done.stderr
    lines = [line for line in done.stderr.splitlines() if line and "simulates" not in line]
    assert lines == ["ekc: interrupted"]
    assert not (tmp_path / "out" / "matmul").exists()
