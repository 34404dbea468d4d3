"""The benchmark against Nsight's counters, on a small made-up table whose right answers are known."""

from __future__ import annotations

import csv
import gzip
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.common import ranking
from benchmarks.simulator import counter_kernels, counters
from tests.benchmarks.helpers import Run

WIDTH, HEIGHT, HALF = 40, 24, 1


def multiply_adds(bx: int, by: int, tx: int, ty: int) -> int:
    """Multiply-adds of the threads of a design, those beyond the image included."""
    blocks = -(-WIDTH // (bx * tx)) * -(-HEIGHT // (by * ty))
    return blocks * bx * by * tx * ty * (2 * HALF + 1) ** 2


def write_table(folder: Path, designs: list[tuple[int, int, int, int]]) -> None:
    """The recording's columns for some designs: fp32 as it must be, all else the same throughout."""
    sizes = ("BLOCK_SIZE_X", "BLOCK_SIZE_Y", "TILE_SIZE_X", "TILE_SIZE_Y")
    columns = {name: column for name, (column, _) in counters.COUNTERS.items()}
    with gzip.open(folder / counters.TABLE, "wt", newline="") as file:
        writer = None
        for design, padding, read_only in itertools.product(designs, (0, 1), (0, 1)):
            line: dict[str, Any] = dict(zip(sizes, design, strict=True))
            line |= {"PADDING": padding, "READ_ONLY": read_only, counters.SPILLS: 0}
            line |= {"IMAGE_WIDTH": WIDTH, "IMAGE_HEIGHT": HEIGHT, "HFS": HALF}
            line |= dict.fromkeys(columns.values(), 1.0) | {columns["fp32"]: multiply_adds(*design)}
            writer = writer or csv.DictWriter(file, list(line))
            if not file.tell():
                writer.writeheader()
            writer.writerow(line)


@pytest.mark.slow
def test_counters_of_a_made_up_table(run: Run, tmp_path: Path) -> None:
    designs = [
        (2048, 1, 1, 1),
        (8, 4, 1, 1),
        (16, 4, 1, 2),
        (16, 2, 2, 1),
        (32, 2, 1, 1),
        (32, 4, 3, 3),
        (4, 8, 2, 1),
    ]
    write_table(tmp_path, designs)
    text, figures = run("simulator.counters", "--data", str(tmp_path))
    lines = {line["counter"]: line for line in figures["lines"]}
    assert figures["recorded_rows"] == 4 * len(designs)
    assert figures["left_out"] == {counters.NO_COUNTERPART: 2 * len(designs), counters.REPEATS: len(designs)}
    assert figures["compared"] == len(designs) - 1
    ((why, number),) = figures["refused"].items()
    assert number == 1
    assert "2048" in why
    assert why in text
    assert lines["fp32"]["ekc"] == lines["fp32"]["text"] == pytest.approx(1.0)
    assert lines["fp32"]["ekc_level"] == 1.0
    assert lines["fp32"]["pass"]
    assert lines["requests"]["ekc"] is None
    assert not lines["requests"]["pass"]
    assert not figures["pass"]
    assert text.rstrip().endswith("FAIL")


def test_counter_passes_when_it_ranks_as_measured() -> None:
    def line(ours: list[float], measured: list[float]) -> dict[str, Any]:
        rows = [
            counters.Row(
                counter_kernels.Design(x, 1, 1, 1, WIDTH, HEIGHT, 7 * x), {"fp32": m}, {"fp32": m}, False
            )
            for x, m in enumerate(measured, 1)
        ]
        done = [counters.Counted(r, {"fp32": o}, None) for r, o in zip(rows, ours, strict=True)]
        found: dict[str, Any] = counters.compare_counter("fp32", done)
        return found

    right = line([2.0, 4.0, 6.0, 8.0], [1.0, 2.0, 3.0, 4.0])
    assert right["ekc"] == right["repeat"] == right["trivial"] == pytest.approx(1.0)
    assert right["trivial_is"] == "block width"
    assert right["ekc_level"] == 2.0
    assert right["text"] is None
    assert right["pass"]
    assert [
        counters.Row(counter_kernels.Design(8, 8, 1, t, 64, 64, 7), {}, {}, False).small for t in (6, 7)
    ] == [
        True,
        False,
    ]
    wrong = line([1.0, 2.0, 4.0, 3.0], [4.0, 5.0, 6.0, 7.0])
    assert wrong["ekc"] == pytest.approx(0.8)
    assert wrong["ekc_small"] == pytest.approx(1.0)
    assert not wrong["pass"]


def test_missing_recording_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        counters.main(["--data", str(tmp_path)])
    assert "has no ktt_convolution_rtx_2080_ti_counters.csv.gz" in capsys.readouterr().err.splitlines()[-1]


def test_spearman() -> None:
    a = np.array([1.0, 2.0, 3.0, 4.0])
    assert ranking.spearman(a, np.exp(a)) == pytest.approx(1.0)
    assert ranking.spearman(a, -a) == pytest.approx(-1.0)
    assert ranking.spearman(a, np.ones(4)) is None
    assert ranking.spearman(a[:0], a[:0]) is None
    assert ranking.spearman(a, np.array([1.0, 1.0, 2.0, 2.0])) == pytest.approx(4 / 20**0.5)


def test_strata_cover_the_grid() -> None:
    ragged = counter_kernels.Design(16, 4, 1, 2, WIDTH, 20, HALF)
    found = counter_kernels.stratify_blocks(ragged, np.random.default_rng(0))
    assert sum(size for size, _ in found) == ragged.grid[0] * ragged.grid[1] == 3 * 3
    assert sorted(size for size, _ in found) == [1, 2, 2, 4]
    assert (1, [8]) in found
    counts = counter_kernels.count_text(ragged, 0)
    assert counts["fp32"] == ragged.threads * 2 * 9
    assert counts["written sectors"] == WIDTH * 20 // 8
    assert counts["store wavefronts"] >= counts["requests"]
