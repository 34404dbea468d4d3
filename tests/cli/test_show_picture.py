"""`ekc show --svg`: pictures in a file, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

import ekc
from ekc.ir.schedule.naive import make_naive_schedule
from tests.cli.conftest import CommandLine


def test_svg_has_the_overview_or_the_picture_that_is_named(cli: CommandLine) -> None:
    naive = make_naive_schedule(ekc.matmul(64, 64, 64))
    printed = cli("show matmul 64 64 64 --svg a.svg")
    assert printed.err == "wrote a.svg\n"
    assert printed.out == cli("show matmul 64 64 64").out
    assert Path("a.svg").read_text() == naive.draw()
    assert cli.json("show matmul 64 64 64 --svg b.svg --picture threads")["svg"] == "b.svg"
    assert Path("b.svg").read_text() == naive.draw("threads")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            "--svg no/a.svg",
            "--svg: cannot write no/a.svg (No such file or directory); name a file in a folder",
        ),
        ("--svg .", "--svg: cannot write . (Is a directory)"),
        ("--svg a.svg --picture bank", "nearest is 'banks'"),
        ("--svg a.svg --picture banks", "stages nothing in shared memory; try cache_read"),
        ("--picture banks", "--picture: no file to write it into; add --svg FILE"),
    ],
)
def test_bad_picture_is_refused(cli: CommandLine, options: str, words: str) -> None:
    assert words in cli.refusal(f"show matmul 64 64 64 {options}")
    assert not Path("a.svg").exists()
