"""Each example runs as a user runs it, in an empty folder, and prints what its docstring says."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SIMULATED = r"a100(, no residual)? \(simulated\)"
HAS_TORCH, HAS_PLOTLY = (importlib.util.find_spec(name) is not None for name in ("torch", "plotly"))
SKIPPED = ("^skipped: .+\n$",)
RUNG = (r"C\[i, j\] = sum\[k < 256\]", "write C.acc -> C")
PRINTED = {
    "tune_matmul.py": (
        SIMULATED,
        "sanitizer found nothing",
        r"against NumPy: \d\.\de-0[5-9]",
        r"build/src/matmul_sm_80\.cu",
    ),
    "own_operator.py": (
        r"B\[i \+ d - 16, j\]",
        r"where\(X\[i, j\] < X\[i, j - 1\]",
        "agrees with NumPy: True",
    ),
    "epilogue.py": ("fused +1 launches", "separate +3 launches", SIMULATED, "agrees with NumPy: True"),
    "from_pytorch.py": (SIMULATED, "1 launch", r"two models: \d\.\de-0[6-9]")
    if HAS_TORCH
    else ("^skipped: .+\n$",),
    "plot_trials.py": (r"trials\.html: \d+ trials, " + SIMULATED,) if HAS_PLOTLY else SKIPPED,
    "replay_recording.py": (
        r"recorded \d{4}-\d\d-\d\d, 8 schedules",
        "least latency of 8",
        "least energy of 8",
    ),
    "own_search.py": (SIMULATED, "hill climbing +ekc.tune", r"\n +12 +\d+\.\d\d +\d+\.\d\d\n"),
    "meter_script.py": (
        r"64 x 64 product .* mJ a call \(",
        "128 x 128 product",
        "by the energy counter",
        "made up",
    ),
    "broken_schedules.py": ("divisor of 16; use 4", "is a reduction", "2304, at most 1024", "use 4$"),
    "ladder/compare.py": (
        SIMULATED,
        *(f"{rung} .*x .*x\n" for rung in ("naive", "coalesced", "vector loads")),
    ),
    "ladder/rung1_naive.py": RUNG,
    "ladder/rung2_coalesced.py": RUNG,
    "ladder/rung3_shared.py": (*RUNG, r"shared\[16, 16\]"),
    "ladder/rung4_register_tile.py": (*RUNG, r"register\[4\]"),
    "ladder/rung5_vector_loads.py": (*RUNG, "float4, transposed"),
}
"""Regular expressions that match what each example prints."""
ARGUMENTS = {"plot_trials.py": ("--trials", "4")}
"""Arguments of examples that take long without."""


def run(*command: str | Path, folder: Path) -> str:
    """Run a command in a folder, where `ekc` and this checkout are found, and return what it prints."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PRINTED)
def test_example_prints_what_it_says(name: str, tmp_path: Path) -> None:
    printed = run(sys.executable, EXAMPLES / name, *ARGUMENTS.get(name, ()), folder=tmp_path)
    assert [pattern for pattern in PRINTED[name] if not re.search(pattern, printed)] == [], printed


def test_ladder_gets_faster_and_takes_less_energy_at_each_rung(tmp_path: Path) -> None:
    printed = run(sys.executable, EXAMPLES / "ladder" / "compare.py", folder=tmp_path)
    rows = [line.split() for line in printed.splitlines()[3:]]
    times, joules = ([float(row[column]) for row in rows] for column in (-5, -3))
    assert len(rows) == 5
    assert times == sorted(times, reverse=True)
    assert joules == sorted(joules, reverse=True)


def test_every_example_is_run_listed_and_documented() -> None:
    files = {str(p.relative_to(EXAMPLES)) for p in EXAMPLES.rglob("*.py")}
    assert files == set(PRINTED)
    links = re.findall(r"\]\(([\w./]+)\)", (EXAMPLES / "README.md").read_text())
    assert not [name for name in files if not any(name == link or name.startswith(link) for link in links)]
    for name in files:
        text = ast.get_docstring(ast.parse((EXAMPLES / name).read_text()))
        assert text, name
        assert f"\nRun:     python {name}" in text, name
        assert "\nPrints:  " in text, name
