"""Each command on tiny inputs: printed text, written files, JSON."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import ekc
from ekc.cli import main
from ekc.cli.main import ekc as command_group
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from tests.ir.warpgroup_examples import half_group_matmul
from tests.runtime import faults
from tests.runtime.test_atomic import matvec_shared

EKC = [sys.executable, "-c", "import sys; from ekc.cli import main; sys.exit(main())"]
SIZE = ["matmul", "32", "32", "32"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run_command(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    """Standard output of a command."""
    capsys.readouterr()
    assert main(words) == status, capsys.readouterr().err
    return capsys.readouterr().out


def json_of(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    """The one JSON object that a command prints."""
    value = json.loads(run_command(capsys, *words, "--json", status=status))
    assert isinstance(value, dict)
    return value


def test_tune_prints_one_table_and_writes_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_command(capsys, "tune", *SIZE, "--trials", "8", "--target", "a100", "--quiet", "--workers", "2")
    for word in (
        "best",
        "fastest",
        "naive",
        "a100 (simulated)",
        "Simulated: every figure",
        "compiled PTX executed on",
        "of roofline",
    ):
        assert word in out
    assert max(map(len, out.splitlines())) <= 100
    assert "\x1b" not in out
    assert "extern" in Path("ekc-out/matmul.cu").read_text()
    assert "wrote ekc-out/matmul.cu" in out


def test_tune_json_has_the_attribute_names(capsys: pytest.CaptureFixture[str]) -> None:
    got = json_of(capsys, "tune", *SIZE, "--trials", "4", "--target", "a100", "--out", "deep/build")
    assert got["device"] == {"name": "a100", "simulated": True, "label": "a100 (simulated)"}
    assert {"pareto", "trials", "trial_count", "metered_count", "roofline_share", "seconds"} <= set(got)
    for name in ("best", "fastest", "baseline"):
        assert {"schedule", "latency_s", "power_w", "energy_j", "clock_mhz", "metered", "status"} <= set(
            got[name]
        )
    assert set(got["exported"]) == {
        f"deep/build/{name}" for name in ("matmul.cu", "matmul.h", "matmul.json", "ekc.cmake")
    }
    assert all(Path(p).is_file() for p in got["exported"])


def test_tune_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *SIZE, "--trials", "4", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["spent"]["joules"] > 0
    assert "4 trials in 1 round: 4 compiles of about" in err
    assert "virtual time (a100 (simulated))" in err
    assert "4/4" in err


def test_resumed_run_prints_the_timings_on_file(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tune", *SIZE, "--trials", "4", "--records", "t.db"]
    assert main(command) == 0
    assert "on file" not in capsys.readouterr().err
    assert main(command) == 0
    assert "; 5 timings on file are not made again" in capsys.readouterr().err
    assert main([*command, "--target", "rtx4090"]) == 0
    err = capsys.readouterr().err
    assert "not made again" not in err
    assert "; on file: 5 on a100 (simulated)" in err


def test_tune_with_effort_prints_the_stop_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ekc.search.data.options import EFFORTS, Effort

    monkeypatch.setitem(EFFORTS, "quick", Effort(trials=12, expected_calls=1.0))
    out = run_command(capsys, "tune", "matvec", "64", "64", "--effort", "quick", "--quiet")
    assert "another round would not pay" in " ".join(out.split())


def test_tune_with_clocks_prints_a_second_table(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_command(capsys, "tune", *SIZE, "--trials", "4", "--clocks", "search", "--quiet")
    assert "The best schedule at other clocks, a100 (simulated)" in out


def test_winner_is_the_same_for_any_number_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    one = json_of(capsys, "tune", *SIZE, "--trials", "6", "--quiet", "--workers", "1")
    two = json_of(capsys, "tune", *SIZE, "--trials", "6", "--quiet", "--workers", "3")
    assert one["best"] == two["best"]


def test_time_budget_ends_with_the_best_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    got = json_of(capsys, "tune", *SIZE, "--trials", "400", "--time-budget", "4", "--quiet")
    assert "time budget" in got["stopped"]
    assert got["best"]["latency_s"] > 0


@pytest.mark.slow
def test_ctrl_c_ends_with_the_best_so_far(tmp_path: Path) -> None:
    command = [*EKC, "tune", *SIZE, "--trials", "400", "--records", "t.db", "--quiet"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background may have inherited that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as run:
        deadline = time.monotonic() + 60
        while not _rows(tmp_path / "t.db") and time.monotonic() < deadline:
            time.sleep(0.2)
        os.kill(run.pid, signal.SIGINT)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    assert "stopped    interrupted" in out
    assert (tmp_path / "ekc-out/matmul.cu").is_file()


def _rows(path: Path) -> bool:
    """Whether enough schedules are timed for a best so far."""
    from ekc.search.database.database import RecordStore

    try:
        with RecordStore(path, create=False) as store:
            return sum(row.status == "ok" for row in store.read_rows(kind="timing")) >= 4
    except ekc.RecordError:
        return False


LAYERS = """
[[layer]]
name = "first"
model = "net"
operator = "matmul"
count = 2
m = 16
n = 16
k = 16

