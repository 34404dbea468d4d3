"""`ekc tune --layers`: totals, missing layers, names of kernels."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ekc
from ekc.errors import DeviceError, NothingLegal
from ekc.ir.operator import Operator
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.data.result import INTERRUPTED
from ekc.search.tuning_result import TuningResult
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

        def tune(_: object, op: Operator, *__: object) -> TuningResult:
            outcome = next(left)
            if isinstance(outcome, BaseException):
                raise outcome
            best = replace(tuned.best, schedule=make_naive_schedule(op))
            return outcome(replace(tuned, op=op, best=best, fastest=best))

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
    kernels = json.loads(Path("o/net.json").read_text())["kernels"]
    assert len(kernels) == sum(callable(x) for x in outcomes)
    assert "wrote o/src/net_sm_80.cu" in out


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
    assert "wrote o/src/net_sm_80.cu" in out
    assert "struct first_extents" in Path("o/include/ekc/net.hpp").read_text()
    got = cli.json(f"{TUNE} {options}")
    assert [(x["name"], x["count"]) for x in got["layers"]] == [("first", 3), ("image", 1)]


def list_functions(cli: CommandLine, options: str = "") -> list[str]:
    """Functions of the library that a run writes."""
    cli(f"{TUNE} --quiet {options}")
    (record,) = (json.loads(p.read_text()) for p in Path("o").glob("*.json"))
    return sorted(f["name"] for f in record["functions"])


def test_functions_have_the_names_of_layers(ends: Ends, cli: CommandLine) -> None:
    layers = LAYER.format("fc", 1, 4) + LAYER.format("fc", 2, 8) + SAME.format("Head.1", 'model = "net"')
    Path("net.toml").write_text(layers)
    ends(complete, complete, complete)
    assert list_functions(cli) == ["Head_1", "fc", "fc_2"]
    ends(complete, complete, complete)
    got = cli.json(f"{TUNE} --quiet --cubin")
    assert [x["functions"] for x in got["layers"]] == [["fc"], ["fc_2"], ["Head_1"]]
    assert {Path(p).name for p in got["exported"]} > {"net_sm_80.cpp", "net.hpp"}


def test_name_is_that_of_the_library(ends: Ends, cli: CommandLine) -> None:
    ends(complete, complete, complete)
    list_functions(cli, "--name net_v2")
    assert Path("o/include/ekc/net_v2.hpp").exists()


def test_library_of_another_device_is_replaced_with_a_line(cli: CommandLine) -> None:
    Path("net.toml").write_text(LAYER.format("fc", 1, 4))
    assert "held" not in cli(f"{TUNE} --target a100 --trials 1 --quiet").err
    err = cli(f"{TUNE} --target rtx4090 --trials 1 --quiet").err
    held = "matmul(A[4, 16] float32, B[16, 16] float32) for a100 (simulated)"
    assert err == f"ekc: o held {held}; another --out keeps both\n"


def test_layers_that_collide_are_refused_before_the_first_is_tuned(cli: CommandLine) -> None:
    Path("net.toml").write_text(LAYER.format("fc", 1, 4) + LAYER.format("fc_info", 1, 8))
    err = cli(f"{TUNE} --target a100", status=2).err
    assert "'fc_info'" in err
    assert "cannot both be functions" in err


def test_equal_layers_are_tuned_once(ends: Ends, cli: CommandLine) -> None:
    """A layer with an explicit default is the same operator as one without."""
    Path("net.toml").write_text(SAME.format("bare", "") + SAME.format("full", "transpose_b = false"))
    ends(complete)
    assert list_functions(cli) == ["bare", "full"]
    assert len(json.loads(Path("o/net.json").read_text())["kernels"]) == 1
