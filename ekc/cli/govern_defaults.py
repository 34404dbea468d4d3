"""Defaults of `ekc govern` from files and from the environment.

A value counts in this order: command line, environment (EKC_GOVERN_...), the user's file or `--config FILE`,
the file of the system. Keys of a file are the names of options: `max-slowdown = 0.03`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ekc.argument_checks import check_choice
from ekc.errors import InvalidInput
from ekc.file_limits import parse_toml, read_plain_file

PREFIX = "EKC_GOVERN"
SYSTEM_FILE = Path("/etc/ekc/govern.toml")
FILE_OPTION = "config"
"""The option that names a file, which no file may set."""
USER_FILE = Path("ekc/govern.toml")
"""Below $XDG_CONFIG_HOME, which is ~/.config by default."""


def read_defaults(context: click.Context, parameter: click.Parameter, named: Path | None) -> Path | None:
    """Callback of the eager option `--config`: read the files into `context.default_map`. Raises
    `InvalidInput` for a file, key or value that cannot be used, and for an unknown variable EKC_GOVERN_...
    """
    options = list_configurable(context.command)
    _check_environment(options)
    options.pop(FILE_OPTION)
    values: dict[str, Any] = {}
    for file in _list_files(named):
        values |= _read_file(file, options, context)
    context.default_map = values
    return named


def list_configurable(command: click.Command) -> dict[str, click.Option]:
    """Options that a file or the environment may set, by their names without dashes."""
    options = (p for p in command.params if isinstance(p, click.Option))
    return {o.opts[0].removeprefix("--"): o for o in options if o.allow_from_autoenv}


def find_user_file() -> Path | None:
    """The file of the user's defaults, which need not exist; None without a home."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(home):
        return Path(home) / USER_FILE
    own = os.path.expanduser("~/.config")
    return Path(own) / USER_FILE if os.path.isabs(own) else None


def _list_files(named: Path | None) -> list[Path]:
    """Files that there are, the one that counts most last. A named one must exist."""
    user = named or find_user_file()
    files = [SYSTEM_FILE, *([user] if user else [])]
    return [file for file in files if file == named or file.exists()]


def _read_file(file: Path, options: Mapping[str, click.Option], context: click.Context) -> dict[str, Any]:
    try:
        content = parse_toml(read_plain_file(file).decode())
    except OSError as problem:
        raise InvalidInput(f"{file}: the defaults cannot be read ({problem.strerror})") from None
    except ValueError as problem:
        raise InvalidInput(f"{file}: no TOML ({problem})") from None
    values = {}
    for key, value in content.items():
        name = check_choice(f"{file}: key", key.replace("_", "-"), options)
        values[options[name].name or ""] = _check_value(file, name, options[name], value, context)
    return values


def _check_value(file: Path, key: str, option: click.Option, value: Any, context: click.Context) -> Any:
    """A value as the option takes it."""
    is_flag = isinstance(value, bool)
    if is_flag != option.is_flag or isinstance(value, dict):
        wanted = "true or false" if option.is_flag else "a number or text"
        raise InvalidInput(f"{file}: {key} = {value!r}: {wanted} is needed")
    if option.multiple and not isinstance(value, list):
        value = [value]
    count = len(value) if isinstance(value, list) else None
    if not option.multiple and count != (None if option.nargs == 1 else option.nargs):
        wanted = "one value" if option.nargs == 1 else f"a list of {option.nargs}"
        raise InvalidInput(f"{file}: {key} = {value!r}: {wanted} is needed")
    try:
        option.type_cast_value(context, value)
    except click.BadParameter as problem:
        raise InvalidInput(f"{file}: {key} = {value!r}: {problem.message}") from None
    return value


def _check_environment(options: Mapping[str, click.Option]) -> None:
    names = [f"{PREFIX}_{key.replace('-', '_').upper()}" for key in options]
    for variable in sorted(os.environ):
        if variable.startswith(f"{PREFIX}_"):
            check_choice("environment", variable, names)
