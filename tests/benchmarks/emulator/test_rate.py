"""The rate of the PTX machine."""

from __future__ import annotations

import pytest

from benchmarks.emulator import rate
from tests.benchmarks.helpers import Run


@pytest.mark.slow
def test_kernels_are_right_and_counted(run: Run) -> None:
    text, figures = run("emulator.rate", "--side", "128", "--large", "256", "--naive", "20", "--seed", "3")
    whole, unwatched, chosen, *naives = figures["lines"]
    assert "lane instr./s" in text
    assert "CUDA simulator" in text
    assert [whole["sanitize"], unwatched["sanitize"]] == [True, False]
    assert whole["lane_instructions"] == unwatched["lane_instructions"] > 128**3
    assert whole["blocks_run"] == whole["total_blocks"] == 1
    assert chosen["blocks_run"] == chosen["total_blocks"] == 4
    assert naives[0]["lane_instructions"] > 20**3
    assert whole["bar"] == {"seconds": 4.0, "peak_bytes": 2**30}
    assert chosen["bar"]["seconds"] == 10.0
    for line in figures["lines"]:
        assert line["right"]
        assert line["findings"] == []
        assert line["peak_bytes"] > 2**20
        assert line["lane_instructions_per_s"] == pytest.approx(line["lane_instructions"] / line["seconds"])
    assert figures["pass"] == all(line["pass"] for line in figures["lines"])
    if figures["numba"] is None:
        assert "not installed (pip install numba" in text
    else:
        assert figures["numba"]["right"]


def test_slow_large_or_wrong_run_fails_its_bar() -> None:
    good = {"right": True, "findings": [], "seconds": 3.9, "peak_bytes": 2**29}
    for change in ({}, {"seconds": 4.1}, {"peak_bytes": 2**30}, {"right": False}, {"findings": ["race"]}):
        assert rate.judge(good | change, rate.WHOLE_BAR_S, rate.MEMORY_BAR)["pass"] == (not change)
    a, b = rate.make_operands(8, 0)
    assert rate.matches_product(a @ b, a, b)
    assert not rate.matches_product(a @ b + 1e-4, a, b)
    assert rate.choose_blocks(3, 4, 0) == [0, 1, 2]
    assert len(rate.choose_blocks(100, 4, 0)) == 4
