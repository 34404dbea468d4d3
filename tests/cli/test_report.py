"""`ekc report` and `ekc tune --report`: the page is there, and its size by part is printed."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.conftest import CommandLine

SIZE = re.compile(r"(\S+): \d\.\d\d MB \(plotly \d\.\d\d, pictures .*, code .*, drawings .*, text .*\)$")
LAYERS = """
[[layer]]
name = "<b>one</b>"
operator = "matvec"
count = 2
m = 16
k = 16
"""


def test_report_of_a_run_and_of_its_records(cli: CommandLine) -> None:
    tuned = cli("tune matvec 16 16 --target a100 --trials 3 --records r.db --out o --report a.html --quiet")
    line = SIZE.search(tuned.err.strip())
    assert line
    assert line[1] == "a.html"
    assert "matvec(A[16, 16] float32" in Path("a.html").read_text()
    printed = cli("report r.db matvec 16 16 --target a100 --out b.html").out.strip()
    assert SIZE.match(printed)
    assert "a record file does not hold it" in Path("b.html").read_text()
    found = cli.json("report r.db")
    assert found["report"] == "report.html"
    assert sum(found["bytes"].values()) == Path("report.html").stat().st_size
    assert "holds no matmul" in cli.refusal("report r.db matmul 8 8 8")
    assert "did you mean r.db" in cli.refusal("report rr.db")
    assert "--depth" in cli("report r.db --depth 3", status=2).err


def test_no_file_of_measurements_is_replaced_by_a_page(cli: CommandLine) -> None:
    same = "tune matvec 16 16 --target a100 --trials 1 --records r.db --quiet --out o --report"
    assert "r.db is a file of measurements" in cli.refusal(f"{same} r.db")
    cli(f"{same} r.html")
    before = Path("r.db").read_bytes()
    assert "r.db is a file of measurements" in cli.refusal("report r.db --out ./r.db")
    Path("notes.txt").write_text("keep me")
    assert "notes.txt exists and is no HTML page" in cli.refusal("report r.db --out notes.txt")
    assert Path("notes.txt").read_text() == "keep me"
    assert Path("r.db").read_bytes() == before
    cli("report r.db --out r.html")


def test_page_of_layers_is_checked_before_the_search(cli: CommandLine) -> None:
    Path("net.toml").write_text(LAYERS)
    assert "report: . is a folder" in cli.refusal("tune --model net.toml --target a100 --report .")
    assert not Path("ekc-out").exists()
    tuned = cli("tune --model net.toml --target a100 --trials-per-layer 2 --out o --report net.html --quiet")
    assert SIZE.search(tuned.err.strip())
    html = Path("net.html").read_text()
    assert "Layers of net" in html
    assert "<b>one</b>" not in html
