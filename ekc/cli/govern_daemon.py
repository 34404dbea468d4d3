"""Options of `ekc govern --daemon`: run it, or print its unit files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ekc.cli.arguments import refuse_unused_options
from ekc.cli.output import FILE, print_text

DAEMON_OPTIONS = ("socket", "allow", "print_unit")


def daemon_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate `ekc govern` with the options of the daemon."""
    options = (
        click.option(
            "--daemon",
            is_flag=True,
            help="Set clocks for the users of an allow-list, as a service that runs as root.",
        ),
        click.option(
            "--socket",
            type=FILE,
            metavar="PATH",
            help="Socket of --daemon. [default: /run/ekc/governor.sock]",
        ),
        click.option(
            "--allow",
            type=FILE,
            metavar="FILE",
            help="Allow-list of --daemon. [default: /etc/ekc/governor.toml]",
        ),
        click.option(
            "--print-unit",
            type=click.Choice(("service", "socket")),
            help="With --daemon: print a unit file of systemd, and exit.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


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
        from ekc.devices.clocks.daemon.service_manager import format_unit

        print_text(format_unit(print_unit, path.absolute(), (allow or DEFAULT_FILE).absolute()).rstrip())
        return 0
    from ekc.devices.clocks.daemon.server import run_daemon

    return run_daemon(path.absolute(), (allow or DEFAULT_FILE).absolute())
