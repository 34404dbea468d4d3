"""Training loops of the kit: enough of them, each with its difficulty, each of which trains."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.gpu import loops
from benchmarks.gpu.loops import LOOPS, Place

FEWEST = 6
"""So many traces with known steps period detection is to be judged on."""


def test_loops_are_on_the_page() -> None:
    assert len(LOOPS) >= FEWEST
    assert len({loop.shows for loop in LOOPS.values()}) == len(LOOPS)
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "kit.md").read_text()
    for name, loop in LOOPS.items():
        assert f"| `{name}` | {loop.shows} |" in page


@pytest.mark.parametrize("name", LOOPS)
def test_loop_trains(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PyTorch is; small, on a processor."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    monkeypatch.setattr(loops, "TIMED", 1)
    step = LOOPS[name].make_step(Place(torch, "cpu", 0, step_s=0.05, shrink=16))
    began = time.monotonic()
    step()
    assert time.monotonic() - began > 0.01
