"""`ekc tune --model`: totals, missing layers, names of kernels, the old option `--layers`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ekc
from ekc.cli.tune import TuneArguments
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.models.model import Model
from ekc.search.data.result import INTERRUPTED
from ekc.search.tuning_result import TuningResult
from ekc.search.whole_model.model_result import NOT_TUNED, ModelResult, TunedLayer
from tests.cli.conftest import CommandLine

LAYER = '[[layer]]\nname = "{}"\nmodel = "net"\noperator = "matmul"\ncount = {}\nm = {}\nn = 16\nk = 16\n\n'
TUNE = "tune --model net.toml --out o"
FAILED = "matmul on a100: no schedule works"
LOST = "the GPU is gone"

Ends = Callable[..., None]
"""Sets how the tuning of each layer ends: "" or the reason why it has no kernel."""


@pytest.fixture(scope="module")
def tuned() -> TuningResult:
    return ekc.tune(ekc.matmul(16, 16, 16), target="a100", trials=2, progress=False)


@pytest.fixture
def ends(tuned: TuningResult, cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Ends:
    """Three layers of a model, with a given outcome of tuning each."""
    Path("net.toml").write_text(
        "".join(LAYER.format(*x) for x in (("one", 2, 16), ("two", 3, 8), ("six", 1, 4)))
    )

    def ends(*failures: str, stopped: str = "") -> None:
        def run_model(options: TuneArguments, model: Model, _: object) -> ModelResult:
            layers = []
            for layer, failure in zip(model.layers, failures, strict=True):
                best = replace(tuned.best, schedule=make_naive_schedule(layer.op))
                result = replace(tuned, op=layer.op, best=best, fastest=best)
                layers.append(TunedLayer(layer, None if failure else result, failure))
            figures = options.objective, options.max_slowdown, 9, 1.0, options.seed, stopped
            return ModelResult(model, tuple(layers), tuned.device, *figures)

        monkeypatch.setattr(TuneArguments, "run_model", run_model)

    return ends


@pytest.mark.parametrize(
    ("failures", "stopped", "status", "calls", "lacks"),
    [
        (("", "", ""), "", 0, 6, ""),
        (("", FAILED, ""), "", 2, 3, ", without two (failed)"),
        (("", NOT_TUNED, NOT_TUNED), INTERRUPTED, 130, 2, ", without two (not tuned), six (not tuned)"),
        ((LOST, "", NOT_TUNED), INTERRUPTED, 130, 3, ", without one (failed), six (not tuned)"),
        (("", "", ""), INTERRUPTED, 130, 6, ""),
        (("", "", f"{NOT_TUNED}: time is up"), "time is up", 0, 5, ", without six (not tuned: time is up)"),
    ],
)
def test_total_names_missing_layers(
    failures: tuple[str, ...], stopped: str, status: int, calls: int, lacks: str, ends: Ends, cli: CommandLine
) -> None:
    ends(*failures, stopped=stopped)
    out = cli(f"{TUNE} --quiet", status).out
    (total,) = [line for line in out.splitlines() if line.startswith("net: ")]
    assert total.startswith(f"net: {calls} calls, ")
    assert re.search(r" \d+\.?\d* [mun]?J in sum(.*)", total).group(1) == lacks
    kernels = json.loads(Path("o/net.json").read_text())["kernels"]
    assert len(kernels) == failures.count("")
    assert "wrote o/src/net_sm_80.cu" in out


def test_json_names_missing_layers(ends: Ends, cli: CommandLine) -> None:
    ends("", LOST, NOT_TUNED, stopped=INTERRUPTED)
    out, err = cli(f"{TUNE} --quiet --json", status=130)
    got = json.loads(out)
    assert [x["name"] for x in got["layers"]] == ["one"]
    assert [(x["name"], x["count"], x["reason"]) for x in got["failed"]] == [
        ("two", 3, "the GPU is gone"),
        ("six", 1, "not tuned"),
    ]
    assert got["totals"][0]["missing"] == ["two (failed)", "six (not tuned)"]
    assert err == "ekc: layer two: the GPU is gone\nekc: interrupted\n"


def test_old_option_warns_and_keeps_its_meaning(
    ends: Ends, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends("", "", "")
    seen = []
    run_model = TuneArguments.run_model

    def watch(options: TuneArguments, *rest: object) -> ModelResult:
        seen.append((options.trials, options.trials_per_layer))
        return run_model(options, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(TuneArguments, "run_model", watch)
    err = cli("tune --layers net.toml --trials 3 --out o --quiet").err
    assert err.splitlines()[0] == (
        "ekc: warning: --layers will be gone in the next release; write --model, "
        "and --trials-per-layer for --trials"
    )
    assert seen == [(None, 3)]
    assert "give --model alone" in cli.refusal("tune --layers net.toml --model net.toml")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--model net.toml --n 3", "--n: net.toml has its operators itself; leave it out"),
        ("--model net.toml --dtype float16", "--dtype: a layer file has its types and shapes itself"),
        ("--model net.toml --input x=3", "--input: a layer file has its types and shapes itself"),
        ("--model net.toml --trials 2", "trials: 2 are fewer than the 3 layers of net"),
        ("--model net.toml --trials 9 --trials-per-layer 3", "trials and trials_per_layer: give one"),
        ("--model net.toml --effort quick --trials-per-layer 3", "effort and trials_per_layer: give one"),
        ("--model net.toml --trials-per-layer 0", "trials_per_layer"),
        ("--model net.toml --evolve", "--evolve: steps are not edited with --model; tune one operator"),
        ("--model net.txt", "--model: net.txt is no .toml (layer file), .onnx or .pt2"),
        ("matmul 4 4 4 --trials-per-layer 3", "--trials-per-layer: an operator has no layers"),
    ],
)
def test_options_that_do_not_apply_are_refused(
    options: str, words: str, ends: Ends, cli: CommandLine
) -> None:
    ends("", "", "")
    assert words in cli.refusal(f"tune {options} --target a100")


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
    options = "--trials-per-layer 4 --quiet --records t.db"
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
    ends("", "", "")
    names = [f"fc_{ekc.matmul(m, 16, 16).digest[:8]}" for m in (4, 8)]
    assert list_functions(cli) == sorted(["Head_1", *names])
    ends("", "", "")
    got = cli.json(f"{TUNE} --quiet --cubin")
    assert [x["functions"] for x in got["layers"]] == [[names[0]], [names[1]], ["Head_1"]]
    assert {Path(p).name for p in got["exported"]} > {"net_sm_80.cpp", "net.hpp"}


def test_name_is_that_of_the_library(ends: Ends, cli: CommandLine) -> None:
    ends("", "", "")
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
    ends("")
    assert list_functions(cli) == ["bare", "full"]
    assert len(json.loads(Path("o/net.json").read_text())["kernels"]) == 1
