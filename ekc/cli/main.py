"""The command `ekc`: its subcommands, and how it ends.

Status 0: done. 1: a check said no, or the reader of our output has left. 2: bad input, told in one
line. 130: interrupted from the keyboard, also where a search then gave its best so far.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Sequence

import click

from ekc.cli.check import check
from ekc.cli.doctor import doctor
from ekc.cli.explain import explain
from ekc.cli.govern import govern
from ekc.cli.output import EXIT_BAD_INPUT, EXIT_INTERRUPTED, join_lines, log, open_missing_streams
from ekc.cli.records import best, export, recording
from ekc.cli.run import run
from ekc.cli.show import show
from ekc.cli.tune import tune
from ekc.errors import CompileError, EkcError
from ekc.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ekc")
def ekc() -> None:
    """Finds the CUDA kernel that costs least energy at the speed of the fastest.

    No GPU is needed: devices such as a100 are simulated, and whatever is simulated says so.
    """


for command in (tune, run, check, show, explain, best, export, recording, govern, doctor):
    ekc.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    open_missing_streams()
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            status = ekc.main(arguments, prog_name="ekc", standalone_mode=False)
        except click.exceptions.NoArgsIsHelpError as problem:
            problem.show()
            return EXIT_BAD_INPUT
        except click.ClickException as problem:
            log(f"ekc: {join_lines(problem.format_message())}{_format_help_hint(problem)}")
            return EXIT_BAD_INPUT
        except CompileError as problem:
            # The one error of more lines than one: it shows the line of source.
            log(f"ekc: {problem}")
            return EXIT_BAD_INPUT
        except EkcError as problem:
            log(f"ekc: {join_lines(str(problem))}")
            return EXIT_BAD_INPUT
        except OSError as problem:
            if problem.errno != errno.ENOSPC:
                raise
            # What could not be written waits in a buffer, and Python would try again when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            log("ekc: no space is left where the output goes")
            return EXIT_BAD_INPUT
        except click.Abort:
            log("ekc: interrupted")
            return EXIT_INTERRUPTED
    return status if isinstance(status, int) else 0


def _format_help_hint(problem: click.ClickException) -> str:
    context = getattr(problem, "ctx", None)
    return f" (see {context.command_path} --help)" if isinstance(context, click.Context) else ""


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one line, without the place in our own source that raised it."""
    log(f"ekc: warning: {join_lines(str(message))}")
