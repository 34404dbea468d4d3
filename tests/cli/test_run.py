"""`ekc run`: the verdict on the compiled kernel, executed on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from tests.cli.conftest import CommandLine
from tests.runtime import faults

RUN = "run matmul 32 32 32"


def test_epilogue_is_run_with_its_operator(cli: CommandLine) -> None:
    operator = "matmul 32 32 32 --epilogue 'gelu(c + bias)' --input bias=32"
    assert "agrees with the reference" in cli(f"run {operator}").out
    assert "C_out[i, j] = " in cli(f"show {operator}").out


def test_run_prints_the_verdict(cli: CommandLine) -> None:
    out = cli(RUN).out
    assert "the compiled PTX, on the CPU" in out
    assert "sanitizer  found nothing" in out
    assert "agrees with the reference" in out
    got = cli.json("run einsum bij,bjk->bik 2x5x7 2x7x3 --seed 3")
    assert got["ok"]
    assert got["max_error"] <= got["tolerance"]
    assert got["executed_by"] == "ekc.emulator: the compiled PTX, on the CPU"
    assert [(x["findings"], x["right"]) for x in got["launches"]] == [([], True)]
    assert got["blocks"] == got["total_blocks"] == sum(x["blocks"] for x in got["launches"])


def test_run_takes_separate_element_types(cli: CommandLine) -> None:
    command = "run matvec 8 48 --dtype int8"
    assert "inputs     int8 uniform, seed 0" in cli(command).out
    got = cli.json(f"{command} --out-dtype float32")
    assert got["ok"]
    made = got["operator"]["computes"][0]
    assert (made["acc_dtype"], made["output"][2]) == ("int32", "float32")
    got = cli.json(f"{command} --acc-dtype float32")
    assert got["ok"]
    assert got["operator"]["computes"][0]["acc_dtype"] == "float32"


def test_run_samples_blocks_of_a_large_grid(cli: CommandLine) -> None:
    assert "blocks     64 of 1024 blocks" in cli("run matmul 512 512 512").out


def test_run_has_status_1_for_a_wrong_result(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ekc.ir.comparison.tolerance.estimate_rounding", lambda compute, scale, stored: 0.0)
    assert "DOES NOT AGREE" in cli(RUN, status=1).out


@pytest.mark.parametrize(
    ("fault", "run_says", "check_says", "kinds"),
    [
        (
            *(faults.far_store, "NOT SAFE: see what the sanitizer found"),
            *("out-of-bounds: store of", ["out-of-bounds"]),
        ),
        (faults.squared, "DOES NOT AGREE with the reference", "result     DOES NOT AGREE", []),
    ],
)
def test_faulty_kernel_is_reported_by_run_and_check(
    fault: Callable[[str], str],
    run_says: str,
    check_says: str,
    kinds: list[str],
    cli: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spoiled(*given: Any) -> CompiledKernel:
        return faults.spoiled(compile_schedule(*given), fault)

    monkeypatch.setattr("ekc.runtime.kernel.compile_schedule", spoiled)
    assert run_says in cli(RUN, status=1).out
    assert check_says in cli("check matmul 32 32 32", status=1).out
    got = cli.json(RUN, status=1)
    assert not got["ok"]
    assert [f["kind"] for x in got["launches"] for f in x["findings"]] == kinds
