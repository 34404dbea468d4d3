"""Governing a real job on this machine: its processes, its GPUs, what is shown and reported."""

from __future__ import annotations

import re

from ekc.errors import InvalidInput

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


def check_name(name: str, *, each: bool = False, has_deadline: bool = False) -> str:
    """A name under which the choice of a job is kept, which becomes that of a file, and the options beside
    it. Raises `InvalidInput`. Needs no NumPy: the job has not started."""
    if not re.fullmatch(_NAME, name):
        raise InvalidInput(
            f"--remember {name}: a name is 1 to 100 letters, digits, dots, dashes and underscores, "
            "such as nightly-bert"
        )
    if each:
        raise InvalidInput("--remember: with --each there is a choice for each GPU; leave one of them out")
    if has_deadline:
        raise InvalidInput("--remember: with --deadline the work left decides; leave one of them out")
    return name
