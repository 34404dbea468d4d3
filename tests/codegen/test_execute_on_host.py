"""The emitted CUDA text, executed on the CPU by real threads, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ekc.codegen.generate import generate
from ekc.ir.schedule.schedule import Schedule
from tests.codegen import host_cuda, samples
from tests.codegen.helpers import corners, drawn, features
from tests.codegen.host_cuda import BOUNDS, RACES, run_all

pytestmark = pytest.mark.skipif(not host_cuda.available(), reason="needs g++")


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((*BOUNDS, *RACES), id="bounds and races"),
        pytest.param(BOUNDS, id="bounds", marks=pytest.mark.exhaustive),
        pytest.param(RACES, id="races", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize(
    "some",
    [corners, *(pytest.param(x, marks=pytest.mark.slow) for x in (features, drawn))],
    ids=lambda f: f.__name__,
)
def test_text_computes_the_operator(
    tmp_path: Path, some: Callable[[], list[Schedule]], flags: tuple[str, ...]
) -> None:
    for run in run_all(some(), tmp_path, flags):
        run.check()


@pytest.mark.parametrize(
    ("old", "new", "flags"),
    [
        pytest.param("__syncthreads();", "", RACES, marks=pytest.mark.exhaustive),
        ("        __syncthreads();\n    }", "    }", RACES),
        pytest.param("% 2]", "% 1]", RACES, marks=pytest.mark.exhaustive),
        ("< 33", "< 34", BOUNDS),
        pytest.param("A_shared[2][4][18]", "A_shared[2][4][17]", BOUNDS, marks=pytest.mark.exhaustive),
        ("const int k = element % 4", "const int k = element % 8", BOUNDS),
        pytest.param("+= A_register[i_1]", "+= A_register[0]", BOUNDS, marks=pytest.mark.exhaustive),
        ("k_0 * 4 + k < 14", "k_0 * 4 + k < 12", BOUNDS),
    ],
    ids=["no barrier", "no last barrier", "one copy", "guard", "stride", "coordinate", "register", "tail"],
)
def test_mistake_in_the_text_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, flags: tuple[str, ...]
) -> None:
    is_tail = "k < 14" in old
    schedule = samples.small_matmul(33, 34, 14 if is_tail else 12, vector=2, pipeline=not is_tail)
    made = generate(schedule)
    assert old in made.source
    wrong = replace(made, source=made.source.replace(old, new))
    monkeypatch.setattr(host_cuda, "generate", lambda _: wrong)
    with pytest.raises(AssertionError):
        run_all([schedule], tmp_path, flags)[0].check()
