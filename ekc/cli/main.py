"""The command `ekc`: its subcommands and its exit status.

Status 0: success. 1: a check failed, or the reader of standard output is gone. 2: bad input, explained in one
line. 130: interrupted from the keyboard, also if a search then printed its best so far.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Sequence

import click

from ekc.cli.bundle import bundle, export
from ekc.cli.course import course
from ekc.cli.doctor import doctor
from ekc.cli.explain import explain
from ekc.cli.govern import govern
from ekc.cli.kernel import check, explore, run, show
from ekc.cli.output import EXIT_BAD_INPUT, EXIT_INTERRUPTED, log, open_missing_streams
from ekc.cli.recordings import recording
from ekc.cli.records import best, records
from ekc.cli.report import report
from ekc.cli.space import space
from ekc.cli.tune import tune
from ekc.errors import CompileError, EkcError
from ekc.tables import join_lines
from ekc.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ekc")
def ekc() -> None:
    """Find the CUDA kernel that costs the least energy at the speed of the fastest.

    No GPU is needed: devices such as a100 are simulated, and simulated figures are marked as simulated.
    """


for command in (
    *(tune, run, check, show, space, explain, explore),
    *(best, export, bundle, report, records, recording),
    *(govern, course, doctor),
):
    ekc.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status. None: the arguments of this process."""
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
            # The only error that is printed in several lines: it shows the line of source.
            log(f"ekc: {problem}")
            return EXIT_BAD_INPUT
        except EkcError as problem:
            log(f"ekc: {join_lines(str(problem))}")
            return EXIT_BAD_INPUT
        except OSError as problem:
            if problem.errno != errno.ENOSPC:
                raise
            # Python would try to write its buffer again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            log("ekc: no space is left where the output goes")
            return EXIT_BAD_INPUT
        except click.Abort:
            log("ekc: interrupted")
            return EXIT_INTERRUPTED
    return status if isinstance(status, int) else 0


def _format_help_hint(problem: click.ClickException) -> str:
    """Hint at the help of the command that failed; "" if it is unknown."""
    context = getattr(problem, "ctx", None)
    return f" (see {context.command_path} --help)" if isinstance(context, click.Context) else ""


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line, without the line of source that raised it."""
    log(f"ekc: warning: {join_lines(str(message))}")
