"""The benchmark of measured kernels that ekc did not generate, on kernels made up here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulator import foreign, foreign_rows
from benchmarks.simulator.foreign import Timed
from benchmarks.simulator.foreign_rows import FITTED, SCORED, ForeignRow, list_rows, read_rows
from tests.benchmarks.helpers import Run

SOURCE = """
extern "C" __global__ void NAME(const float* x, float* y, int n) {
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += 256 * gridDim.x) y[i] = 2.0f * x[i];
}
"""


def make_line(number: int, blocks: int, us: float, size: int = 1 << 24, **others: Any) -> dict[str, Any]:
    name = f"scale_{number}"
    launch = {
        "name": name, "grid": [blocks, 1, 1], "block": [256, 1, 1], "shared_bytes": 0,
        "arguments": ["x", "y"],
        "argument_bytes": {"x": 4 * size, "y": 4 * size}, "runtime": ["n"], "tma": 0, "indirect": 0,
        "serial": 0, "zero": 0,
    }  # fmt: skip
    return {
        "row": number, "card": "a100_sm80", "kernel": "scale", "bindings": {"n": size}, "pins": {}, "us": us,
        "knobs": {"REDUCE": "coop"}, "flag": None, "tma_as_cp_async": False, "symbols": {"n": size},
        "launches": [launch], "sources": {name: SOURCE.replace("NAME", name)},
    } | others  # fmt: skip


def write_lines(folder: Path, *lines: dict[str, Any]) -> Path:
    (folder / "a100_sm80.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_rows_are_timed_compared_and_ranked(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """134 MB move in about 95 us; with 16 blocks on 108 SMs it takes twice as long or more."""
    write_lines(tmp_path, make_line(0, 864, 95.0), make_line(1, 16, 300.0), make_line(2, 1728, 96.0))
    lists = tmp_path / "rows.json"
    lists.write_text(json.dumps({"a100_sm80": {"flagged": [], "stale": [], FITTED: [0], SCORED: [1, 2]}}))
    monkeypatch.setattr(foreign, "LISTS", lists)
    monkeypatch.setattr(foreign, "DRAWS", 100)
    text, figures = run("simulator.foreign", "--data", str(tmp_path), "--cache", str(tmp_path / "cache"))
    lines = {(line["card"], line["which"]): line for line in figures["lines"]}
    every = lines["a100_sm80", "all"]
    assert every["rows"] == 3
    assert every["simulated"]["median_error"] < 0.1
    low, high = every["simulated"]["error_interval"]
    assert low <= every["simulated"]["median_error"] <= high
    assert lines["a100_sm80", "reduction"]["rows"] == 3
    groups = lines["groups", "all"]["simulated"]
    assert (groups["pairs"], groups["right"], groups["ties"]) == (2, 2, 0)
    assert groups["pick_cost"] <= 0.02 < groups["random_cost"]
    again, _ = run("simulator.foreign", "--data", str(tmp_path), "--cache", str(tmp_path / "cache"))
    assert again == text


def test_rows_that_contradict_each_other_are_left_out(tmp_path: Path) -> None:
    """One text under two names, times that differ 50-fold; a row that the printer doubts."""
    write_lines(
        tmp_path,
        make_line(0, 64, 50.0),
        make_line(1, 64, 1.0),
        make_line(2, 128, 50.0),
        make_line(3, 256, 50.0, flag="another schedule"),
        make_line(4, 512, 50.0, error="not printed"),
    )
    (lists,) = list_rows(read_rows(tmp_path)).values()
    assert (lists["stale"], lists["flagged"]) == ([0, 1], [3])
    assert sorted(lists[FITTED] + lists[SCORED]) == [2]


def test_rows_of_one_group_are_in_one_half(tmp_path: Path) -> None:
    lines = [make_line(n, 64 + n, 50.0, size=1 << (10 + n % 8)) for n in range(32)]
    (lists,) = list_rows(read_rows(write_lines(tmp_path, *lines))).values()
    halves = [{n % 8 for n in lists[half]} for half in (FITTED, SCORED)]
    assert halves[0].isdisjoint(halves[1])
    assert halves[0] | halves[1] == set(range(8))


def make_timed(real: float, simulated: float, group: str = "g") -> Timed:
    row = ForeignRow("a100_sm80", 0, group, real, "", False, {}, "", (), {})
    return Timed(row, "reduction", simulated, real, {})


def test_ties_count_as_wrong_and_cost_their_mean() -> None:
    rows = [make_timed(1.0, 2.0), make_timed(2.0, 2.0), make_timed(1.1, 3.0)]
    found = foreign.score_groups(rows, 0, lambda one: one.simulated_s)
    # 1.0 and 1.1 are alike; 1.0 against 2.0 is a tie, 1.1 against 2.0 the wrong way round.
    assert (found["pairs"], found["right"], found["ties"]) == (2, 0, 1)
    assert found["pick_cost"] == pytest.approx(0.5)
    apart = [replace(one, row=replace(one.row, group=str(n))) for n, one in enumerate(rows)]
    several = foreign.score_groups(
        [*apart, make_timed(1.0, 1.0), make_timed(2.0, 2.0)], 0, lambda o: o.simulated_s
    )
    assert (several["groups"], several["pairs"], several["right"]) == (1, 1, 1)


def test_listed_rows_name_each_row_once() -> None:
    for card, lists in json.loads(foreign_rows.LISTS.read_text()).items():
        numbers = [number for part in lists.values() for number in part]
        assert len(numbers) == len(set(numbers)), card
        assert len(lists["stale"]) % 2 == 0
