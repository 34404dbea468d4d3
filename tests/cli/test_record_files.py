"""`ekc records`: list, show, merge and export."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ekc
from ekc.devices.measurement_json import measurement_to_json
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.database.database import RecordRow, RecordStore, to_canonical_json
from ekc.search.database.rows import RecordKey
from tests.cli.conftest import CommandLine
from tests.search.helpers import law_schedules, make_measurements, tune

OP = ekc.matvec(32, 32)
SIZE = "matvec 32 32"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record file of a short run on the h100."""
    file = tmp_path_factory.mktemp("records") / "t.db"
    tune(OP, target="h100", trials=3, records=file)
    return file


@pytest.fixture
def run_file(tuned: Path, cli: CommandLine) -> Path:
    """A copy of it, t.db."""
    return Path(shutil.copy(tuned, "t.db"))


@pytest.fixture
def made(cli: CommandLine) -> Path:
    """m.db: two schedules on a GPU that does not exist, one timed and metered twice, one that failed; the
    naive schedule of another operator, timed on the a100."""
    first, second = law_schedules()[:2]
    other = make_naive_schedule(OP)

    def add(schedule: ekc.Schedule, kind: Any, payload: dict[str, Any], day: int, **changes: Any) -> None:
        status = changes.pop("status", "ok")
        operator = to_canonical_json(schedule.op.to_json())
        key = RecordKey("Made-up GPU", False, "free", "none", "580", "13.5", operator, schedule.digest)
        created = f"2026-11-{day:02}T10:00:00+00:00"
        key = replace(key, **changes)
        store.add(RecordRow(kind, key, schedule.to_json(), status, payload, created=created))

    with RecordStore("m.db") as store:
        for draw, seconds in ((1, 1e-3), (2, 3e-3)):
            timing, metering = make_measurements(seconds, 100.0)
            add(first, "timing", measurement_to_json(timing), 1, draw=draw)
            add(first, "metering", measurement_to_json(metering), 2, draw=draw, window_s=5.0)
        add(second, "failure", {}, 3, status="compile: too many registers")
        timing, _ = make_measurements(5e-6, 100.0)
        add(other, "timing", measurement_to_json(timing), 4, device="a100", simulated=True)
    return Path("m.db")


def test_list_counts_and_finds_the_best(cli: CommandLine, made: Path) -> None:
    groups = cli.json("records list m.db")["groups"]
    assert len(groups) == 2
    mine, other = groups
    assert (mine["device"], mine["simulated"], mine["clock_regime"]) == ("Made-up GPU", False, "free")
    assert mine["nvrtc"] == "13.5"
    assert [mine[name] for name in ("schedules", "timed", "metered", "failed")] == [2, 1, 1, 1]
    assert mine["best_latency_s"] == pytest.approx(2e-3)
    assert mine["best_energy_j"] == pytest.approx(0.2)
    assert (mine["first"][:10], mine["last"][:10]) == ("2026-11-01", "2026-11-03")
    assert (other["device"], other["simulated"], other["best_energy_j"]) == ("a100", True, None)
    out = " ".join(cli("records list m.db").out.split())
    assert "m.db: Made-up GPU, NVRTC 13.5, driver 580, clocks free, data none; measured 2026-11-01 to" in out
    assert "a100 (simulated)" in out
    assert "2.000 200.0" in out, "milliseconds and millijoules"


def test_list_agrees_with_best(cli: CommandLine, run_file: Path) -> None:
    (group,) = cli.json("records list t.db")["groups"]
    best = cli.json(f"best {SIZE} --records t.db --target h100 --max-slowdown 10")
    assert group["best_energy_j"] == best["energy_j"]
    assert group["timed"] == 4
    assert group["simulated"]


def test_several_files_are_listed_each(cli: CommandLine, made: Path, run_file: Path) -> None:
    files = [group["file"] for group in cli.json("records list t.db m.db")["groups"]]
    assert files == ["t.db", "m.db", "m.db"]


def test_show_sorts_by_energy_and_limits(cli: CommandLine, run_file: Path) -> None:
    (group,) = cli.json(f"records show t.db {SIZE}")["groups"]
    energies = [one["energy_j"] for one in group["shown"] if one["energy_j"]]
    assert energies == sorted(energies)
    assert len(energies) > 1
    best = cli.json(f"best {SIZE} --records t.db --target h100 --max-slowdown 10")
    assert group["shown"][0]["digest"] == best["digest"]
    assert group["shown"][0]["energy_interval_j"] == best["energy_interval_j"]
    shown = cli("records show t.db --limit 1").out
    assert "4 schedules; the first 1, --limit shows more" in " ".join(shown.split())
    assert shown.count(" ok\n") == 1