[[layer]]
name = "same again"
model = "net"
operator = "matmul"
m = 16
n = 16
k = 16

[[layer]]
name = "image"
model = "other net"
operator = "conv2d"
n = 1
c = 2
h = 6
w = 6
out_channels = 4
kernel = [3, 1]
epilogue = "relu(y + bias)"
inputs = { bias = [4, 1, 1] }
"""


def test_layers_are_tuned_once_each(capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.toml").write_text(LAYERS)
    # The second run reads the measurements of the first.
    options = ("--trials", "4", "--quiet", "--out", "o", "--records", "t.db")
    out = run_command(capsys, "tune", "--layers", "net.toml", *options)
    assert "a100 (simulated)" in out
    assert "net: 3 calls" in out
    assert len(list(Path("o").glob("*/*.cu"))) == 2
    got = json_of(capsys, "tune", "--layers", "net.toml", *options)
    assert [(x["name"], x["count"]) for x in got["layers"]] == [("first", 3), ("image", 1)]


def test_epilogue_is_run_with_its_operator(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--epilogue", "gelu(c + bias)", "--input", "bias=32")
    assert "agrees with the reference" in run_command(capsys, "run", *SIZE, *options)
    assert "C_out[i, j] = " in run_command(capsys, "show", *SIZE, *options)


def test_run_prints_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_command(capsys, "run", *SIZE)
    assert "the compiled PTX, on the CPU" in out
    assert "sanitizer  found nothing" in out
    assert "agrees with the reference" in out
    got = json_of(capsys, "run", "einsum", "bij,bjk->bik", "2x5x7", "2x7x3", "--seed", "3")
    assert got["ok"]
    assert got["max_error"] <= got["tolerance"]
    assert got["executed_by"] == "ekc.emulator: the compiled PTX, on the CPU"
    assert [(x["findings"], x["right"]) for x in got["launches"]] == [([], True)]
    assert got["blocks"] == got["total_blocks"] == sum(x["blocks"] for x in got["launches"])


def test_run_takes_separate_element_types(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("run", "matvec", "8", "48", "--dtype", "int8")
    assert "inputs     int8 uniform, seed 0" in run_command(capsys, *command)
    got = json_of(capsys, *command, "--out-dtype", "float32")
    assert got["ok"]
    made = got["operator"]["computes"][0]
    assert (made["acc_dtype"], made["output"][2]) == ("int32", "float32")
    got = json_of(capsys, *command, "--acc-dtype", "float32")
    assert got["ok"]
    assert got["operator"]["computes"][0]["acc_dtype"] == "float32"


def test_run_samples_blocks_of_a_large_grid(capsys: pytest.CaptureFixture[str]) -> None:
    assert "blocks     64 of 1024 blocks" in run_command(capsys, "run", "matmul", "512", "512", "512")


def test_run_has_status_1_for_a_wrong_result(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ekc.ir.interpreter.tolerance.estimate_rounding", lambda compute, scale, stored: 0.0)
    assert "DOES NOT AGREE" in run_command(capsys, "run", *SIZE, status=1)


@pytest.mark.parametrize(
    ("fault", "run_says", "check_says"),
    [
        (faults.far_store, "NOT SAFE: see what the sanitizer found", "out-of-bounds: store of"),
        (faults.squared, "DOES NOT AGREE with the reference", "result     DOES NOT AGREE"),
    ],
)
def test_faulty_kernel_is_reported_by_run_and_check(
    fault: Callable[[str], str],
    run_says: str,
    check_says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spoiled(*given: Any) -> CompiledKernel:
        return faults.spoiled(compile_schedule(*given), fault)

    monkeypatch.setattr("ekc.runtime.kernel.compile_schedule", spoiled)
    assert run_says in run_command(capsys, "run", *SIZE, status=1)
    assert check_says in run_command(capsys, "check", *SIZE, status=1)
    got = json_of(capsys, "run", *SIZE, status=1)
    assert not got["ok"]
    found = [f["kind"] for x in got["launches"] for f in x["findings"]]
    assert found == (["out-of-bounds"] if fault is faults.far_store else [])


def _tiled(path: Path) -> Path:
    schedule = (
        ekc.Schedule(ekc.matmul(64, 64, 64))
        .split("i", (16, 4))
        .split("j", (16, 4))
        .split("k", (8,))
        .reorder("i.0", "j.0", "i.1", "j.1", "k.0", "k.1", "i.2", "j.2")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("j.1", "thread.x")
        .cache_write("C", vector=4)
        .cache_read("B", "shared", at="k.0", vector=4)
    )
    path.write_text(schedule.to_json())
    return path


def test_check_prints_static_facts_and_counts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(_tiled(tmp_path / "s.json"))
    out = run_command(capsys, "check", "--schedule", file, "--target", "a100")
    for word in (
        "registers",
        "spills",
        "occupancy",
        "ld.global.nc.f32",
        "st.global.v4.f32",
        "ld.shared.v4.f32",
        "limits of a100 (simulated)",
        "1 of 1 blocks, on the CPU",
        "agrees with the reference",
        "no findings",
    ):
        assert word in out
    (launch,) = json_of(capsys, "check", "--schedule", file, "--arch", "sm_90")["launches"]
    assert launch["shared_bytes"] == 8 * 64 * 4
    assert launch["vector_accesses"]["st.global.v4"] == 4
    assert launch["occupancy"]["warps"] <= launch["occupancy"]["of_warps"]
    counters = launch["executed"]["counters"]
    assert counters["lane_instructions"]["fma.f32"] == 64**3
    assert counters["global_store_sectors"] == 64 * 64 * 4 // 32
    assert launch["executed"]["blocks"] == launch["executed"]["total_blocks"] == 1
    # The shared tile is filled 8 times over; threads wait before and after.
    assert counters["barriers"] == 16


def test_check_lists_every_refusal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    schedule = ekc.Schedule(ekc.matmul(4096, 4096, 4096)).bind("i", "thread.x").cache_read("B", "shared")
    (tmp_path / "s.json").write_text(schedule.to_json())
    out = run_command(capsys, "check", "--schedule", "s.json", status=1)
    assert "threads per block" in out
    assert "shared memory" in out
    refusals = json_of(capsys, "check", "--schedule", "s.json", status=1)["refusals"]
    assert {"threads per block", "shared memory"} <= {r["rule"] for r in refusals}
    assert all(set(r) == {"rule", "need", "limit", "nearest"} for r in refusals)


def test_check_uses_the_limits_of_the_arch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "schedule.json"
    file.write_text(half_group_matmul().to_json())
    (launch,) = json_of(capsys, "check", "--schedule", str(file), "--arch", "sm_90a")["launches"]
    assert launch["executed"]["counters"]["warp_instructions"]["wgmma"] == 512
    assert main(["check", "--schedule", str(file), "--arch", "sm_90"]) == 1
    assert "only sm_90a has the instruction   use mma.m16n8k16" in capsys.readouterr().out


def test_show_prints_python_program_cuda_and_ptx(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_command(capsys, "show", "matvec", "64", "32", "--cuda")
    for word in ("ekc.Schedule(op)", "naive schedule", "block.x", "__global__"):
        assert word in out
    assert ".visible .entry ekc_matvec(" in run_command(
        capsys, "show", "matvec", "64", "32", "--ptx", "--target", "h100"
    )
    assert (
        ".target sm_90" in json_of(capsys, "show", "matvec", "64", "32", "--ptx", "--target", "h100")["ptx"]
    )
    got = json_of(capsys, "show", "matvec", "64", "32")
    assert set(got) == {"operator", "schedule", "digest", "origin", "python", "program"}


def test_show_uses_the_shared_memory_of_the_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tile = ekc.Schedule(ekc.matmul(128, 128, 192)).bind("i", "block.x").bind("j", "thread.x")
    (tmp_path / "s.json").write_text(tile.cache_read("B", "shared").to_json())
    given = ("show", "--schedule", str(tmp_path / "s.json"), "--cuda")
    assert "__global__" in run_command(capsys, *given, "--target", "a100"), "96 KiB of 163"
    assert main([*given, "--target", "rtx2080ti"]) == 2
    assert "shared memory: 98304 bytes, at most 65536" in capsys.readouterr().err


def test_best_show_and_export_read_a_record_file(capsys: pytest.CaptureFixture[str]) -> None:
    run_command(capsys, "tune", *SIZE, "--trials", "4", "--target", "h100", "--records", "t.db", "--quiet")
    where = ("--records", "t.db", "--target", "h100")
    out = run_command(capsys, "best", *SIZE, *where)
    assert "h100 (simulated)" in out
    found = json_of(capsys, "best", *SIZE, *where)
    assert found["metered"]
    assert json_of(capsys, "show", *SIZE, *where)["digest"] == found["digest"]
    exported = json_of(capsys, "export", *SIZE, *where, "--out", "o")["exported"]
    assert {Path(p).name for p in exported} == {"matmul.cu", "matmul.h", "matmul.json", "ekc.cmake"}
    assert "h100 (simulated)" in Path("o/matmul.h").read_text()
    assert json_of(capsys, "show", "--schedule", "o/matmul.json")["digest"] == found["digest"]
    assert main(["run", *SIZE, *where]) == 0


def test_best_follows_the_objective(capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--records", "t.db", "--target", "a100")
    run_command(capsys, "tune", *SIZE, "--trials", "4", *where, "--quiet")
    fast = json_of(capsys, "best", *SIZE, *where, "--objective", "latency")["digest"]
    _make_it_cost_more(Path("t.db"), fast)
    by_energy, by_latency = ("--max-slowdown", "10"), ("--objective", "latency")
    thrifty = json_of(capsys, "best", *SIZE, *where, *by_energy)["digest"]
    assert thrifty != fast
    for chosen, digest in ((by_energy, thrifty), (by_latency, fast)):
        assert json_of(capsys, "best", *SIZE, *where, *chosen)["digest"] == digest
        assert json_of(capsys, "export", *SIZE, *where, *chosen, "--out", "o")["digest"] == digest
        assert json_of(capsys, "explain", digest, "best", *where, *chosen)["difference_j"] == 0
    assert "by latency" in Path("o/matmul.h").read_text()
    assert "best by latency (B)" in run_command(
        capsys, "explain", "naive", "best", *SIZE, *where, *by_latency
    )
    assert "by energy, at most 1000 % slower" in run_command(capsys, "best", *SIZE, *where, *by_energy)


def _make_it_cost_more(records: Path, digest: str) -> None:
    """Multiply power and energy of a recorded schedule by ten."""
    with sqlite3.connect(records) as connection:
        query = "select id, payload from trials where kind = 'metering' and schedule_digest = ?"
        for number, text in connection.execute(query, (digest,)).fetchall():
            payload = json.loads(text)
            payload |= {name: 10 * payload[name] for name in ("power_w", "energy_j")}
            connection.execute("update trials set payload = ? where id = ?", (json.dumps(payload), number))
    connection.close()


def test_best_notes_atomic_sums(capsys: pytest.CaptureFixture[str]) -> None:
    given, shape = matvec_shared(2048), ("matvec", "64", "65536")
    ekc.tune(
        given.op, "a100", trials=3, seed=0, start=[given], objective="latency", records="t.db", progress=False
    )
    out = run_command(capsys, "best", *shape, "--records", "t.db", "--target", "a100")
    assert '.atomic("y")' in out
    assert "results differ from run to run by rounding" in " ".join(out.split())


def test_export_without_figures_notes_it(capsys: pytest.CaptureFixture[str]) -> None:
    run_command(capsys, "export", *SIZE, "--out", "o")
    assert "not measured" in Path("o/matmul.h").read_text()


def test_two_names_share_a_folder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_command(capsys, "export", "matmul", "8", "8", "8", "--out", "o")
    run_command(capsys, "export", "matmul", "16", "8", "8", "--out", "o", "--name", "wide")
    text = Path("o/wide.cu").read_text()
    assert "ekc_wide(" in text
    assert "ekc_matmul" not in text
    assert "ekc_wide_launch" in Path("o/wide.h").read_text()
    assert json.loads(Path("o/wide.json").read_text())["launches"][0]["name"] == "ekc_wide"
    assert "ekc_matmul(" in Path("o/matmul.cu").read_text()


def test_overwriting_another_shape_is_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in (["export"], ["tune", "--trials", "2", "--quiet"]):
        main([*command, "matmul", "8", "8", "8", "--out", "o"])
        capsys.readouterr()
        main([*command, "matmul", "8", "8", "8", "--out", "o"])
        assert capsys.readouterr().err == ""
        main([*command, "matmul", "16", "8", "8", "--out", "o"])
        err = capsys.readouterr().err
        assert "o held matmul(A[8, 8] float32, B[8, 8] float32)" in err
        assert "--name matmul_16x8 keeps both" in err


def test_doctor_prints_versions_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_command(capsys, "doctor")
    for word in ("nvrtc", "sm_80", "xgboost", "a100", "cache"):
        assert word in out
    assert json_of(capsys, "doctor")["nvrtc"]["version"]


def test_version_and_help_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert ekc.__version__ in run_command(capsys, "--version")
    assert len(list(_every(command_group))) >= 14
    for words, command in _every(command_group):
        text = run_command(capsys, *words, "--help")
        if isinstance(command, click.Group):
            assert all(f"\n  {name} " in text for name in command.commands), words
        else:
            assert ("--json" in text) is (words != ["recording", "t4"]), words


def _every(command: click.Command, *words: str) -> Iterator[tuple[list[str], click.Command]]:
    """(words, command) of a command and all its subcommands."""
    yield list(words), command
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _every(below, *words, name)


def test_closed_stdout_has_no_traceback(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*EKC, "show", "matmul", "64", "64", "64"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.close()
        assert run.stderr.read() == b""


def test_warning_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("")
    monkeypatch.setenv("EKC_CACHE_DIR", "file/cache")
    assert main(["check", *SIZE]) == 0
    err = capsys.readouterr().err
    assert err.startswith("ekc: warning: compile cache file/cache cannot be written")
    assert err.count("\n") == 1
