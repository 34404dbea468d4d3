"""The part `library`: a scripted GPU for ekc, and the fake driver for the programs of the library."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ekc
from benchmarks.gpu import library
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.folder import TUNING
from benchmarks.gpu.kit import Budget, Kit
from ekc import devices
from ekc.codegen.library.build import KernelChoice, build_library
from ekc.codegen.library.function_plan import NamedOperator
from ekc.codegen.library.kernels import Bundle, KernelFigures, TargetBoard
from ekc.codegen.library.write import write_bundle
from ekc.errors import EkcError
from ekc.ir.schedule.naive import make_naive_schedule
from tests.bundle.fakes import build_fakes, describe_kernels
from tests.codegen.helpers import WARNINGS, must_run, needs_nvcc
from tests.scripted.cuda.node import ScriptedNode

EMBEDDED, COMPILED = library.FORMS
LAUNCH_US, NAIVE_LAUNCH_US = 10, 40
"""Time of a launch on the fake driver."""


@pytest.fixture(scope="module", name="fakes")
def make_fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the fake driver and NVML."""
    folder = tmp_path_factory.mktemp("fakes")
    build_fakes(folder)
    return folder


@pytest.fixture(name="node")
def make_node(fakes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scripted GPU `cuda:0`, the fake driver for other programs, and a small operator; no nvcc."""
    node, real = ScriptedNode(), devices.open
    monkeypatch.setattr(
        devices, "open", lambda t="auto": node.open(t, launch_s=1e-3) if t.startswith("cuda") else real(t)
    )
    monkeypatch.setattr(library, "OPERATORS", (ekc.matmul(16, 16, 16),))
    monkeypatch.setattr(library, "DRAWN", 1)
    monkeypatch.setattr(library, "shutil", SimpleNamespace(which=lambda name: None))

    def write(bundle: Bundle, folder: Path, cubin: bool) -> None:
        write_bundle(bundle, folder, cubin=cubin)
        (tmp_path / "kernels.txt").write_text(describe_kernels(bundle))
        first = bundle.kernels[0].compiled.launches[0].name
        monkeypatch.setenv("FAKE_FAULT", f"{first} {os.environ.get('FAULT', '')}")

    monkeypatch.setattr(library, "write_bundle", write)
    variables = {
        "CXXFLAGS": "-O0",
        "LD_LIBRARY_PATH": f"{fakes / 'driver'}:{fakes / 'nvml'}",
        "FAKE_KERNELS": str(tmp_path / "kernels.txt"),
        "FAKE_CAPABILITY": "80",
        "FAKE_NAME": "Scripted A100",
        "FAKE_GRAPHS": "run",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def read_rows(folder: Path) -> list[dict[str, Any]]:
    rows = map(json.loads, (folder / "rows.jsonl").read_text().splitlines())
    return [row for row in rows if row["part"] == "library"]


@pytest.mark.usefixtures("node")
def test_library_is_built_checked_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["library", "--out", str(out)]) == 0
    *absent, row, used = read_rows(out)
    assert [one["item"] for one in absent] == [COMPILED, f"{COMPILED}, calls"]
    assert {one["status"] for one in absent} == {"not run"}
    assert (row["item"], row["status"]) == (EMBEDDED, "ok")
    assert (used["item"], used["status"]) == (f"{EMBEDDED}, calls", "ok")
    (called,) = used["calls"]["functions"]
    assert (called["extents"], [called[fault] for fault in library.FAULTS]) == ([16, 16, 16], [None] * 3)
    assert used["calls"]["plain_s"] == pytest.approx(1e-6 * LAUNCH_US)
    assert used["calls"]["graph_s"] == pytest.approx(1e-6 * LAUNCH_US)
    (checked,), (own,) = row["check"]["kernels"], row["own"]
    assert checked["latency_s"] == pytest.approx(1e-6 * LAUNCH_US)
    assert checked["naive_latency_s"] == pytest.approx(1e-6 * NAIVE_LAUNCH_US)
    assert checked["energy_j"] > 0
    assert (len(own["latency_s"]), len(own["energy_j"])) == (library.TURNS, library.WINDOWS)
    report = capsys.readouterr().out
    assert "library: 1 of 1 kernels right, on Scripted A100 (cuda:0)" in report
    assert re.search(r"\ncubin +matmul_float32 16x16x16 +right +10 ", report), report
    ratio = checked["latency_s"] / sorted(value for value, _, _ in own["latency_s"])[1]
    assert f" {ratio:.3f} " in report
    assert f"  {COMPILED}: nvcc is not on the PATH" in report
    assert "schedules: best of 2 on a100 (simulated)" in report
    assert "cubin, calls: 1 of 1 functions give the same from a graph and on two streams" in report
    assert main(["library", "--out", str(out)]) == 0
    assert len(read_rows(out)) == 6, "what was checked is not checked again"


@pytest.fixture(scope="module", name="calls")
def build_calls(fakes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that uses a library, built with the sources of one of two naive kernels."""
    folder = tmp_path_factory.mktemp("calls")
    operators = ekc.matmul(16, 16, 16), ekc.softmax((4, 64))
    choices = {
        op.digest: [KernelChoice(make_naive_schedule(op), KernelFigures(1e-5, 1e-3, True))]
        for op in operators
    }
    board = TargetBoard("a100", "sm_80", True)
    named = [NamedOperator(op) for op in operators]
    bundle = build_library(library.NAME, named, choices, board, devices.open("a100").limits)
    write_bundle(bundle, folder, cubin=True)
    (folder / "kernels.txt").write_text(describe_kernels(bundle))
    (folder / "names.txt").write_text("\n".join(k.compiled.launches[0].name for k in bundle.kernels))
    words = library.list_build_words(bundle, folder, folder / "calls")
    must_run(*words, "-O0", *WARNINGS, folder=folder)
    return folder


@pytest.mark.parametrize(
    ("facts", "status", "faults"),
    [
        pytest.param({}, 0, {}, id="right"),
        pytest.param({"FAULT": "graph"}, 1, {"graph": "1 elements differ, the first is 255"}, id="graph"),
        pytest.param({"FAULT": "stream"}, 1, {"streams": "1 elements differ, the first is 255"}, id="stream"),
    ],
)
def test_graph_and_streams_are_compared_with_plain_calls(
    calls: Path, fakes: Path, tmp_path: Path, facts: dict[str, str], status: int, faults: dict[str, str]
) -> None:
    """Two functions; a fault of one of them is found, and named where it is."""
    done = run_calls(calls, fakes, tmp_path / "found.json", **facts)
    assert done.returncode == status, done.stdout + done.stderr
    first, second = json.loads((tmp_path / "found.json").read_text())["functions"]
    assert {fault: first[fault] for fault in library.FAULTS} == dict.fromkeys(library.FAULTS) | faults
    assert {fault: second[fault] for fault in library.FAULTS} == dict.fromkeys(library.FAULTS)


@pytest.mark.parametrize(
    ("facts", "status", "words"),
    [
        ({"ERROR": "cuInit 100"}, library.SKIPPED, "skipped: the CUDA driver finds no GPU, CUDA error 100"),
        ({"CAPABILITY": "70"}, library.SKIPPED, "skipped: no kernel of the library runs on this GPU"),
        ({"ERROR": "cuLaunchKernel 700"}, 1, "failed: matmul_float32"),
    ],
)
def test_failed_call_is_named(
    calls: Path, fakes: Path, tmp_path: Path, facts: dict[str, str], status: int, words: str
) -> None:
    done = run_calls(calls, fakes, tmp_path / "found.json", **facts)
    assert (done.returncode, words in done.stdout) == (status, True), done.stdout + done.stderr


def run_calls(calls: Path, fakes: Path, file: Path, **facts: str) -> subprocess.CompletedProcess[str]:
    """Run the program on the fake driver; a fault is one of the first kernel."""
    first, _ = (calls / "names.txt").read_text().split()
    given = {
        "CAPABILITY": "80",
        "NAME": "Fake",
        "GRAPHS": "run",
        "KERNELS": str(calls / "kernels.txt"),
    } | facts
    if "FAULT" in given:
        given["FAULT"] = f"{first} {given['FAULT']}"
    places = os.environ | {"LD_LIBRARY_PATH": f"{fakes / 'driver'}:{fakes / 'nvml'}"}
    environment = places | {f"FAKE_{name}": value for name, value in given.items()}
    return subprocess.run(
        [calls / "calls", file], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    ("variable", "value", "status", "words"),
    [
        ("FAULT", "wrong", 1, "  cubin, matmul_float32 16x16x16: wrong: 1 elements differ, the first is "),
        pytest.param(
            *("FAKE_ERROR", "cuDevicePrimaryCtxRetain 2", 1),
            "cubin: exit status 1: ekc_kit_check: failed: cuDevicePrimaryCtxRetain gave CUDA error 2",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            *("FAKE_ERROR", "cuInit 100", 0),
            "cubin: ekc_kit_check: skipped: the CUDA driver finds no GPU, CUDA error 100",
            marks=pytest.mark.exhaustive,
        ),
        ("CXX", "false", 0, "cubin: make failed: "),
    ],
)
def test_failures_are_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    status: int,
    words: str,
) -> None:
    """A kernel or call that fails is an error of the run; a library that cannot be tried is not."""
    monkeypatch.setattr(library, "_use_library", lambda *_: {"status": "ok", "calls": None})
    monkeypatch.setenv(variable, value)
    assert main(["library", "--out", str(tmp_path / "out")]) == status
    assert words in capsys.readouterr().out


