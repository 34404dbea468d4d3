"""All benchmark scripts on a stub search: they print a table, and write JSON with bar and verdict."""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.common import script
from benchmarks.model.scheduler import STRATEGIES
from benchmarks.search import ablation_variants, paper_figures
from ekc.errors import InvalidInput
from tests.benchmarks.helpers import ROOT, Run

SCRIPTS = sorted(
    ".".join(file.relative_to(ROOT / "benchmarks").with_suffix("").parts)
    for file in (ROOT / "benchmarks").rglob("*.py")
    if "\nmain = make_main(" in file.read_text()
)


def load(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_has_the_docstring(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        load(name).main(["--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: ")
    assert f"python -m benchmarks.{name}" in text
    assert (load(name).__doc__ or "").splitlines()[0] in text


class Line(dict[str, Any]):
    """A line of a table: 1.0 for each figure that is not given."""

    def __missing__(self, key: str) -> float:
        return 1.0


def make_line(name: str, *arguments: object) -> Line:
    return Line({"operator": name, "pass": True, "spread": None, "best": "split-k", "in_parts_j": 1.0})


def make_depth_line(name: str, arguments: argparse.Namespace) -> Line:
    ratios = {"random": 1.005, "long": 1.02}
    return Line(
        {"operator": name, "winners_s": [1.0], "ratio": ratios, "without_luck": ratios, "pass": False}
    )


def make_clock_run(model: str, device: str, trials: int, seed: int) -> dict[str, Any]:
    figures = {"slowdown": 5.0, "promised": 6.0, "clock_mhz": 1200, "meterings": 4, "metering_s": 30.0}
    saved = {"kernels": 1.0, "clock": 4.0, "together": 6.5}
    return {method: figures | {"saved": share} for method, share in saved.items()} | {"seed": seed}


def make_tuned_line(name: str, *arguments: object) -> Line:
    counts = {"trials": 16, "metered": 2, "failed": 0, "kept": 1}
    return Line(make_line(name) | counts | {"problems": [], "failures": [], "bar": {}, "naive_starved": True})


def make_budget_run(operator: str, objective: str, budget_s: float, seed: int) -> dict[str, Any]:
    energies = {"latency": 1.0, "energy": 0.9}
    asked = {"operator": operator, "objective": objective, "seed": seed, "budget_s": budget_s}
    return asked | {"trials": 8, "metered": 1, "latency_s": 1e-5, "energy_j": energies[objective]}


def make_rate_row(watch: object, seconds: float, population: int) -> Line:
    shares = {"cascade": Line(), "share_of_time": {"analysis": 1.0}, "pass": population == 2048}
    return Line({"population": population, "candidates_per_s": 2e5} | shares)


def make_paper_lines(
    places: list[tuple[str, str]], variants: tuple[str, ...], *rest: object
) -> list[dict[str, Any]]:
    energies = {
        ablation_variants.EVERYTHING: 1.0,
        ablation_variants.DEFAULT: 1.005,
        ablation_variants.LATENCY: 1.2,
    }
    return [
        {"operator": operator, "device": device, "variant": variant, "seed": 0}
        | {
            "energy_j": energies.get(variant, 1.1),
            "latency_s": 1e-5,
            "fastest_energy_j": 1.3,
            "other_models": [0.1, 0.2],
        }
        | {"metered": 2, "timed": 20, "metering_s": 10.0, "search_s": 1.0, "judged": [(1.0, 0.1, 1.1)]}
        for operator, device in places
        for variant in variants
    ]


def make_replays(recording: Any, arguments: argparse.Namespace) -> tuple[list[Line], list[str]]:
    line = {"recording": recording.name, "tuned_on": False, "search": "ekc", "runs": 3}
    return [Line(line | {"bar": [1.0, 1.2], "pass": True})], ["a note"]


def make_energy_lines(recording: Any, *arguments: object) -> list[Line]:
    return [Line({"recording": recording.name, "prediction": "ekc", "times_better": 11.0, "pass": True})]


def make_emulator_result(side: int, large: int, small: int, seed: int) -> dict[str, Any]:
    line = Line(kernel=f"MM {side}^3", sanitize=True, right=True, findings=[], seconds=5.0, peak_bytes=2**20)
    return {"lines": [Line(load("emulator.rate").judge(line, 4.0))], "numba": None}


def make_counters(folder: Path, count: int, seed: int) -> dict[str, Any]:
    line = Line({"counter": "fp32", "column": "fp32.sum", "trivial_is": "threads", "pass": True})
    return Line({"left_out": {}, "refused": {}, "failed": [], "lines": [line], "pass": True})


def make_machine_code(schedule: object, device: object) -> dict[str, Any]:
    widths = {name: {16: 2} for name in ("shared_loads", "global_loads", "async_copies")}
    counts = ("ffma", "hmma", "hgmma", "ldsm", "spills", "integer_per_multiply_add", "in_flight_bytes")
    counts = (*counts, "stages", "spare_passes", "spare_sectors", "conflicts", "narrow_shared")
    figures = dict.fromkeys((*counts, "narrow_global", "latency_us", "share_of_peak"), 0.0)
    return figures | widths | {"instructions": 10}


def make_recorded(file: Path) -> Any:
    origin = SimpleNamespace(description="a made-up card", driver="-", clock_regime="-", simulated=True)
    origin.peaks, origin.limits = None, SimpleNamespace(sms=1)
    return SimpleNamespace(operators=["matmul"], origin=origin)


def make_training_table(rows: Any) -> Any:
    return SimpleNamespace(operator=np.array(["matmul 8"]), arch=np.array(["sm_80"]))


TRAINED_LINE = Line(operator="made up", left_out="kind", ratio=0.7, **{"pass": True})
PRIOR_LINE = Line(recording="made up", half="all", accesses="recorded", prior="analytic", kernels=6)
POWER_LINE = Line(recording="made up", figure="power", prior="analytic", rows=6, spearman=None)
RECORDED_LINE = Line(operator="matmul", rows=4, prediction="not judged: too few rows")
CARD_ROW = {"largest_error": 0.02, "rms_error": 0.01, "half_width": 0.01, "held": 0.95, "noted": 0.0}
PAIR_LINE = Line(way="shared", pairs=4, faster=0.75)
DATA = ("--data", "nowhere")
_FOREIGN_SCORE = {
    "median_error": 0.07, "error_interval": (0.05, 0.09), "spearman": 0.99, "rank_interval": (0.9, 1.0),
    "median_ratio": 1.02,
}  # fmt: skip
FOREIGN_LINE = {
    "card": "a100_sm80", "which": "all", "rows": 3, "simulated": _FOREIGN_SCORE, "roofline": _FOREIGN_SCORE,
    "bar": {"median_error": 0.09}, "pass": True,
}  # fmt: skip
STUBS: dict[str, tuple[tuple[str, ...], dict[str, Any], str, bool | None]] = {
    "codegen.sass_report": (
        ("--target", "a100", "--only", "written out"),
        {"measure_schedule": make_machine_code},
        "FAIL ffma",
        False,
    ),
    "cost_model.analytic": (
        DATA,
        {
            "compare_latencies": lambda *arguments: [PRIOR_LINE],
            "compare_powers": lambda *rest: [POWER_LINE],
            "compare_compiled": lambda name, *rest: Line(operator=name, device="a100", kernels=6),
        },
        "made up",
        None,
    ),
    "cost_model.energy": (
        DATA,
        {
            "measure_recording": make_energy_lines,
            "read_kernels": lambda *arguments: None,
            "measure_few_rows": lambda *arguments: [],
            "measure_noise": lambda name, *arguments: {"recording": name, "rows": 0},
        },
        "hotspot A4000 energy",
        True,
    ),
    "cost_model.recording": (
        ("file",),
        {"read_recording": make_recorded, "measure_operator": lambda *arguments: [RECORDED_LINE]},
        "a made-up card",
        None,
    ),
    "cost_model.train": (
        ("--folder", "rows"),
        {
            "read_rows": lambda *arguments: None,
            "make_table": make_training_table,
            "predict_left_out": lambda *arguments: None,
            "score_operators": lambda *arguments: [TRAINED_LINE],
        },
        "made up",
        True,
    ),
    "cost_model.registers": (
        ("--only", "MV"),
        {"measure_operator": lambda name, *arguments: Line(operator=name, spread=None)},
        "MV 4096x4096",
        None,
    ),
    "emulator.rate": ((), {"run_kernels": make_emulator_result}, "at most 4 s", False),
    "metering.meter": (
        (),
        {"measure_kind": lambda *arguments: Line(CARD_ROW)},
        "a quarter, calls of exactly 50 ms",
        False,
    ),
    "model.scheduler": (
        ("--only", "BERT", "--seeds", "2"),
        {
            "run_model": lambda *arguments: {
                strategy: {"energy_j": energy, "latency_s": 1.0}
                for strategy, energy in zip(STRATEGIES, (1.0, 1.0, 1.1, 1.2), strict=True)
            }
        },
        "1.100 (1.100 to 1.100)",
        True,
    ),
    "model.clock_plan": (("--only", "encoder, a100"), {"measure_run": make_clock_run}, "encoder", True),
    "search.depth": (("--only", "MV"), {"measure_operator": make_depth_line}, "1.020", False),
    "search.found_again": (
        ("--seeds", "2", "--spaces", "evolved rules"),
        {
            "run_once": lambda technique, space, *arguments: {
                "latency_s": 1e-5 if space == "evolved" else 1.1e-5,
                "found": True,
                "first_trial": 33,
                "structure": "A:shared, insert rfactor k",
            }
        },
        "lanes           2       2               33       -   1.100",
        True,
    ),
    "search.paper": (("--only", "MV 1024x8192 a100"), {"run_all": make_paper_lines}, "1.0050", True),
    "search.quality": (DATA, {"search_recording": make_replays}, "a note", True),
    "search.rate": (
        (),
        {
            "Stopwatch": lambda *arguments: SimpleNamespace(
                device=SimpleNamespace(label="a100 (simulated)"), space=SimpleNamespace(structures=[1])
            ),
            "measure_population": make_rate_row,
        },
        "200,000 candidates/s",
        True,
    ),
    "search.record_scale": (
        ("--rows", "4"),
        {
            "run_command": lambda name, file, bytecode: Line(
                {"command": name, "cpu_s": 4.5, "pass": file.stat().st_size > 1000}
            )
        },
        "4.50",
        True,
    ),
    "search.time_budget": (
        ("--only", "MM 1024", "--seeds", "1", "--budget", "5"),
        {"tune": make_budget_run},
        "0.9000 in the median of 1 pairs",
        True,
    ),
    "search.tune_table": (("--only", "MM 1024^3"), {"measure_operator": make_tuned_line}, "MM 1024^3", True),
    "simulator.counters": (DATA, {"compare_counters": make_counters}, "fp32: fp32.sum", True),
    "simulator.fidelity": (
        (*DATA, "--only", "h200"),
        {
            "_MEASURED": {"h200": lambda arguments, place: {"pass": True}},
            "_TEXTS": {"h200": lambda result: "the shapes"},
        },
        "the shapes",
        True,
    ),
    "simulator.foreign": (
        DATA,
        {
            "read_rows": lambda folder: [],
            "make_lines": lambda *arguments: [FOREIGN_LINE],
            "make_group_lines": lambda *arguments: [],
        },
        "error  7.0% (5.0% to 9.0%), rank 0.990",
        True,
    ),
    "simulator.load_width": (
        DATA,
        {"compare_pairs": lambda recording, *arguments: [Line(PAIR_LINE, device=recording.device)]},
        "of 12 pairs the wider was faster in 75%",
        None,
    ),
}
"""Script -> options, functions that are replaced, text that is printed, verdict."""


def test_readme_has_every_script_and_no_other() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ") and line.count("|") == 6]
    named = {name for row in rows for name in re.findall(r"`([a-z_]+\.[a-z0-9_]+)", row[2])}
    assert named >= set(SCRIPTS)
    for name in named:
        assert (ROOT / "benchmarks" / f"{name.replace('.', '/')}.py").is_file(), name


GOVERNOR_SCRIPTS = (
    "accounting",
    "compare",
    "cost",
    "driver_errors",
    "kills",
    "predict",
    "objectives",
    "period",
    "replay",
    "tempo",
)
"""Scripts that tests/benchmarks/test_governor.py runs."""


def test_every_script_has_a_stub() -> None:
    have_tests = {f"governor.{name}" for name in GOVERNOR_SCRIPTS}
    have_tests |= {"explorer.steps", "search.ablation", "simulator.energy", "simulator.own"}
    have_tests |= {"models.conformance_onnx", "gpu.rehearsal"}
    assert set(SCRIPTS) == {*STUBS, *have_tests}


@pytest.mark.parametrize("name", STUBS)
def test_script_prints_a_table_and_writes_its_bar_and_verdict(
    name: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, stubs, text, verdict = STUBS[name]
    monkeypatch.setattr(paper_figures, "RESAMPLED", 20)
    for attribute, stub in stubs.items():
        monkeypatch.setattr(load(name), attribute, stub)
    printed, figures = run(name, *options)
    assert printed.startswith("ekc ")
    assert text in printed
    assert printed.splitlines()[-1] == {True: "pass", False: "FAIL", None: "no bar here"}[verdict]
    assert figures["pass"] is verdict
    if verdict is not None:
        assert figures["bar"]
    elif figures["bar"] is None:
        assert "No bar" in (load(name).__doc__ or ""), "a script without a bar says why"


def test_lines_are_judged_together() -> None:
    assert script.judge_lines([{"pass": True}, {"pass": None}, {}]) is True
    assert script.judge_lines([{"pass": True}, {"pass": False}]) is False
    assert script.judge_lines([{}]) is None


def test_unknown_name_is_refused_with_the_names_that_exist() -> None:
    assert script.select_names(("MM 1", "MV 2"), "MV") == ["MV 2"]
    with pytest.raises(InvalidInput, match=r"--only: nothing contains 'conv'; there are MM 1, MV 2"):
        script.select_names(("MM 1", "MV 2"), "conv")
