"""`ekc course`: list the lessons, lay them out for students, and grade what students hand in."""

from __future__ import annotations

from pathlib import Path

import click

from ekc.cli.output import FILE, ensure_writable, json_option, print_result, write_text_file
from ekc.tables import format_table


@click.group()
def course() -> None:
    """A course of eleven lessons on kernels, time and energy. No GPU is needed."""


@course.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """Print the lessons: title, minutes, exercises."""
    from ekc.course.lessons import list_lessons

    lessons = list_lessons()
    names = ("number", "title", "minutes", "exercises")
    rows = [(f"{x.number}. {x.title}", ", ".join(x.exercises), str(x.minutes)) for x in lessons]
    table = format_table(("lesson", "exercises", "minutes"), rows, label_count=2)
    minutes = sum(x.minutes for x in lessons)
    print_result(
        {"lessons": [{name: getattr(x, name) for name in names} for x in lessons]}
        if as_json
        else f"{table}\n\n{minutes} minutes in all. Lay them out with: ekc course copy DIR"
    )


@course.command()
@click.argument("folder", metavar="DIR", type=FILE)
@json_option
def copy(folder: Path, as_json: bool) -> None:
    """Lay out the lessons in DIR: notebooks, the same as Markdown, and a README.

    Files that exist are never overwritten.
    """
    from ekc.course.lessons import copy_lessons

    files = copy_lessons(folder)
    notebooks = [path for path in files if path.suffix == ".ipynb"]
    print_result(
        {"files": [str(path) for path in files]}
        if as_json
        else f"{len(notebooks)} notebooks in {folder}; start with: jupyter lab {notebooks[0]}"
    )


@course.command()
@click.argument("folder", metavar="DIR", type=FILE)
@json_option
def solutions(folder: Path, as_json: bool) -> None:
    """Lay out the solutions in DIR, for teachers."""
    from ekc.course.lessons import SOLUTIONS, copy_lessons

    files = copy_lessons(folder, SOLUTIONS)
    print_result(
        {"files": [str(path) for path in files]}
        if as_json
        else f"solutions of {sum(path.suffix == '.ipynb' for path in files)} lessons in {folder}"
    )


@course.command()
@click.argument("submissions", metavar="SUBMISSIONS...", nargs=-1, required=True, type=FILE)
@click.option("--csv", "csv_file", type=FILE, help="Also write the grades to this file, as CSV.")
@click.option(
    "--time-limit",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Longest time of one statement of a submission.",
)
@json_option
def grade(submissions: tuple[Path, ...], csv_file: Path | None, time_limit: float, as_json: bool) -> None:
    """Grade submissions: folders of notebooks, or single .ipynb or .py files.

    Answers are those that a submission gives to check; they are judged again here. A submission runs in a
    process of its own, with limits of time and memory, but it can read and write your files.
    """
    from ekc.course.grade import format_csv, format_grades
    from ekc.course.grade import grade as grade_all

    if csv_file is not None:
        ensure_writable(csv_file.parent)
    grades = grade_all(submissions, time_limit)
    if csv_file is not None:
        write_text_file("--csv", csv_file, format_csv(grades))
    notes = [f"{one.student}: {note}" for one in grades for note in one.notes]
    print_result(
        {"grades": [one.to_json() for one in grades]}
        if as_json
        else "\n\n".join([format_grades(grades), *(["\n".join(notes)] if notes else [])])
    )
