"""The policy that the options of `ekc govern` make together (objective, caps, deadline, price), those of its
daemon, and their defaults from files and from the environment.

A value counts in this order: command line, environment (EKC_GOVERN_...), the user's file or `--config FILE`,
the file of the system. Keys of a file are the names of options: `max-slowdown = 0.03`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ekc.argument_checks import check_choice
from ekc.cli.arguments import refuse_unused_options
from ekc.cli.output import log, print_result
from ekc.errors import InvalidInput
from ekc.file_limits import parse_toml, read_plain_file

if TYPE_CHECKING:
    from ekc.governor.request import Policy, Tariff

OBJECTIVE_OPTIONS = (
    "max_slowdown",
    "objective",
    "min_saving",
    "remaining",
    "power_cap",
    "node_power_cap",
    "deadline",
    "steps_total",
)
"""Parameters that say what is wanted."""
_LIMITS = {
    "power_cap": "speed",
    "node_power_cap": "speed",
    "deadline": "energy",
}
"""The objective of each limit, which replaces `_BUDGETS`."""
_BUDGETS = ("max_slowdown", "min_saving")


def check_memory_name(values: dict[str, Any]) -> str | None:
    """Name of the file of choices; None where none is kept. Raises `InvalidInput`."""
    from ekc.governor.request import check_name

    name = values["remember"]
    if name is None:
        return None
    return check_name(name, each=values["each"], has_deadline=values["deadline"] is not None)


def make_policy(context: click.Context, values: dict[str, Any]) -> Policy:
    """The policy of the options. A limit implies its objective. Raises `InvalidInput` for options that
    exclude each other; a weaker source (environment, file) yields to a stronger one, and a line says so."""
    from ekc.governor.request import Policy, parse_deadline

    limit = _choose_limit(context, values)
    objective = values["objective"] if limit is None else _LIMITS[limit]
    given = values[limit] if limit is not None else None
    is_deadline = limit == "deadline"
    if is_deadline and (values["remaining"] is None) == (values["steps_total"] is None):
        raise InvalidInput(
            "--deadline: say how much work is left: --remaining SECONDS (at full speed), or --steps-total N "
            "where the script counts its steps; give one of them"
        )
    if values["steps_total"] is not None and values["steps"] is None:
        raise InvalidInput(
            "--steps-total: nothing counts the steps of a command; use ekc.Governor(steps_total=N) in the "
            "script, or give --remaining SECONDS"
        )
    if limit == "node_power_cap" and values["each"]:
        raise InvalidInput(
            "--node-power-cap: with --each the GPUs are governed one by one; leave --each out, "
            "or give --power-cap"
        )
    return Policy(
        objective,
        values["max_slowdown"],
        values["min_saving"],
        values["remaining"],
        power_cap_w=given if limit == "power_cap" else None,
        node_power_cap_w=given if limit == "node_power_cap" else None,
        deadline_s=parse_deadline(str(given), datetime.now()) if is_deadline else None,
        steps_total=values["steps_total"],
    )


def make_tariff(values: dict[str, Any]) -> Tariff:
    """Price and CO2 of a kWh. Raises `InvalidInput`."""
    from ekc.governor.request import Tariff

    price, currency = values["price"] or (None, "")
    return Tariff(price, currency, values["intensity"])


def _choose_limit(context: click.Context, values: dict[str, Any]) -> str | None:
    """The limit that counts: the one of the strongest source, if no stronger option excludes it."""
    given = [name for name in _LIMITS if values[name] is not None]
    if not given:
        return None
    strongest = min(_rank(context, name) for name in given)
    limits = [name for name in given if _rank(context, name) == strongest]
    if len(limits) > 1:
        raise InvalidInput(f"{_format_option(limits[0])} and {_format_option(limits[1])}: give one of them")
    (limit,) = limits
    objective = _LIMITS[limit]
    for rival in _BUDGETS if values["objective"] == objective else (*_BUDGETS, "objective"):
        if (rank := _rank(context, rival)) > strongest or rank == _UNSET:
            continue
        if rank == strongest:
            reason = "replaces it" if rival in _BUDGETS else f"goes with {objective} alone"
            raise InvalidInput(
                f"{_format_option(rival)}: {_format_option(limit)} {reason}; leave one of them out"
            )
        names = _format_option(limit), _format_option(rival)
        log(f"ekc govern: {names[0]} of the defaults is set aside: {names[1]} is given")
        return None
    return limit


_SOURCES = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)
_UNSET = len(_SOURCES)


def _rank(context: click.Context, name: str) -> int:
    """Place of a parameter's source, the strongest first; `_UNSET` for its own default."""
    source = context.get_parameter_source(name)
    return _SOURCES.index(source) if source in _SOURCES else _UNSET


def _format_option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


DAEMON_OPTIONS = ("socket", "allow", "print_unit")


def run_daemon_command(socket: Path | None, allow: Path | None, print_unit: str | None, **_: Any) -> int:
    """Run `ekc govern --daemon`. Raises `InvalidInput` for options that have no effect."""
    from ekc.devices.clocks.daemon.allow_list import DEFAULT_FILE
    from ekc.devices.clocks.daemon.client import name_socket

    names = {parameter.name for parameter in click.get_current_context().command.params}
    refuse_unused_options(
        names - {"daemon", *DAEMON_OPTIONS}, "--daemon serves others and governs no job; leave it out"
    )
    path = socket or Path(name_socket())
    if print_unit is not None:
        from ekc.devices.clocks.daemon.server import format_unit

        print_result(format_unit(print_unit, path.absolute(), (allow or DEFAULT_FILE).absolute()).rstrip())
        return 0
    from ekc.devices.clocks.daemon.server import run_daemon

    return run_daemon(path.absolute(), (allow or DEFAULT_FILE).absolute())


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
