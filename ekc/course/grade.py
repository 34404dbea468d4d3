"""Grade submissions: the answers that notebooks give to `check`, judged again in a process of the teacher.

A submission runs statement by statement in a process of its own, which sends its answers here. Only the
statements that an answer needs are run.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ekc.course import load_exercises
from ekc.course.answers import (
    MISSING,
    RIGHT,
    WRONG,
    AnswerError,
    Exercise,
    Feedback,
    judge_answer,
    list_exercises,
)
from ekc.course.submission import serve_submission
from ekc.errors import EkcError, InvalidInput
from ekc.ir.schedule.schedule import Schedule
from ekc.processes.pool import WorkerProcesses, count_cores
from ekc.tables import format_table

STATEMENT_SECONDS, SUBMISSION_SECONDS, GRACE_SECONDS = 10.0, 60.0, 5.0
"""Limits of a statement and of a submission, and how long the process has to end a statement itself."""
MAX_MESSAGE_BYTES = 1 << 22
_ENDINGS = (".ipynb", ".py")
_SYMBOLS = {RIGHT: "+", WRONG: "-", MISSING: "."}


@dataclass(frozen=True)
class Statement:
    """One statement at the top level of a file."""

    text: str
    place: str
    """File and cell, for messages."""
    defines: frozenset[str]
    """Names that it binds or changes."""
    uses: frozenset[str]
    is_import: bool
    mentions_check: bool


@dataclass(frozen=True)
class Grades:
    """Verdicts on one submission."""

    student: str
    verdicts: dict[str, Feedback]
    """Key of each exercise -> verdict."""
    notes: tuple[str, ...]
    """Statements that failed or were stopped, and files that could not be read."""

    @property
    def right_count(self) -> int:
        """Exercises with a right answer."""
        return sum(v.right for v in self.verdicts.values())

    def to_json(self) -> dict[str, Any]:
        """The student, the state and remark of each exercise, the number of right answers, and the notes.

        Of a wrong function or kernel also the seed of the random cases that it was tried on."""
        answers = {
            key: {"state": v.state, "remark": v.remark, **({} if v.seed is None else {"seed": v.seed})}
            for key, v in self.verdicts.items()
        }
        return {
            "student": self.student,
            "right": self.right_count,
            "exercises": answers,
            "notes": list(self.notes),
        }


def list_submissions(paths: Sequence[Path]) -> dict[str, Path]:
    """Name of each student -> folder or file: the name of the path without its ending.

    Raises `InvalidInput` for a path that is neither, and for two of one name.
    """
    found: dict[str, Path] = {}
    for path in paths:
        if not path.is_dir() and not (path.is_file() and path.suffix in _ENDINGS):
            raise InvalidInput(
                f"{path}: no such submission; name a folder of notebooks, an .ipynb or a .py file"
            )
        name = path.resolve().stem if path.is_file() else path.resolve().name
        if name in found:
            raise InvalidInput(f"two submissions are named {name}: {found[name]} and {path}; rename one")
        found[name] = path
    return found


def grade(paths: Sequence[Path], statement_seconds: float = STATEMENT_SECONDS) -> tuple[Grades, ...]:
    """Grade submissions on all cores, in the order given. Raises as `list_submissions` does."""
    load_exercises()
    submissions = list_submissions(paths)
    with WorkerProcesses(min(count_cores(), len(submissions)), load_exercises) as executor:
        jobs = [
            executor.submit(grade_submission, name, path, statement_seconds)
            for name, path in submissions.items()
        ]
        return tuple(_get_grades(name, job) for name, job in zip(submissions, jobs, strict=True))


def _get_grades(student: str, job: Future[Grades]) -> Grades:
    """The grades, or none where the process that judges has ended: an answer too large for it."""
    try:
        return job.result()
    except BrokenExecutor as problem:
        nothing = {e.key: Feedback(MISSING, "", e.key) for e in list_exercises()}
        return Grades(student, nothing, (f"not graded: {problem}",))


def grade_submission(student: str, path: Path, statement_seconds: float = STATEMENT_SECONDS) -> Grades:
    """Grade one submission. Its files are copied first, so that its code runs in a copy."""
    load_exercises()
    notes: list[str] = []
    answers: dict[str, Any] = {}
    deadline = time.monotonic() + SUBMISSION_SECONDS
    with tempfile.TemporaryDirectory(prefix="ekc-course-") as temporary:
        folder = Path(temporary) / "work"
        files = _copy_files(path, folder)
        if not files:
            notes.append("no notebook (.ipynb) and no .py file")
        notes += _note_copies(files, path)
        runner = Runner(answers, statement_seconds, deadline)
        for file in files:
            try:
                statements = read_statements(file)
            except (ValueError, KeyError, TypeError, AttributeError, OSError) as problem:
                notes.append(f"{file.name} cannot be read: {type(problem).__name__}")
                continue
            notes += runner.run_file(file.parent, select_statements(statements))
        runner.close()
    verdicts = {e.key: _judge_last_answer(e, answers.get(e.key, ...)) for e in list_exercises()}
    return Grades(student, verdicts, tuple(notes))


def _judge_last_answer(entry: Exercise, answer: Any) -> Feedback:
    """The verdict on an answer; that on a function was given while its process lived."""
    return answer if isinstance(answer, Feedback) else judge_answer(entry, answer)


def _copy_files(path: Path, folder: Path) -> list[Path]:
    """Copy a submission; its notebooks and Python files in the copy."""
    if path.is_file():
        folder.mkdir()
        return [Path(shutil.copy(path, folder))]
    ignored = shutil.ignore_patterns(".ipynb_checkpoints", ".git", "__pycache__", ".venv")
    shutil.copytree(path, folder, ignore=ignored, symlinks=True)
    return sorted(p for p in folder.rglob("*") if p.suffix in _ENDINGS and p.is_file() and not p.is_symlink())


def _note_copies(files: Sequence[Path], path: Path) -> list[str]:
    """A note where files of one name are in several folders: copies, or a folder of several students."""
    counts = Counter(file.name for file in files)
    name, count = max(counts.items(), key=lambda pair: pair[1], default=("", 0))
    if count < 2:
        return []
    return [
        f"{name} is in {count} of its folders, and the last answers count; "
        f"if these are students, grade {path}/*"
    ]


def read_statements(file: Path) -> list[Statement]:
    """The statements of a notebook or of a Python file. A cell that is no Python has none; where it mentions
    `check` it is one statement, whose error becomes a note."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        cells = [text]
    else:
        sources = (cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
        cells = [s if isinstance(s, str) else "".join(s) for s in sources]
    found = []
    for number, cell in enumerate(cells, 1):
        # Lines for IPython alone.
        plain = re.sub(r"^[ \t]*[%!?].*$", "", cell, flags=re.MULTILINE)
        place = file.name if file.suffix == ".py" else f"{file.name}, code cell {number}"
        try:
            nodes = ast.parse(plain).body
        except (SyntaxError, ValueError):
            nodes = []
            if "check" in plain:
                found.append(Statement(plain, place, frozenset(), frozenset(), False, mentions_check=True))
        found += [_describe_statement(node, plain, place) for node in nodes]
    return found


def _describe_statement(node: ast.stmt, text: str, place: str) -> Statement:
    defines: set[str] = set()
    uses: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            (uses if isinstance(inner.ctx, ast.Load) else defines).add(inner.id)
        elif isinstance(inner, ast.FunctionDef | ast.ClassDef):
            defines.add(inner.name)
        elif isinstance(inner, ast.alias):
            defines.add((inner.asname or inner.name).partition(".")[0])
        elif isinstance(inner, ast.Attribute | ast.Subscript) and not isinstance(inner.ctx, ast.Load):
            defines |= {n.id for n in ast.walk(inner.value) if isinstance(n, ast.Name)}
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        # A method may change its object: rows.append(1).
        root = node.value.func
        while isinstance(root, ast.Attribute | ast.Subscript | ast.Call):
            root = root.func if isinstance(root, ast.Call) else root.value
        if isinstance(root, ast.Name) and isinstance(node.value.func, ast.Attribute):
            defines.add(root.id)
    source = ast.get_source_segment(text, node, padded=True) or ""
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.decorator_list:
        source = ast.unparse(node)
    is_import = isinstance(node, ast.Import | ast.ImportFrom)
    return Statement(source, place, frozenset(defines), frozenset(uses), is_import, "check" in source)


def select_statements(statements: Sequence[Statement]) -> list[Statement]:
    """The statements that answers need: those that mention `check`, imports, and those before them that bind
    or change a name that these use."""
    needed: set[str] = set()
    chosen = []
    for one in reversed(statements):
        if one.is_import or one.mentions_check or one.defines & needed:
            chosen.append(one)
            needed |= one.uses
    return chosen[::-1]


class Runner:
    """Runs statements in the process of a student; a process that hangs or ends is replaced."""

    def __init__(self, answers: dict[str, Any], statement_seconds: float, deadline: float) -> None:
        """`answers`: gets the last answer to each exercise that is not three dots, by key; of a function the
        verdict."""
        self._answers, self._seconds, self._deadline = answers, statement_seconds, deadline
        self._exercises = {entry.key: entry for entry in list_exercises()}
        self._process: BaseProcess | None = None
        self._connection, self._lifeline = Pipe()

    def run_file(self, folder: Path, statements: Iterable[Statement]) -> list[str]:
        """Run the statements of one file, in a namespace of their own. Returns notes on those that failed."""
        notes: list[str] = []
        is_new = True
        for one in statements:
            if time.monotonic() > self._deadline:
                return [*notes, f"{one.place}: not run, {SUBMISSION_SECONDS:g} s are over"]
            try:
                if is_new:
                    self._open_folder(folder)
                    is_new = False
                self._send({"statement": one.text, "seconds": self._seconds})
                error = self._serve_statement()
            except (EOFError, OSError, ValueError, KeyError, TypeError, RecursionError):
                # It ended, hung, or sent what `submission.py` does not send.
                self.close()
                return [*notes, f"{one.place}: the process ended or hung; the rest of the file was not run"]
            if error is not None:
                notes.append(f"{one.place}: {error}")
        return notes

    def close(self) -> None:
        """End the process, and those that it started in its session."""
        if self._process is None or self._process.pid is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self._connection.close()
        self._lifeline.close()
        self._process = None

    def _open_folder(self, folder: Path) -> None:
        """Let the process work in a folder; starts one where there is none."""
        if self._process is None:
            context = multiprocessing.get_context("forkserver")
            # One server imports ekc; the processes of students are copies of it.
            context.set_forkserver_preload([serve_submission.__module__])
            self._connection, theirs = Pipe()
            self._lifeline, far = Pipe()
            self._process = context.Process(target=serve_submission, args=(theirs, far), daemon=True)
            self._process.start()
            theirs.close()
            far.close()
        self._send({"folder": str(folder)})

    def _serve_statement(self) -> str | None:
        """Take answers until the statement is done; its error."""
        while True:
            message = self._receive()
            if message.get("done"):
                error = message["error"]
                return None if error is None else str(error)
            entry = self._exercises[message["key"]]
            answer = self._decode(message["answer"])
            if isinstance(answer, RemoteFunction):
                # It lives as long as its process.
                verdict = judge_answer(entry, answer)
                answer = ... if verdict.state == MISSING else verdict
            if answer is not ...:
                self._answers[entry.key] = answer
            self._send({"recorded": True})

    def _decode(self, value: Any) -> Any:
        """The value that `submission.py` encoded."""
        if isinstance(value, list):
            return [self._decode(v) for v in value]
        if not isinstance(value, dict):
            return value
        if "missing" in value:
            return ...
        if "schedule" in value:
            try:
                return Schedule.from_json(value["schedule"])
            except EkcError:
                return Unreadable()
        if "function" in value:
            return RemoteFunction(self, int(value["function"]))
        return Unreadable()

    def call(self, number: int, arguments: tuple[Any, ...]) -> Any:
        """The value of a function of the student. Raises `AnswerError` where it has none."""
        self._send({"call": number, "arguments": arguments})
        reply = self._receive()
        if "error" in reply:
            raise AnswerError(str(reply["error"]))
        return self._decode(reply["value"])

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.send_bytes(json.dumps(message).encode())

    def _receive(self) -> dict[str, Any]:
        """The next message. Raises `TimeoutError`, which is an `OSError`, where none comes."""
        if time.monotonic() > self._deadline + GRACE_SECONDS:
            raise TimeoutError
        if not self._connection.poll(self._seconds + GRACE_SECONDS):
            raise TimeoutError
        message = json.loads(self._connection.recv_bytes(MAX_MESSAGE_BYTES))
        if not isinstance(message, dict):
            raise ValueError("no object")
        return message


@dataclass(frozen=True)
class RemoteFunction:
    """A function in the process of a student."""

    runner: Runner
    number: int

    def __call__(self, *arguments: Any) -> Any:
        """Ask the process for a value."""
        return self.runner.call(self.number, arguments)


class Unreadable:
    """A value of a student that is no plain data."""


def format_grades(grades: Sequence[Grades]) -> str:
    """A table with a row for each student: a sign for each exercise, by lesson, and the total."""
    lessons = sorted({e.lesson for e in list_exercises()})
    keys = {n: [e.key for e in list_exercises() if e.lesson == n] for n in lessons}
    rows = [
        (
            one.student,
            *("".join(_SYMBOLS[one.verdicts[key].state] for key in keys[n]) for n in lessons),
            f"{one.right_count}/{len(one.verdicts)}",
        )
        for one in grades
    ]
    title = "By lesson, exercises a, b, c, ...: + right, - wrong, . no answer\n"
    return format_table(("student", *map(str, lessons), "right"), rows, title)


def format_csv(grades: Sequence[Grades]) -> str:
    """The same as CSV: a column for each exercise, with right, wrong or missing."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    keys = [e.key for e in list_exercises()]
    writer.writerow(["student", *keys, "right"])
    for one in grades:
        writer.writerow([one.student, *(one.verdicts[key].state for key in keys), one.right_count])
    return sink.getvalue()
