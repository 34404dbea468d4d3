"""The simulated h200 against recorded library kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.simulator import h200
from tests.benchmarks.helpers import Run
from tests.benchmarks.recordings import write_products


@pytest.mark.slow
def test_recorded_shape_is_tuned(run: Run, tmp_path: Path) -> None:
    write_products(tmp_path)
    options = ("--only", "h200", "--shapes", "1", "--trials", "4", "--seed", "1")
    text, figures = run("simulator.fidelity", "--data", str(tmp_path), *options)
    assert "h200 (simulated)" in text
    result = figures["h200"]
    assert result["rows"] == 400
    (one,) = result["shapes"]
    assert one["shape"] == [256, 256, 256]
    assert one["ratio"] == result["ratio"]["most"] == pytest.approx(one["simulated_s"] / one["recorded_s"])
    assert 100 < one["simulated_w"] <= 700
    # All rows that are long enough for the meter do more than it can.
    assert result["power"] is None
    assert figures["pass"] is True


def test_power_is_scored_against_rows_of_equal_rates(tmp_path: Path) -> None:
    write_products(tmp_path)
    rows = [row for row in h200.read(tmp_path) if row.seconds >= h200.LONG_S]
    assert {row.m for row in rows} == {8192}
    other = {"ratio": 1.0, "simulated_tflops": 1e-3, "simulated_s": 1.0, "gbytes": 1.0, "simulated_w": 1.0}
    like = other | {"simulated_tflops": 300.0, "simulated_s": 2 * 8192**3 / 300e12, "gbytes": 0.403}
    ours = [like | {"simulated_w": watt} for watt in (400.0, 410.0, 420.0, 430.0, 440.0)]
    assert h200.score_power(rows, [*ours[1:], other], 0) is None
    found = h200.score_power(rows, [*ours, other], 0)
    assert found is not None
    # Rows of 300 TFLOP/s take 3.7 ms and draw about 443 W.
    assert found["shipped"]["rows"] == found["trivial"]["table by TFLOP/s"]["rows"] == 5
    assert found["shipped"]["median_error"] == pytest.approx(0.05, abs=0.02)
    assert found["bias"] == pytest.approx(-0.05, abs=0.02)
    assert found["pass"] is True


def test_shape_line_names_the_instruction_and_the_time_without_it() -> None:
    shape = {"shape": [3, 768, 2048], "recorded_s": 7.4e-6, "recorded_tflops": 1.3, "recorded_w": 156.0}
    ours = {"simulated_s": 21e-6, "ratio": 2.8, "simulated_tflops": 0.4, "simulated_w": 185.0}
    warp, group = ours | {"warpgroup": False, "parts": False}, ours | {"warpgroup": True, "parts": True}
    faster = {"without_s": 4.63e-6}
    shapes = [shape | warp, shape | group | faster, shape | faster]
    result = h200.format_result({"trials": 64, "shapes": shapes, "ratio": {}, "power": None}).splitlines()[
        4:7
    ]
    assert [line.endswith("  4.6 without them") for line in result] == [False, True, True]
    assert result[0].endswith("  mma")
    assert "  wgmma, in parts  " in result[1]