@pytest.mark.usefixtures("node")
def test_schedules_of_the_part_tune_come_first(tmp_path: Path) -> None:
    out = tmp_path / "out"
    kit = Kit.open("cuda:0", out, dry=False, seed=0, set_clocks=False)
    tuned = ekc.tune(ekc.matmul(16, 16, 16), target="cuda:0", trials=2, records=out / TUNING, progress=False)
    bundle, origin = library._make_bundle(kit)
    kit.close()
    assert origin == "schedules: of the part tune"
    assert {kernel.board.source for kernel in bundle.kernels} == {"measured"}
    # The best of the run may be another: it compares figures that were measured in turn.
    measured = {trial.schedule.digest for trial in (*tuned.trials, tuned.baseline)}
    assert {kernel.schedule.digest for kernel in bundle.kernels} <= measured


@pytest.mark.parametrize(
    ("visible", "number", "name"), [(None, 1, "1"), ("2,3", 1, "3"), ("GPU-6c2d,GPU-71e4", 0, "GPU-6c2d")]
)
def test_gpu_of_the_check_program(visible: str | None, number: int, name: str) -> None:
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert library._name_gpu(number, variables) == name


@pytest.mark.parametrize(("is_simulated", "visible"), [(True, ""), (False, "1")])
def test_simulated_device_names_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_simulated: bool, visible: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "visible: $CUDA_VISIBLE_DEVICES."; exit {library.SKIPPED}\n')
    program.chmod(0o755)
    kit: Any = SimpleNamespace(device=SimpleNamespace(simulated=is_simulated), gpu=1)
    with pytest.raises(EkcError, match=rf"^visible: {visible}\.$"):
        library._run_on_gpu(kit, program, [], Budget(60.0))


def test_dry_run_checks_no_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["library", "--dry-run", "--out", str(tmp_path)]) == 0
    report = capsys.readouterr().out
    assert (
        "library: nothing was checked\n  not run: a dry run compiles no library for a100 (simulated)"
        in report
    )


@needs_nvcc
@pytest.mark.exhaustive
@pytest.mark.usefixtures("node")
def test_nvcc_builds_the_other_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The CUDA runtime needs a real driver, so the check program is skipped."""
    monkeypatch.setattr(library, "shutil", shutil)
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert main(["library", "--out", str(tmp_path / "out")]) == 0
    report = capsys.readouterr().out
    assert f"  {COMPILED}: ekc_kit_check: skipped: " in report
    assert f"  {COMPILED}, calls: library_calls: skipped: " in report
