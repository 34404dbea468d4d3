"""`ekc tune`: its table, JSON, progress, exported kernel, records, and ways to end early."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ekc
from ekc.search.data.options import EFFORTS, Effort
from ekc.search.database.database import RecordStore
from tests.cli.conftest import CommandLine

TUNE = "tune matvec 64 64"


def test_tune_prints_one_table_and_writes_a_kernel(cli: CommandLine) -> None:
    out = cli(f"{TUNE} --trials 8 --target a100 --quiet --workers 2").out
    words = ("best", "fastest", "naive", "a100 (simulated)", "Simulated: every figure", "of roofline")
    assert all(word in out for word in (*words, "compiled PTX executed on")), out
    assert max(map(len, out.splitlines())) <= 100
    assert "\x1b" not in out
    assert "__global__" in Path("ekc-out/matvec/src/matvec_sm_80.cu").read_text()
    assert "wrote ekc-out/matvec/src/matvec_sm_80.cu" in out


def test_tune_json_has_the_attribute_names_and_progress_goes_to_stderr(cli: CommandLine) -> None:
    out, err = cli(f"{TUNE} --trials 4 --target a100 --out deep/build --json")
    got = json.loads(out)
    assert got["device"] == {"name": "a100", "simulated": True, "label": "a100 (simulated)"}
    assert {"pareto", "trials", "trial_count", "metered_count", "roofline_share", "seconds"} <= set(got)
    figures = {"schedule", "latency_s", "power_w", "energy_j", "clock_mhz", "metered", "status"}
    assert all(figures <= set(got[name]) for name in ("best", "fastest", "baseline"))
    files = {"src/matvec_sm_80.cu", "include/ekc/matvec.hpp", "matvec.json", "CMakeLists.txt"}
    assert set(got["exported"]) >= {f"deep/build/{name}" for name in files}
    assert all(Path(p).is_file() for p in got["exported"])
    assert got["spent"]["joules"] > 0
    assert "matvec on a100 (simulated): 4/4 trials" in err


def test_tune_with_effort_prints_the_stop_reason(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "quick", Effort(trials=12, expected_calls=1.0))
    out = cli(f"{TUNE} --effort quick --quiet").out
    assert "another round would not pay" in " ".join(out.split())


def test_tune_with_clocks_prints_a_second_table(cli: CommandLine) -> None:
    out = cli(f"{TUNE} --trials 4 --clocks search --quiet").out
    assert "The best schedule at other clocks, a100 (simulated)" in out


@pytest.mark.exhaustive
def test_winner_is_the_same_for_any_number_of_workers(cli: CommandLine) -> None:
    one, three = (cli.json(f"{TUNE} --trials 6 --quiet --workers {count}")["best"] for count in (1, 3))
    assert one == three


def test_time_budget_ends_with_the_best_so_far(cli: CommandLine) -> None:
    got = cli.json(f"{TUNE} --trials 100 --time-budget 1 --quiet")
    assert "time budget" in got["stopped"]
    assert got["best"]["latency_s"] > 0


@pytest.mark.slow
def test_ctrl_c_ends_with_the_best_so_far(tmp_path: Path) -> None:
    start = "import sys; from ekc.cli import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", start, *TUNE.split(), "--trials", "400", "--records", "t.db", "--quiet"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background may have inherited that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as run:
        deadline = time.monotonic() + 60
        while not has_best(tmp_path / "t.db") and time.monotonic() < deadline:
            time.sleep(0.2)
        os.kill(run.pid, signal.SIGINT)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    assert "stopped    interrupted" in out
    assert (tmp_path / "ekc-out/matvec/matvec.json").is_file()


def has_best(path: Path) -> bool:
    """Whether enough schedules are timed for a best so far."""
    try:
        with RecordStore(path, create=False) as store:
            return sum(row.status == "ok" for row in store.read_rows(kind="timing")) >= 4
    except ekc.RecordError:
        return False


@pytest.mark.parametrize(
    "command", ["export", pytest.param("tune --trials 2 --quiet", marks=pytest.mark.exhaustive)]
)
def test_overwriting_another_shape_is_logged(command: str, cli: CommandLine) -> None:
    name, options = command.split()[0], command.partition(" ")[2]
    cli(f"{name} matmul 8 8 8 --out o {options}")
    assert "held" not in cli(f"{name} matmul 8 8 8 --out o {options}").err
    err = cli(f"{name} matmul 16 8 8 --out o {options}").err
    assert "o held matmul(A[8, 8] float32, B[8, 8] float32) for" in err
    assert "another --out keeps both" in err
