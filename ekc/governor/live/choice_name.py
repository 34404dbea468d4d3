"""Names under which the choices of jobs are kept. Imports no NumPy: the job has not started."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from ekc.errors import InvalidInput

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


def check_name(name: str) -> str:
    """A name of a job, which becomes that of a file. Raises `InvalidInput`."""
    if not re.fullmatch(_NAME, name):
        raise InvalidInput(
            f"--remember {name}: a name is 1 to 100 letters, digits, dots, dashes and underscores, "
            "such as nightly-bert"
        )
    return name


def make_name(command: Sequence[str], folder: Path) -> str:
    """Name for a command in a working folder."""
    words = "\0".join([str(folder), *command]).encode(errors="surrogateescape")
    return f"command-{hashlib.sha256(words).hexdigest()[:24]}"
