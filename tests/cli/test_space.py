"""`ekc space`: the table, JSON, the picture."""

from __future__ import annotations

from pathlib import Path

import ekc
from tests.cli.conftest import CommandLine

OP = ekc.matvec(64, 64)


def test_prints_the_table_and_draws(cli: CommandLine) -> None:
    space = ekc.space(OP, "a100")
    printed = cli("space matvec 64 64 --target a100 --svg a.svg")
    assert printed.out == f"{space}\n"
    assert printed.err == "wrote a.svg\n"
    assert Path("a.svg").read_text() == space.draw()


def test_prints_json(cli: CommandLine) -> None:
    data = cli.json("space matvec 64 64 --target a100")
    assert [s["name"] for s in data["structures"]] == [s.name for s in ekc.space(OP, "a100").structures]
    assert data["rules"][0]["name"] == "tile"


def test_refusals(cli: CommandLine) -> None:
    assert "which operator?" in cli.refusal("space")
    assert "--svg: cannot write no/a.svg" in cli.refusal("space matvec 64 64 --target a100 --svg no/a.svg")
