"""Run the statements of one submission, in a process of its own.

This process is a student's: the code may do anything to it. So nothing is judged here. `check` sends each
answer to the grader, as JSON, and a function as a number: the grader asks for its values.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import numpy as np

import ekc.course
from ekc.course.answers import RECORDED, Feedback, describe_error, find_exercise
from ekc.ir.schedule.schedule import Schedule
from ekc.processes.child import exit_with_parent

MEMORY_BYTES, FILE_BYTES = 4 << 30, 256 << 20
"""Limits of a process: of its data, and of a file that it writes."""
MAX_ELEMENTS = 4096
"""Elements of an array that is sent; larger ones are sent as the name of their type."""
MAX_DEPTH = 8
"""Lists in lists that are sent; deeper ones are sent as the name of their type."""


class TimeIsUp(BaseException):
    """A statement takes too long. No Exception, so that a student's `except Exception` does not catch it."""


class Submission:
    """Executes statements, and answers the grader."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._functions: list[Callable[..., Any]] = []
        self._runs_student_code = self._is_time_up = False
        self._seconds_left = 0.0
        """Seconds that the code of the present statement may still run."""

    def serve(self) -> None:
        """Run what the grader sends until it closes the connection."""
        signal.signal(signal.SIGALRM, self._end_statement)
        namespace: dict[str, Any] = {}
        while True:
            try:
                request = self._receive()
            except EOFError:
                return
            if "folder" in request:
                os.chdir(request["folder"])
                sys.path[0] = request["folder"]
                namespace = {"__name__": "__main__"}
            else:
                self._send({"done": True, "error": self._run(request, namespace)})

    def _run(self, request: dict[str, Any], namespace: dict[str, Any]) -> str | None:
        """Run a statement; the text of its error, or None."""
        self._is_time_up, self._seconds_left = False, request["seconds"]
        try:
            self._call_student(exec, compile(request["statement"], "answer", "exec"), namespace)
        except TimeIsUp:
            return f"stopped after {request['seconds']:g} s"
        except BaseException as problem:
            # SystemExit of a student ends no more than the statement.
            return describe_error(problem)
        return None

    def _call_student(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a student's code. It alone is interrupted when its time is up, and its time alone counts."""
        if self._is_time_up or self._seconds_left <= 0:
            raise TimeIsUp
        start = time.monotonic()
        self._runs_student_code = True
        signal.setitimer(signal.ITIMER_REAL, self._seconds_left)
        try:
            return function(*arguments)
        finally:
            self._runs_student_code = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._seconds_left -= time.monotonic() - start

    def _end_statement(self, number: int, frame: FrameType | None) -> None:
        self._is_time_up = True
        if self._runs_student_code:
            raise TimeIsUp

    def check(self, lesson: Any, exercise: Any, answer: Any, seed: Any = None) -> Feedback:
        """`ekc.course.check` while grading: sends the answer, and does not say whether it is right.

        The grader draws its own cases, whatever the seed."""
        ekc.course.load_exercises()
        entry = find_exercise(lesson, exercise)
        self._runs_student_code = False
        self._seconds_left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        self._send({"key": entry.key, "answer": self._encode(answer)})
        while "call" in (request := self._receive()):
            self._send(self._call(request))
        # The rest of the statement runs on, in what is left of its time.
        self._runs_student_code = True
        if self._seconds_left <= 0:
            raise TimeIsUp
        signal.setitimer(signal.ITIMER_REAL, self._seconds_left)
        return Feedback(RECORDED, "", entry.key)

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call a function that was sent as an answer."""
        try:
            return {
                "value": self._encode(
                    self._call_student(self._functions[request["call"]], *request["arguments"])
                )
            }
        except TimeIsUp:
            return {"error": "no value in the time that there is"}
        except BaseException as problem:
            return {"error": describe_error(problem)}

    def _encode(self, value: Any, depth: int = 0) -> Any:
        """A value as JSON: plain values as they are, all else as an object with one key."""
        if value is ...:
            return {"missing": True}
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, np.ndarray) and value.size <= MAX_ELEMENTS:
            value = value.tolist()
        if isinstance(value, Fraction | Decimal):
            value = float(value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Schedule):
            return {"schedule": value.to_json()}
        if isinstance(value, list | tuple) and depth < MAX_DEPTH:
            return [self._encode(v, depth + 1) for v in value]
        if callable(value):
            self._functions.append(value)
            return {"function": len(self._functions) - 1}
        return {"type": type(value).__name__}

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.send_bytes(json.dumps(message).encode())

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._connection.recv_bytes())
        return message


def serve_submission(connection: Connection, lifeline: Connection) -> None:
    """Serve the grader at the other end; ends when it closes the lifeline."""
    os.setsid()
    exit_with_parent(lifeline.fileno())
    for limit, amount in (
        (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (amount, amount))
    warnings.simplefilter("ignore")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    submission = Submission(connection)
    ekc.course.check = submission.check
    submission.serve()
