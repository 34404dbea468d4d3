"""Options of `ekc govern --daemon`: run it, print its unit files, end a user's leases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ekc.cli.arguments import refuse_unused_options
from ekc.cli.output import FILE, log, print_text

DAEMON_OPTIONS = ("socket", "allow", "print_unit", "release")
RELEASE_OPTIONS = ("gpus",)


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
        click.option(
            "--release",
            type=click.IntRange(min=0),
            metavar="UID",
            help="With --daemon, as root: end the leases of a user at the daemon that runs, all or those of "
            "--gpu, and exit.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def run_daemon_command(
    socket: Path | None, allow: Path | None, print_unit: str | None, release: int | None, **options: Any
) -> int:
    """Run `ekc govern --daemon`. Raises `InvalidInput` for options that have no effect."""
    from ekc.devices.clocks.daemon.allow_list import DEFAULT_FILE
    from ekc.devices.clocks.daemon.client import name_socket

    used = {"daemon", *DAEMON_OPTIONS, *(RELEASE_OPTIONS if release is not None else ())}
    names = {parameter.name for parameter in click.get_current_context().command.params}
    refuse_unused_options(names - used, "--daemon serves others and governs no job; leave it out")
    path = socket or Path(name_socket())
    if release is not None:
        refuse_unused_options(("allow", "print_unit"), "--release asks the daemon that runs; leave it out")
        return _release_leases(path, release, options["gpus"])
    if print_unit is not None:
        from ekc.devices.clocks.daemon.service_manager import format_unit

        print_text(format_unit(print_unit, path.absolute(), (allow or DEFAULT_FILE).absolute()).rstrip())
        return 0
    from ekc.devices.clocks.daemon.server import run_daemon

    return run_daemon(path.absolute(), (allow or DEFAULT_FILE).absolute())


def _release_leases(path: Path, uid: int, gpu_words: tuple[str, ...]) -> int:
    """End leases of a user; exit status 1 where the daemon does not answer or settings are not back."""
    from ekc.devices.clocks.daemon.client import release_leases
    from ekc.errors import ActuatorError
    from ekc.governor.live.gpus import resolve_gpus

    try:
        release_leases(str(path), uid, resolve_gpus(gpu_words) if gpu_words else ())
    except ActuatorError as problem:
        log(f"ekc govern: {problem}")
        return 1
    return 0
