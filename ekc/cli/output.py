"""What commands print, and where they write."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ekc.errors import InvalidInput

DEFAULT_FOLDER = "ekc-out"
"""Where kernels are written unless told otherwise."""

json_option: Callable[[Any], Any] = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of text."
)


def print_text(text: str) -> None:
    """A result, on stdout."""
    click.echo(text)


def log(text: str) -> None:
    """Anything else, on stderr. A terminal that is gone, or a full disk, is no reason to end."""
    try:
        click.echo(text, err=True)
    except OSError:
        # Text in its buffer would fail again when Python ends, and change the exit status.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as long as the process lives


def open_missing_streams() -> None:
    """Where we were started without stdin, stdout or stderr (`2>&-`): nothing is read there, and what is
    written is lost. A command that we start is without them too."""
    while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(lowest)
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def join_lines(text: str) -> str:
    """A text without its line ends."""
    return " ".join(text.split())


def print_json(value: dict[str, Any]) -> None:
    """One JSON object, on stdout."""
    click.echo(json.dumps(value))


def ensure_writable(folder: Path) -> Path:
    """The folder, made if need be, once it is known that a file can be written into it.

    Asked before any work whose result would go there. Raises `InvalidInput`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InvalidInput(f"cannot write into {folder} ({reason}); choose another folder") from problem


def format_written(paths: tuple[Path, ...]) -> str:
    """The files written, one a line."""
    return "\n".join(f"wrote {path}" for path in paths)