def test_failed_schedules_come_last_with_their_reason(cli: CommandLine, made: Path) -> None:
    out = cli("records show m.db matmul 128 128 128").out
    failed = law_schedules()[1].digest
    *_, row, reason = out.splitlines()
    assert (row.split()[0], row.split()[-1]) == (failed, "compile")
    assert reason == f"{failed}: compile: too many registers"


def test_show_of_one_schedule_lists_its_rows_and_steps(cli: CommandLine, made: Path) -> None:
    schedule = law_schedules()[0]
    found = cli.json(f"records show m.db {schedule.digest[:6]}")
    assert found["digest"] == schedule.digest
    assert [(one["kind"], one["draw"]) for one in found["rows"]] == [
        ("timing", 1), ("metering", 1), ("timing", 2), ("metering", 2),
    ]  # fmt: skip
    out = cli(f"records show m.db {schedule.digest[:6]}").out
    assert "metering, 5 s   2026-11-02 10:00" in out
    assert schedule.to_python() in out


def test_show_of_one_device(cli: CommandLine, made: Path) -> None:
    for target in ("a100", "'a100 (simulated)'"):
        (group,) = cli.json(f"records show m.db --target {target}")["groups"]
        assert group["device"] == "a100"
    (group,) = cli.json("records show m.db --target 'Made-up GPU'")["groups"]
    assert group["schedules"] == 2


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("show m.db", "m.db holds 2 operators (matmul"),
        ("show m.db matmul 4 4 4", "m.db holds no row of this operator; it holds matmul"),
        ("show m.db ffff", "'ffff' begins no digest in m.db; ekc records show m.db lists them"),
        ("show m.db --target h100", "holds no row of h100 (simulated); it holds rows of Made-up GPU, a100"),
        ("show m.db --target hundred", "unknown device 'hundred': choose"),
        ("show m.db --limit 0", "--limit"),
        ("show n.db", "there is no record file n.db; did you mean m.db?"),
        ("list", "Missing argument 'FILE...'"),
        ("list m.db e.db", "e.db is empty: no record was ever written to it"),
        ("merge m.db", "Missing option '--into'"),
        ("merge m.db e.txt --into all.db", "e.txt is not an SQLite file"),
        ("export m.db", "Missing option '--csv'"),
        ("export m.db --csv m.db", "m.db is an SQLite file, which would be lost; name another file"),
        ("export m.db --csv - --json", "standard output takes the CSV; name a file after --csv"),
        ("export m.db --csv no/o.csv", "--csv: cannot write no/o.csv (No such file or directory)"),
        ("mrege m.db", "No such command 'mrege'"),
        ("merge --inot all.db m.db", "No such option"),
    ],
)
def test_bad_input_is_one_line(cli: CommandLine, made: Path, command: str, words: str) -> None:
    Path("e.db").touch()
    Path("e.txt").write_text("a text\n" * 99)
    before = made.read_bytes()
    assert words in cli.refusal(f"records {command}")
    assert made.read_bytes() == before
    assert not Path("all.db").exists()


def test_merge_prints_what_it_did(cli: CommandLine, made: Path, run_file: Path) -> None:
    rows = len(list(csv.DictReader(io.StringIO(cli("records export t.db --csv -").out))))
    out = cli("records merge t.db m.db t.db --into all.db").out
    assert out == f"all.db: {rows + 6} rows, {rows + 6} of them new; {2 * rows + 6} read from 3 files\n"
    found = cli.json("records merge all.db m.db --into all.db")
    assert (found["rows"], found["added"], found["conflicts"]) == (rows + 6, 0, [])
    assert cli.json("records list all.db")["groups"][0]["file"] == "all.db"
    best = cli.json(f"best {SIZE} --records all.db --target h100")
    assert best == cli.json(f"best {SIZE} --records t.db --target h100")


def test_export_has_one_line_per_row_with_units(cli: CommandLine, made: Path) -> None:
    text = cli("records export m.db --csv -").out
    found = list(csv.DictReader(io.StringIO(text)))
    assert [one["kind"] for one in found] == ["timing", "metering"] * 2 + ["failure", "timing"]
    first, metering, failure = found[0], found[1], found[4]
    assert (float(first["latency_s"]), first["energy_j"], first["requested_window_s"]) == (1e-3, "", "")
    assert float(metering["energy_j"]) == pytest.approx(0.1)
    assert (metering["requested_window_s"], metering["latency_s"], metering["simulated"]) == ("5.0", "", "0")
    assert (failure["status"], failure["latency_s"]) == ("compile: too many registers", "")
    assert first["operator"].startswith("matmul(A[128, 128]")
    assert cli("records export m.db --csv o.csv").out == "wrote o.csv: 6 rows of m.db\n"
    assert Path("o.csv").read_text() == text
    assert cli.json("records export m.db --csv o.csv") == {"file": "m.db", "csv": "o.csv", "rows": 6}
    assert json.loads(json.dumps(found[0]))["id"] == "1"
