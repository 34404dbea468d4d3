"""Large operators on the command line: they need little memory, or are refused in one line."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import ekc
from ekc.ir import expr as ex
from ekc.ir.interpreter.reference import read_padded

GIB = 1 << 30


def limited(*arguments: str, gib: float = 4) -> subprocess.CompletedProcess[str]:
    """Run Python in an address space of so many GiB."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (int(gib * GIB), int(gib * GIB)))

    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, preexec_fn=limit)


def test_operator_beyond_device_memory_is_one_line() -> None:
    done = limited("-m", "ekc", "tune", "matmul", "200000", "200000", "8", "--target", "a100")
    needs = "matmul needs 149 GiB (A 6.1 MiB, B 6.1 MiB, C 149 GiB), a100 (simulated) has 40 GiB"
    assert (done.returncode, done.stderr) == (2, f"ekc: memory: {needs}; use j <= 53676\n")


def test_operator_beyond_host_memory_is_checked() -> None:
    done = limited("-m", "ekc", "run", "matmul", "65536", "49152", "2", "--dtype", "int8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "agrees with the reference" in done.stdout


@pytest.mark.parametrize("what", ["kernel(a)", "op.reference(a)"])
def test_call_beyond_host_memory_is_refused(what: str) -> None:
    program = f"""
import numpy as np, ekc
op = ekc.compute("scale", axes={{"i": 3 * 2**28}}, inputs={{"A": (3 * 2**28,)}}, body=lambda A, i: A[i] * 2, dtype="int8")
kernel = ekc.compile(ekc.Schedule(op).split("i", (256,)).bind("i.0", "block.x").bind("i.1", "thread.x"))
a = np.zeros(3 * 2**28, np.int8)
try:
    {what}
except ekc.InvalidInput as problem:
    print(problem)
"""  # noqa: E501
    done = limited("-c", program, gib=3)
    assert done.stdout.startswith("memory: "), done.stderr
    assert "(address space limit (ulimit -v) 3 GiB); use i <= " in done.stdout
    assert done.stdout.count("\n") == 1


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Length of the longest `np.arange` so far."""
    found, arange = [0], np.arange

    def noting(*arguments: Any, **options: Any) -> Any:
        made = arange(*arguments, **options)
        found[0] = max(found[0], made.size)
        return made

    monkeypatch.setattr(np, "arange", noting)
    return found


def test_tune_allocates_no_index_of_an_axis(longest: list[int]) -> None:
    op = ekc.compute("scale", axes={"i": 2**25}, inputs={"A": (2**25,)}, body=lambda A, i: A[i] * 3)
    result = ekc.tune(op, target="a100", trials=1, progress=False)
    assert "found nothing" in result.best.checked
    assert longest[0] <= 2**20


def test_read_allocates_no_index_of_a_dimension(longest: list[int]) -> None:
    load = ex.Load("A", (ex.Var("i"), ex.Var("j")))
    rows, columns = np.array([[3], [5]]), np.array([[0, 1, 2]])
    found = read_padded(np.ones((2**20, 3), np.float32), load, {"i": rows, "j": columns})
    assert found.shape == (2, 3)
    assert longest[0] <= 3
