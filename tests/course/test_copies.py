"""`ekc course copy` and `ekc course list`: files that a student gets."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from ekc.cli import main
from ekc.course.lessons import list_lessons
from tests.course.cells import list_cells

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("jupytext")


def test_copy_lays_out_valid_notebooks_with_the_cells_of_the_lessons(tmp_path: Path) -> None:
    assert main(["course", "copy", str(tmp_path / "course")]) == 0
    for lesson in list_lessons():
        notebook = nbformat.read(tmp_path / f"course/{lesson.name}.ipynb", 4)
        nbformat.validate(notebook)
        code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
        assert code == [cell.rstrip("\n") for cell in list_cells(lesson)]
        assert (tmp_path / f"course/markdown/{lesson.name}.md").exists()


def test_links_of_a_copy_lead_to_files_of_the_copy(tmp_path: Path) -> None:
    assert main(["course", "copy", str(tmp_path)]) == 0
    links = [
        (path.parent / link)
        for path in tmp_path.rglob("*.*")
        if path.is_file()
        for link in re.findall(r"\]\(([^):#]+)\)", path.read_text())
        if " " not in link
    ]
    assert len(links) >= 3 * len(list_lessons())
    assert all(link.is_file() for link in links)
    assert not any("docs" in link.parts[len(tmp_path.parts) :] for link in links)


def test_copy_does_not_overwrite_the_work_of_a_student(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = list_lessons()[0]
    (tmp_path / f"{first.name}.ipynb").write_text("my work")
    assert main(["course", "copy", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "never overwrites" in error
    assert error.count("\n") == 1
    assert (tmp_path / f"{first.name}.ipynb").read_text() == "my work"
    assert [path.name for path in tmp_path.iterdir()] == [f"{first.name}.ipynb"]


def test_list_has_every_lesson(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["course", "list"]) == 0
    out = capsys.readouterr().out
    assert all(f"{lesson.number}. {lesson.title}" in out for lesson in list_lessons())


def test_missing_jupytext_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jupytext", None)
    assert main(["course", "copy", str(tmp_path / "course")]) == 2
    assert "pip install 'ekc[course]'" in capsys.readouterr().err
    assert not (tmp_path / "course").exists()


def test_solutions_are_laid_out_for_teachers_and_not_named_in_lessons(tmp_path: Path) -> None:
    assert main(["course", "solutions", str(tmp_path)]) == 0
    assert len(list(tmp_path.glob("*.ipynb"))) == 11
    assert not [x.name for x in list_lessons() if "solution" in x.text.lower()]


def test_course_is_in_the_toctree_of_the_site() -> None:
    index = (Path(__file__).parents[2] / "docs/index.md").read_text()
    assert "course/teaching\nproject/lessons/*\n" in index


def test_json_of_lessons_and_grades(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["course", "list", "--json"]) == 0
    lessons = json.loads(capsys.readouterr().out)["lessons"]
    assert [x["number"] for x in lessons] == list(range(1, 12))
    (tmp_path / "ada.py").write_text('from ekc.course import check\ncheck(1, "b", "k")\ncheck(1, "c", 3)\n')
    assert main(["course", "grade", str(tmp_path / "ada.py"), "--json"]) == 0
    (ada,) = json.loads(capsys.readouterr().out)["grades"]
    assert (ada["student"], ada["right"]) == ("ada", 1)
    assert (ada["exercises"]["1b"]["state"], ada["exercises"]["1c"]["state"]) == ("right", "wrong")
