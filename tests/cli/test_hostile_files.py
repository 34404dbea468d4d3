"""Damaged files of each kind, and those made to harm: each gives one line and a status, within bytes and
seconds; nothing in them is executed, and nothing of the user is lost. Record files have their own tests."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ekc
from ekc.governor.saved_choice import ChoiceFile
from ekc.search.clocks.plan import ClockPlan
from tests.cli.hostile import (
    LIST,
    SAVED,
    WRONG_VALUES,
    Ended,
    assert_one_line,
    list_places,
    replace_value,
    run_here,
    run_limited,
)


def write(content: bytes) -> Callable[[Path], None]:
    return lambda path: (path.unlink(), path.write_bytes(content), None)[-1]


def link(target: str) -> Callable[[Path], None]:
    return lambda path: (path.unlink(), path.symlink_to(target), None)[-1]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 36)


def read_saved_choice() -> int:
    """Read the saved choice as `ekc govern` does: a note on standard error says why it is not used."""
    notes: list[str] = []
    found = ChoiceFile("night", {}, notes.append).read()
    sys.stderr.writelines(f"ekc: {note}\n" for note in notes)
    return 0 if found else 2


KINDS: dict[str, str | Callable[[], int]] = {
    "t.db": LIST,
    "r.gz": "recording show r.gz",
    "l.toml": "tune --model l.toml --quiet",
    "plan.json": "govern --plan plan.json -- true",
    "s.json": "show --schedule s.json",
    "t4.json": "recording search t4.json --trials 3",
    SAVED: read_saved_choice,
}
DAMAGES: dict[str, Callable[[Path], None]] = {
    "empty": write(b""),
    "cut": cut,
    "a folder": make_folder,
    "a pipe": make_pipe,
    "a link to /dev/zero": link("/dev/zero"),
    "64 GiB of zeros": make_sparse,
    "nested 10^6 times": write(b"[" * 1_000_000),
    "10^6 keys": write(b'{"a":' * 1_000_000),
    "many values": write(b"[" + b"[]," * 6_000_000 + b"[]]"),
    "blanks": write(b" " * 70_000_000),
    "wrong encoding": write("[[läyer]]".encode("latin-1")),
    "NaN": write(b"NaN"),
    "null": write(b"null"),
    "a long number": write(b"9" * 100_000),
}


LARGE = {"64 GiB of zeros", "10^6 keys", "many values", "blanks"}
"""Damages that take long to write and to read."""
ENDLESS = {"a pipe", "a link to /dev/zero", "nested 10^6 times"}
"""Damages that could take much memory or time."""


def test_undamaged_file(files: Path) -> None:
    # `ekc govern` needs a GPU, and the layer of l.toml has an open bracket, so that nothing is tuned.
    good = [use for name, use in KINDS.items() if name not in ("plan.json", "l.toml")]
    assert [run_here(use) for use in good] == [Ended(0, "")] * len(good)


@pytest.mark.parametrize(
    "damage", [pytest.param(one, marks=[pytest.mark.slow] * (one in LARGE)) for one in DAMAGES]
)
@pytest.mark.parametrize("name", KINDS)
def test_damaged_file(name: str, damage: str, files: Path) -> None:
    DAMAGES[damage](Path(name))
    ended = (run_limited if damage in LARGE | ENDLESS else run_here)(KINDS[name])
    if (name, damage) == ("r.gz", "cut"):
        # Events before the cut are whole.
        assert ended == (0, "ekc: warning: r.gz: the last event was cut short and is left out\n")
    else:
        assert_one_line(ended, "choice of an earlier run" if name == SAVED else name)


@pytest.mark.parametrize("what", [b" ", b"[", b'{"event": "timing"}\n'])
def test_recording_that_unpacks_to_half_a_gigabyte(what: bytes, files: Path) -> None:
    # Parts of a file of gzip may follow each other.
    part = gzip.compress(what * (1_000_000 // len(what)), 9)
    Path("r.gz").write_bytes(500 * part)
    assert_one_line(run_limited("recording show r.gz"), "unpacks to more than 64 MiB")
    assert Path("r.gz").stat().st_size < 5_000_000


def test_recording_of_one_part_that_unpacks_to_more_than_the_limit(files: Path) -> None:
    with gzip.open("r.gz", "wb") as file:
        for _ in range(80):
            file.write(bytes(1_000_000))
    assert_one_line(run_limited("recording show r.gz"), "unpacks to more than 64 MiB")


def test_plan_schedule_and_choice_with_a_wrong_value_anywhere(files: Path) -> None:
    readers: dict[str, Callable[[str], object]] = {
        "plan.json": lambda text: ClockPlan.from_json(json.loads(text)),
        "s.json": ekc.Schedule.from_json,
        SAVED: lambda text: (Path(SAVED).write_text(text), read_saved_choice()),
    }
    for name, read in readers.items():
        whole = Path(name).read_text()
        for place in list_places(json.loads(whole)):
            for wrong in WRONG_VALUES:
                with contextlib.suppress(ekc.EkcError):
                    read(replace_value(whole, place, wrong))
