"""`ekc explain` on a simulated device: schedule files, record files, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

import ekc
from ekc.cli.output import format_signed
from ekc.ir.schedule.naive import make_naive_schedule
from tests.cli.conftest import CommandLine

MM = ekc.matmul(64, 64, 64)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record file with two operators on a100, one of them also on h100."""
    path = tmp_path_factory.mktemp("records") / "t.db"
    for op, target in ((MM, "a100"), (ekc.matvec(64, 64), "a100"), (MM, "h100")):
        ekc.tune(op, target=target, trials=6, records=path, progress=False)
    return path


def test_explain_compares_schedule_files(cli: CommandLine, tmp_path: Path) -> None:
    one, other = tmp_path / "a.json", tmp_path / "b.json"
    one.write_text(make_naive_schedule(MM).to_json())
    other.write_text(ekc.Schedule(MM).bind("i", "block.x").bind("j", "thread.x").cache_write("C").to_json())
    out = cli(f"explain {one} {other} --target a100").out
    words = ("a100 (simulated)", "multiply-add", "L2 data", "constant power x time", "B - A")
    assert all(word in out for word in words), out
    assert "DRAM data" not in out, "L2 keeps all of it from call to call"
    assert max(map(len, out.splitlines())) <= 100 + len(str(tmp_path)) * 2
    got = cli.json(f"explain {one} {other} --target a100")
    assert got["device"] == {"name": "a100", "simulated": True}
    assert sum(c["difference_j"] for c in got["causes"]) == pytest.approx(got["difference_j"])
    assert got["difference_j"] == pytest.approx(got["b"]["energy_j"] - got["a"]["energy_j"])


def test_explain_compares_recorded_schedules(cli: CommandLine, records: Path) -> None:
    where = f"--records {records} --target a100"
    digest = ekc.best(MM, records=records, target="a100").schedule.digest
    got = cli.json(f"explain naive best matmul 64 64 64 {where}")
    assert got["digest_b"] == digest
    assert got["digest_a"] == make_naive_schedule(MM).digest
    assert got["difference_j"] < 0
    assert cli.json(f"explain {digest[:8]} {digest} {where}")["difference_j"] == 0
    # On h100 there is one operator, so it need not be named.
    fast = cli.json(f"explain best fastest --records {records} --target h100")
    assert fast["a"]["latency_s"] >= fast["b"]["latency_s"] * 0.99


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("best fastest", "holds 2 operators"),
        ("best fastest matmul 65 64 64", "no metered schedule"),
        ("best 12 matmul 64 64 64", "is no schedule of"),
        ("zzzz best matmul 64 64 64", "is no schedule of"),
        ("best gone.json matmul 64 64 64", "gone.json cannot be read"),
        ("best fastest matmul 64 64 64 --target rtx3090", "no metered schedule"),
        ("best fastest --target rtx3090", "nothing was metered on rtx3090 (simulated)"),
        ("best fastest --target a1000", "did you mean 'a100'"),
    ],
)
def test_unknown_schedules_are_refused(cli: CommandLine, records: Path, words: str, expected: str) -> None:
    assert expected in cli.refusal(f"explain {words} --records {records}")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("a.json a.json conv2d", "OPERATOR: A and B name their own operators"),
        ("naive naive matmul 16 16 16 --records none.db", "--records: neither A nor B is in a record file"),
        ("a.json naive matmul 16 16 16 --records none.db", "--records: neither A nor B is in a record file"),
        ("fastest naive matmul 4 4 4 --records none.db --objective edp", "--objective: it defines the best"),
    ],
)
def test_unused_options_are_refused(cli: CommandLine, words: str, expected: str) -> None:
    Path("a.json").write_text(make_naive_schedule(MM).to_json())
    assert expected in cli.refusal(f"explain {words} --target a100")


def test_figures_that_round_to_0_have_no_sign() -> None:
    assert [format_signed(x, 1.0) for x in (-1e-9, -0.0, 0.0, 1e-9)] == ["0.000"] * 4
    assert [format_signed(x, 1.0) for x in (-0.25, 0.25)] == ["-0.250", "+0.250"]


def test_account_without_residual_has_no_row_for_it(cli: CommandLine, tmp_path: Path) -> None:
    one, other = tmp_path / "a.json", tmp_path / "b.json"
    one.write_text(make_naive_schedule(MM).to_json())
    other.write_text(ekc.Schedule(MM).bind("i", "block.x").bind("j", "thread.x").cache_write("C").to_json())
    out = cli(f"explain {one} {other} --target a100@no-residual").out
    assert "unexplained by events" not in out
    assert "-0.000" not in out
    assert "unexplained by events" in cli(f"explain {one} {other} --target a100").out
