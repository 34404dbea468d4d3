"""The lessons as files: the list of them, notebooks made from them, and copies for students and teachers.

A lesson is a Markdown file. Its blocks of Python are cells, which the documentation site executes. Notebooks
(.ipynb) are made from it by jupytext, an optional package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ekc.errors import InvalidInput

FOLDER = Path(__file__).parent / "lessons"
SOLUTIONS = Path(__file__).parent / "solutions"
_HEAD = re.compile(r"^# (\d+)\. (.+)$", re.MULTILINE)
_MINUTES = re.compile(r"^\*\*(\d+) minutes\.\*\* (.+?)\n\n", re.MULTILINE | re.DOTALL)
_EXERCISE = re.compile(r"\bcheck\(\s*(\d+),\s*\"([a-z])\"")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}

README = """\
# Course of ekc: kernels, time and energy

Work through the notebooks in order. Each takes at most 15 minutes. No GPU is needed: time and energy are
those of a simulated A100. Nothing needs a network.

| lesson | minutes | you learn |
|---|---:|---|
{table}

Start with `jupyter lab {first}` or open the file in your editor. Cells with `check(...)` are exercises:
put your answer in place of the three dots and run the cell. It says
whether the answer is right, or gives a hint.

Save a notebook before you hand it in. Only the answers that its cells give to `check` are graded.

The glossary of ekc, `docs/learn/glossary.md` in its repository, explains words that are new to you.
"""


@dataclass(frozen=True)
class Lesson:
    """One lesson, or the solutions of one."""

    path: Path

    @property
    def name(self) -> str:
        """Name of the file without its ending, such as "01-what-is-a-schedule"."""
        return self.path.stem

    @cached_property
    def text(self) -> str:
        """The Markdown text."""
        return self.path.read_text(encoding="utf-8")

    @property
    def number(self) -> int:
        """Number of the lesson, from 1."""
        return int(self._match(_HEAD)[1])

    @property
    def title(self) -> str:
        """Title without the number."""
        return self._match(_HEAD)[2]

    @property
    def minutes(self) -> int:
        """Minutes that a student needs."""
        return int(self._match(_MINUTES)[1])

    @property
    def aim(self) -> str:
        """The line that says what a student learns."""
        return " ".join(_LINK.sub(r"\1", self._match(_MINUTES)[2]).split())

    @property
    def exercises(self) -> tuple[str, ...]:
        """Keys of its exercises, such as "1a", in order."""
        return tuple(dict.fromkeys(number + letter for number, letter in _EXERCISE.findall(self.text)))

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.search(self.text)
        if found is None:
            raise InvalidInput(f"{self.path} is no lesson: it has no line like {pattern.pattern}")
        return found


def list_lessons(folder: Path = FOLDER) -> tuple[Lesson, ...]:
    """The lessons, or with `SOLUTIONS` the solutions, in order."""
    return tuple(Lesson(path) for path in sorted(folder.glob("[0-9]*.md")))


def replace_links(text: str, ending: str) -> str:
    """The text with links to lessons changed to files of that ending. A link to another page of the
    repository, which is not beside the copy, becomes its text."""

    def replace(link: re.Match[str]) -> str:
        page = re.fullmatch(r"([0-9][\w-]*)\.md(#[\w-]+)?", link[2])
        if page:
            return f"[{link[1]}]({page[1]}{ending})"
        return link[0] if re.match(r"https?:|#", link[2]) else link[1]

    return _LINK.sub(replace, text)


def make_notebook(lesson: Lesson) -> Any:
    """The lesson as a notebook (nbformat 4). Raises `InvalidInput` where jupytext is missing."""
    try:
        import jupytext
    except ImportError as problem:
        raise InvalidInput("notebooks of the course need jupytext: pip install 'ekc[course]'") from problem
    notebook = jupytext.reads(replace_links(lesson.text, ".ipynb"), fmt="md")
    notebook.metadata = {"kernelspec": dict(KERNEL)}
    for number, cell in enumerate(notebook.cells):
        # Jupytext draws them at random; a copy must be the same each time.
        cell["id"] = f"{lesson.name[:2]}-{number}"
        cell.metadata.clear()
    return notebook


def copy_lessons(folder: Path, source: Path = FOLDER) -> tuple[Path, ...]:
    """Lay out lessons as notebooks, and as Markdown in a folder below, with a README. Returns the files.

    Raises `InvalidInput`, and writes nothing, where one of the files exists.
    """
    lessons = list_lessons(source)
    texts = {f"{lesson.name}.ipynb": json.dumps(make_notebook(lesson), indent=1) + "\n" for lesson in lessons}
    texts |= {f"markdown/{lesson.name}.md": replace_links(lesson.text, ".md") for lesson in lessons}
    if source == FOLDER:
        rows = (f"| [{x.number}. {x.title}]({x.name}.ipynb) | {x.minutes} | {x.aim} |" for x in lessons)
        texts["README.md"] = README.format(table="\n".join(rows), first=f"{lessons[0].name}.ipynb")
    for path in _find_existing(folder, texts):
        raise InvalidInput(
            f"{path} exists, and a copy of the course never overwrites; choose another folder, "
            f"such as {folder.with_name(folder.resolve().name + '-new')}"
        )
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tuple(folder / name for name in texts)


def _find_existing(folder: Path, names: dict[str, str]) -> Iterator[Path]:
    """The first of the files that exists; a folder that is a file counts."""
    if folder.exists() and not folder.is_dir():
        yield folder
    yield from (folder / name for name in names if (folder / name).exists())
