"""`ekc tune --layers`: totals, missing layers, names of kernels."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ekc
from ekc.errors import DeviceError, NothingLegal
from ekc.search.data.result import INTERRUPTED
from ekc.search.tuning_result import TuningResult
from ekc.tables import count_nouns
from tests.cli.conftest import CommandLine

LAYER = '[[layer]]\nname = "{}"\nmodel = "net"\noperator = "matmul"\ncount = {}\nm = {}\nn = 16\nk = 16\n\n'
TUNE = "tune --layers net.toml --out o"
NOTHING = NothingLegal("matmul on a100: no schedule works")
LOST = DeviceError("the GPU\nis gone")

Outcome = BaseException | Callable[[TuningResult], TuningResult]
Ends = Callable[..., None]
"""Sets how the tuning of each layer ends."""


def complete(result: TuningResult) -> TuningResult:
    return result


def cut_short(result: TuningResult) -> TuningResult:
    return replace(result, stopped=INTERRUPTED)


@pytest.fixture(scope="module")
def tuned() -> TuningResult:
    return ekc.tune(ekc.matmul(16, 16, 16), target="a100", trials=2, progress=False)


@pytest.fixture
def ends(tuned: TuningResult, cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Ends:
    """Three layers of a model, with a given outcome of tuning each."""
    Path("net.toml").write_text(
        "".join(LAYER.format(*x) for x in (("one", 2, 16), ("two", 3, 8), ("six", 1, 4)))
    )

    def ends(*outcomes: Outcome) -> None:
        left = iter(outcomes)

        def tune(*_: object) -> TuningResult:
            outcome = next(left)
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome(tuned)

        monkeypatch.setattr("ekc.cli.tune_arguments.TuneArguments.run_tuning", tune)

    return ends


@pytest.mark.parametrize(
    ("outcomes", "status", "calls", "lacks"),
    [
        ((complete, complete, complete), 0, 6, ""),
        ((complete, NOTHING, complete), 2, 3, ", without two (failed)"),
        ((complete, LOST, complete), 2, 3, ", without two (failed)"),
        ((complete, KeyboardInterrupt()), 130, 2, ", without two (not tuned), six (not tuned)"),
        ((NOTHING, cut_short), 130, 3, ", without one (failed), six (not tuned)"),
        ((complete, complete, cut_short), 130, 6, ""),
    ],
)
def test_total_names_missing_layers(
    outcomes: tuple[Outcome, ...], status: int, calls: int, lacks: str, ends: Ends, cli: CommandLine
) -> None:
    ends(*outcomes)
    out = cli(f"{TUNE} --quiet", status).out
    (total,) = [line for line in out.splitlines() if line.startswith("net: ")]
    assert total.startswith(f"net: {calls} calls, ")
    assert total.endswith(f" J in sum{lacks}")
    written = count_nouns(sum(callable(x) for x in outcomes), "kernel")
    assert f"wrote {written} under o" in out


def test_json_names_missing_layers(ends: Ends, cli: CommandLine) -> None:
    ends(complete, LOST, KeyboardInterrupt())
    out, err = cli(f"{TUNE} --quiet --json", status=130)
    got = json.loads(out)
    assert [x["name"] for x in got["layers"]] == ["one"]
    assert [(x["name"], x["count"], x["reason"]) for x in got["failed"]] == [
        ("two", 3, "the GPU is gone"),
        ("six", 1, "not tuned"),
    ]
    assert "ekc: layer two: the GPU is gone\n" in err
    assert err.endswith("ekc: interrupted in layer 3 of 3\n")


@pytest.mark.parametrize(
    ("outcomes", "status"), [((NOTHING, LOST, NOTHING), 2), ((KeyboardInterrupt(),), 130)]
)
def test_no_table_without_layers(
    outcomes: tuple[Outcome, ...], status: int, ends: Ends, cli: CommandLine
) -> None:
    ends(*outcomes)
    assert cli(f"{TUNE} --quiet", status).out == ""


def test_remaining_time_is_logged(ends: Ends, cli: CommandLine) -> None:
    ends(complete, complete, complete)
    first, second, third = cli(TUNE).err.splitlines()[:3]
    assert first == "layer 1 of 3: one"
    assert second.startswith("layer 2 of 3: two (about 1 min left")
    assert third.startswith("layer 3 of 3: six (about 1 min left")


SAME = '[[layer]]\nname = "{}"\noperator = "matmul"\nm = 16\nn = 32\nk = 16\n{}\n'
NET = (
    SAME.format("first", 'model = "net"\ncount = 2')
    + SAME.format("same again", 'model = "net"')
    + '[[layer]]\nname = "image"\nmodel = "other net"\noperator = "conv2d"\nn = 1\nc = 2\nh = 6\nw = 6\n'
    + 'out_channels = 4\nkernel = [3, 1]\nepilogue = "relu(y + bias)"\ninputs = { bias = [4, 1, 1] }\n'
)


def test_layers_are_tuned_once_each(cli: CommandLine) -> None:
    Path("net.toml").write_text(NET)
    # The second run reads the measurements of the first.
    options = "--trials 4 --quiet --records t.db"
    out = cli(f"{TUNE} {options}").out
    assert "a100 (simulated)" in out
    assert "net: 3 calls" in out
    assert len(list(Path("o").glob("*/*.cu"))) == 2
    got = cli.json(f"{TUNE} {options}")
    assert [(x["name"], x["count"]) for x in got["layers"]] == [("first", 3), ("image", 1)]


def exported(cli: CommandLine, options: str = "") -> list[str]:
    """Names of the kernels that a run writes."""
    cli(f"{TUNE} --quiet {options}")
    return sorted(p.stem for p in Path("o").rglob("*.cu"))


def test_kernel_names_of_layers_are_unique_and_stable(ends: Ends, cli: CommandLine) -> None:
    ends(complete, complete, complete)
    names = exported(cli)
    assert [re.sub("_[0-9a-f]{8}$", "", name) for name in names] == [
        *("matmul_16x16x16", "matmul_4x16x16", "matmul_8x16x16")
    ]
    guards = {p.stem: re.findall("#define (EKC_.*_H)", p.read_text()) for p in Path("o").rglob("*.h")}
    assert guards == {name: [f"EKC_{name}_H"] for name in names}
    assert all(f"ekc_{p.stem}_launch(" in p.read_text() for p in Path("o").rglob("*.cu"))
    # Another layer, in front, and one of the same operator: no name changes.
    layers = Path("net.toml").read_text()
    Path("net.toml").write_text(SAME.format("new", "") + LAYER.format("again", 1, 8) + layers)
    shutil.rmtree("o")
    ends(complete, complete, complete, complete)
    assert set(exported(cli)) > set(names)


def test_name_is_the_prefix_of_all_kernels(ends: Ends, cli: CommandLine) -> None:
    ends(complete, complete, complete)
    names = exported(cli)
    shutil.rmtree("o")
    ends(complete, complete, complete)
    assert exported(cli, "--name net_v2") == [f"net_v2_{name}" for name in names]


def test_equal_layers_are_tuned_once(ends: Ends, cli: CommandLine) -> None:
    """A layer with an explicit default is the same operator as one without."""
    Path("net.toml").write_text(SAME.format("bare", "") + SAME.format("full", "transpose_b = false"))
    ends(complete)
    assert len(exported(cli)) == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_two_layers_link_into_one_program(cli: CommandLine) -> None:
    """Each layer has its own launcher and workspace; once one kernel served both."""
    layer = '[[layer]]\nname = "{}"\noperator = "matmul"\nm = 8\nn = {}\nk = {}\n'
    Path("net.toml").write_text(layer.format("wide", 16, 8) + layer.format("deep", 8, 16))
    names = exported(cli, "--target a100 --trials 1 --name net")
    sources = [str(p) for p in Path("o").rglob("*.cu")]
    headers = "".join(f'#include "{p}"\n' for p in Path("o").rglob("*.h"))
    called = " || ".join(f"(void*)ekc_{name}_launch == (void*)&call" for name in names)
    Path("call.cpp").write_text(
        f"{headers}int call() {{ return {called}; }}\nint main() {{ return call(); }}\n"
    )
    command = ["nvcc", "-arch=sm_80", "-Xcicc", "-O0", *sources, "call.cpp", "-o", "call"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(names) == len(sources) == 2
