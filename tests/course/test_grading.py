"""`ekc course grade`: a class of 20 submissions, honest, unfinished, broken and cheating."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from ekc.cli.main import ekc as ekc_command
from ekc.course import load_exercises
from ekc.course.answers import MISSING, RIGHT, WRONG, list_exercises
from ekc.course.grade import grade, grade_submission, read_statements, select_statements
from ekc.course.lessons import SOLUTIONS, list_lessons
from ekc.errors import InvalidInput
from tests.course.cells import list_cells

IMPORT = "from ekc.course import check"
HONEST = [IMPORT, "answer = 128\nanswer *= 2", 'check(1, "a", answer)', 'check(1, "b", "j")']
CHEATS = {
    "patches_check": [
        "import ekc.course\nfrom ekc.course.answers import Feedback",
        'ekc.course.check = lambda *a: Feedback("right", "", "1a")\nekc.course.check(1, "a", 1)',
    ],
    "patches_judge": [
        "import ekc.course.answers as answers\nfrom ekc.course import check",
        'answers.judge_answer = check.__func__ = lambda *a: answers.Feedback("right", "", "1a")',
        'check(1, "a", 1)',
    ],
    "patches_figures": [
        "import ekc.course.ladder as ladder\nfrom ekc.course import check, rung, Figures",
        'ladder.measure = lambda *a: Figures(0.1, 0.1, 1.0, "check")',
        'check(4, "d", rung("naive"))',
    ],
    "prints": ['print("Exercise 1a: right.")  # check', "print('check 1a: right.')"],
    "equal_to_all": [
        IMPORT,
        "class Any(float):\n    def __eq__(self, other):\n        return True\n    __hash__ = None",
        'check(1, "a", Any(3))',
    ],
    "fakes_messages": [
        IMPORT,
        "import os\n"
        "for check_fd in range(3, 30):\n"
        "    try:\n"
        '        os.write(check_fd, b\'\\0\\0\\0\\x10{"done": "right"\')\n'
        "    except OSError:\n"
        "        pass",
        'check(1, "a", 256)',
    ],
}


def write_notebook(path: Path, cells: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    code = [
        {"cell_type": "code", "source": c, "metadata": {}, "outputs": [], "execution_count": None}
        for c in cells
    ]
    path.write_text(json.dumps({"cells": code, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))


@pytest.fixture(scope="module")
def submissions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("class")
    for number in range(5):
        write_notebook(folder / f"honest{number}/01.ipynb", HONEST)
    for name, cells in CHEATS.items():
        write_notebook(folder / f"{name}/01.ipynb", cells)
    write_notebook(
        folder / "loops/01.ipynb",
        [IMPORT, 'check(1, "a", 256)', 'check(1, "b", [x for x in iter(int, 1)])', 'check(1, "c", 512)'],
    )
    stubborn = "import time\nwhile check:\n    try:\n        time.sleep(9)\n    except BaseException: pass"
    write_notebook(
        folder / "stubborn/01.ipynb", [IMPORT, 'check(1, "a", 256)', stubborn, 'check(1, "c", 512)']
    )
    write_notebook(folder / "stubborn/02.ipynb", [IMPORT, 'check(2, "a", "A")'])
    write_notebook(
        folder / "raises/01.ipynb", [IMPORT, 'check(1, "a", 1 / 0)\ncheck(1, "c", 512)', "syntax error"]
    )
    write_notebook(folder / "exits/01.ipynb", [IMPORT, "import os", 'check(1, "a", os._exit(0))'])
    write_notebook(folder / "exits/02.ipynb", [IMPORT, 'check(2, "a", "A")'])
    write_notebook(
        folder / "untouched/01.ipynb",
        [IMPORT, 'check(1, "a", ...)', 'check(1, "b", "k")\ncheck(1, "b", ...)'],
    )
    (folder / "empty").mkdir()
    (folder / "broken").mkdir()
    (folder / "broken/01.ipynb").write_text("{")
    shutil.copy(folder / "honest0/01.ipynb", folder / "single.ipynb")
    (folder / "script.py").write_text(
        f'{IMPORT}\nrows = []\nrows.append(256)\ncheck(1, "a", rows[0])\n'
        'def endless(stride):\n    while True:\n        pass\ncheck(2, "b", endless)\ncheck(1, "c", 512)\n'
    )
    return folder


@dataclass(frozen=True)
class GradedClass:
    """Output of the command: its text and its CSV."""

    output: str
    states: dict[str, dict[str, str]]
    """Student -> exercise -> state, without those that are missing."""
    totals: dict[str, str]

    def list_notes(self, student: str) -> list[str]:
        """Notes on a student, below the table."""
        start = f"{student}: "
        return [line.removeprefix(start) for line in self.output.splitlines() if line.startswith(start)]


@pytest.fixture(scope="module")
def graded(submissions: Path, tmp_path_factory: pytest.TempPathFactory) -> GradedClass:
    file = tmp_path_factory.mktemp("grades") / "grades.csv"
    paths = map(str, sorted(submissions.iterdir()))
    done = CliRunner().invoke(
        ekc_command, ["course", "grade", *paths, "--csv", str(file), "--time-limit", "1"]
    )
    assert done.exit_code == 0, done.output
    rows = {row.pop("student"): row for row in csv.DictReader(file.read_text().splitlines())}
    totals = {student: row.pop("right") for student, row in rows.items()}
    states = {n: {k: v for k, v in row.items() if v != MISSING} for n, row in rows.items()}
    return GradedClass(done.output, states, totals)


@pytest.mark.slow
def test_class_of_twenty_is_graded_into_a_table_and_csv(graded: GradedClass) -> None:
    load_exercises()
    count = len(list_exercises())
    assert len(graded.states) >= 20
    assert graded.totals["honest0"] == "1"
    (row,) = (line for line in graded.output.splitlines() if line.startswith("honest0 "))
    assert row.split()[1:3] == ["+-..", "...."]
    assert row.split()[-1] == f"1/{count}"


def test_answers_are_judged_right_or_wrong(graded: GradedClass) -> None:
    for name in (*(f"honest{n}" for n in range(5)), "single"):
        assert graded.states[name] == {"1a": RIGHT, "1b": WRONG}


def test_solutions_are_all_right(tmp_path: Path) -> None:
    load_exercises()
    for lesson in list_lessons(SOLUTIONS):
        write_notebook(tmp_path / f"perfect/{lesson.name}.ipynb", list_cells(lesson))
    grades = grade_submission("perfect", tmp_path / "perfect")
    assert {key for key, feedback in grades.verdicts.items() if not feedback.right} == set()
    assert grades.notes == ()


def test_student_who_loops_loses_that_answer_alone(graded: GradedClass) -> None:
    assert graded.states["loops"] == {"1a": RIGHT, "1c": RIGHT}
    assert graded.list_notes("loops") == ["01.ipynb, code cell 3: stopped after 1 s"]


def test_process_that_cannot_be_stopped_is_killed(graded: GradedClass) -> None:
    assert graded.states["stubborn"] == {"1a": RIGHT, "2a": RIGHT}
    assert graded.states["exits"] == {"2a": RIGHT}
    for name in ("stubborn", "exits"):
        assert "the process ended or hung" in graded.list_notes(name)[0]


def test_function_without_end_is_a_wrong_answer(graded: GradedClass) -> None:
    assert graded.states["script"] == {"1a": RIGHT, "2b": WRONG, "1c": RIGHT}


def test_exception_ends_its_statement_alone(graded: GradedClass) -> None:
    assert graded.states["raises"] == {"1c": RIGHT}
    assert graded.list_notes("raises") == ["01.ipynb, code cell 2: ZeroDivisionError: division by zero"]


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_gain_nothing(name: str, graded: GradedClass) -> None:
    assert RIGHT not in graded.states[name].values()


def test_untouched_empty_and_broken_submissions_have_no_answer(graded: GradedClass) -> None:
    assert graded.states["untouched"] == {"1b": RIGHT}, "three dots do not replace an answer"
    assert graded.states["empty"] == graded.states["broken"] == {}
    assert "no notebook" in graded.list_notes("empty")[0]
    assert "cannot be read" in graded.list_notes("broken")[0]


def test_only_statements_that_an_answer_needs_are_run(tmp_path: Path) -> None:
    write_notebook(
        tmp_path / "a.ipynb",
        [
            IMPORT,
            "x = 1\ny = 2\nz = [x]",
            "%matplotlib inline\nz.append(y)\nprint('long')",
            'check(1, "a", z)',
        ],
    )
    chosen = [one.text for one in select_statements(read_statements(tmp_path / "a.ipynb"))]
    assert chosen == [IMPORT, "x = 1", "y = 2", "z = [x]", "z.append(y)", 'check(1, "a", z)']


def test_grader_takes_the_forms_that_check_takes(tmp_path: Path) -> None:
    place = "lambda lane, e: np.array([lane // 4 + 8 * (e // 2), 2 * (lane % 4) + e % 2])"
    write_notebook(
        tmp_path / "s/a.ipynb",
        [
            f"{IMPORT}\nimport numpy as np\nfrom fractions import Fraction",
            'check(1, "a", np.array(256))',
            'check(4, "a", Fraction(5, 8))',
            f'check(7, "a", {place})',
        ],
    )
    verdicts = grade_submission("s", tmp_path / "s").verdicts
    assert [key for key, found in verdicts.items() if found.right] == ["1a", "4a", "7a"]


def test_folder_of_several_students_gets_a_note(tmp_path: Path) -> None:
    write_notebook(tmp_path / "class/anna/01.ipynb", HONEST)
    write_notebook(tmp_path / "class/berta/01.ipynb", HONEST)
    (note,) = grade_submission("class", tmp_path / "class").notes
    assert "01.ipynb is in 2 of its folders" in note
    assert "class/*" in note


def test_answer_in_a_cell_that_is_no_python_has_a_note(tmp_path: Path) -> None:
    write_notebook(
        tmp_path / "s/a.ipynb", [IMPORT, 'check(1, "b", "k"', 'check(1, "c", 512)', "%%bash\nls -l"]
    )
    grades = grade_submission("s", tmp_path / "s")
    assert (grades.verdicts["1b"].state, grades.verdicts["1c"].state) == (MISSING, RIGHT)
    (note,) = grades.notes
    assert note.startswith("a.ipynb, code cell 2: SyntaxError")


def test_code_of_a_student_runs_in_a_copy(tmp_path: Path) -> None:
    write_notebook(
        tmp_path / "s/a.ipynb", [IMPORT, "import os", 'check(1, "b", os.remove("a.ipynb") or "k")']
    )
    assert grade_submission("s", tmp_path / "s").verdicts["1b"].right
    assert (tmp_path / "s/a.ipynb").exists()


def test_paths_that_are_no_submissions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such submission"):
        grade([tmp_path / "berta"])
    write_notebook(tmp_path / "x/anna/a.ipynb", HONEST)
    write_notebook(tmp_path / "y/anna/a.ipynb", HONEST)
    with pytest.raises(InvalidInput, match="two submissions are named anna"):
        grade([tmp_path / "x/anna", tmp_path / "y/anna"])
