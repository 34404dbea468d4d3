"""`ekc govern --daemon`: its unit files, and options that it has no use for."""

from __future__ import annotations

import sys

import pytest

from tests.cli.conftest import CommandLine

PATHS = "--socket /srv/s.sock --allow /srv/allow.toml"


def test_unit_is_printed_for_this_installation(cli: CommandLine) -> None:
    command = f"{sys.executable} -m ekc govern --daemon {PATHS}"
    assert f"ExecStart={command}\n" in cli(f"govern --daemon --print-unit service {PATHS}").out
    assert "ListenStream=/srv/s.sock\n" in cli(f"govern --daemon --print-unit socket {PATHS}").out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--daemon --pid 1", "--pid: --daemon serves others and governs no job; leave it out"),
        ("--daemon -- true", "--daemon serves others and governs no job; leave it out"),
        ("--daemon --restore", "--restore: --daemon serves others and governs no job; leave it out"),
        ("--socket /tmp/s -- true", "--socket: it is for --daemon; leave it out"),
        ("--daemon --print-unit timer", "'timer' is not one of 'service', 'socket'"),
        ("--daemon --allow /nonexistent/allow.toml", "/nonexistent/allow.toml: No such file"),
    ],
)
def test_options_without_effect_are_refused(cli: CommandLine, words: str, error: str) -> None:
    assert error in cli.refusal(f"govern {words}")
