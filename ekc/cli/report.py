"""`ekc report`, and the page that `ekc tune --report` writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ekc.cli.arguments import OperatorCommand, OperatorRequest, operator_arguments, refuse_options
from ekc.cli.event_log import is_database
from ekc.cli.output import FILE, ensure_writable, json_option, log, print_result
from ekc.cli.sources import choice_options
from ekc.errors import InvalidInput

if TYPE_CHECKING:
    from ekc.report.page import ReportPage
    from ekc.report.run_data import RunData

DEFAULT_FILE = Path("report.html")


@click.command(cls=OperatorCommand)
@click.argument("file", type=FILE, callback=refuse_options)
@operator_arguments
@click.option("--records", "others", type=FILE, multiple=True, help="Another record file for the same page.")
@click.option("--target", help="Only figures of this device, such as a100. [default: of all devices]")
@choice_options
@click.option("--out", type=FILE, default=DEFAULT_FILE, show_default=True, help="HTML file to write.")
@json_option
def report(
    file: Path,
    request: OperatorRequest,
    others: tuple[Path, ...],
    target: str | None,
    objective: str,
    max_slowdown: float,
    out: Path,
    as_json: bool,
) -> None:
    """Write a report of a record file: one HTML page with pictures, conditions and code.

    OPERATOR may be left out: the page then has all operators of the file. The page needs no network.

    \b
      ekc report tuning.db
      ekc report tuning.db matmul 512 512 512 --target a100 --out matmul.html
      ekc report monday.db --records tuesday.db
    """
    check_report_file(out, file, *others)
    from ekc.search.data.selection import SelectionRule
    from ekc.search.run_data.from_records import collect_records

    op = None if request.is_empty else request.make_operator()
    found = collect_records((file, *others), SelectionRule(objective, max_slowdown), op, target)
    for line in found.failed:
        log(f"ekc: left out: {line}")
    names = ", ".join(path.name for path in (file, *others))
    title = found.runs[0].title if len(found.runs) == 1 else f"Measurements of {names}"
    page = write_report(out, found.runs, title, found.failed)
    facts = {"report": str(out), "runs": len(found.runs), "bytes": page.bytes_by_part}
    print_result(facts if as_json else format_report(out, page))


def check_report_file(file: Path | None, *measurement_paths: Path | None) -> None:
    """Check before the work that a report can be written. Raises `InvalidInput` where it cannot, where it
    would replace one of these files of measurements or a file that is no page, or plotly is missing."""
    if file is None:
        return
    from ekc.report.page import check_page_file
    from ekc.report.theme import import_plotly

    import_plotly()
    if file.is_dir():
        raise InvalidInput(f"report: {file} is a folder; name a file in it, such as {file / DEFAULT_FILE}")
    if any(is_database(file, path) for path in measurement_paths if path is not None):
        raise InvalidInput(f"report: {file} is a file of measurements; choose another name")
    ensure_writable(file.parent)
    check_page_file(file)


def write_report(
    file: Path, runs: Sequence[RunData], title: str = "", failed: Sequence[str] = ()
) -> ReportPage:
    """Write the page of some runs. `failed`: a line for each that has no kernel."""
    from ekc.report.page import make_report

    page = make_report(runs, title, failed)
    page.write(file)
    return page


def format_report(file: Path, page: ReportPage) -> str:
    """Format the line that says where the page is, and its size by part."""
    return f"{file}: {page.format_size()}"
