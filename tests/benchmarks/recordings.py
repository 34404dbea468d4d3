"""Made-up recordings for the benchmarks that read them."""

from __future__ import annotations

import csv
import gzip
import itertools
from pathlib import Path
from typing import Any

COLUMNS = "MWG NWG KWG MDIMC NDIMC MDIMA NDIMB KWI VWM VWN STRM STRN SA SB PRECISION"


def make_rows() -> list[dict[str, Any]]:
    """CLBlast configurations with made-up times: the smaller the tile of a thread, the longer."""
    rows = []
    for nwg, sa, sb in itertools.product((32, 64), (0, 1), (0, 1)):
        values = (32, nwg, 32, 8, 8, 8, 8, 2, 2, 1, 0, 0, sa, sb, 32)
        seconds = 1e3 / nwg + 2 * sa + sb
        rows.append(dict(zip(COLUMNS.split(), values, strict=True)) | {"time_ms": seconds})
    return rows


def write_gemm(folder: Path) -> None:
    """Write all files of recordings of CLBlast's GEMM."""
    rows = make_rows()
    measured = [row | {"power_w": 200.0 + n, "clock_mhz": 1050} for n, row in enumerate(rows)]
    fma = [{"gpu": "A100-PCIE-40GB", "clock_mhz": clock, "power_w": clock / 10} for clock in (600, 900, 1200)]
    files = {
        "a100_gemm_energy.csv.gz": measured,
        "clblast_gemm_rtx_3090.csv.gz": rows,
        "clblast_gemm_rtx_2080_ti.csv.gz": rows,
        "a100_gemm_clocks.csv": measured,
        "fp32_power_vs_clock.csv": fma,
    }
    for name, table in files.items():
        opened = gzip.open if name.endswith("gz") else open
        with opened(folder / name, "wt") as stream:
            writer = csv.DictWriter(stream, list(table[0]))
            writer.writeheader()
            writer.writerows(table)


def write_products(folder: Path) -> None:
    """Write made-up library kernels of some TFLOP/s and watts; the meter missed one."""
    with gzip.open(folder / "h200_gemm_power.csv.gz", "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["gemm_dtype", "m", "n", "k", "time_ms", "power_w"])
        for n in range(200):
            writer.writerow(["bfloat16", 256, 256, 256, 1e-3 * (3 + 0.1 * n), 300 + n])
            writer.writerow(["bfloat16", 8192, 8192, 8192, 1e-3 * (200 + 80 * n), 400 + n])
            writer.writerow(["fp8_block", 256, 256, 256, 1e-3, 1000])
        writer.writerow(["bfloat16", 8192, 8192, 8192, 2.0, 137])


def write_hotspot(folder: Path) -> None:
    """Write a made-up recording: least at tile 3, factor 2, unroll 1; two rows failed."""
    names = ("tile_size_y", "temporal_tiling_factor", "loop_unroll_factor_t", "sh_power", "blocks_per_sm")
    with gzip.open(folder / "a4000_hotspot_energy.csv.gz", "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "energy_j"])
        for row in itertools.product((1, 2, 3), (1, 2, 4), (1, 2), (0, 1), (0, 1, 2)):
            tile, factor, unroll, power, blocks = row
            joules = 1 + abs(tile - 3) + abs(factor - 2) + 0.5 * (unroll - 1) + 0.1 * power + 0.01 * blocks
            writer.writerow([*row, "" if row[3:] == (1, 2) and factor == 4 and unroll == 1 else joules])


def write_timed_hotspot(folder: Path, twice: bool) -> None:
    """Write a made-up recording whose power depends on the tile alone, and the noise of a meter."""
    names = ("tile_size_y", "temporal_tiling_factor", "loop_unroll_factor_t", "sh_power", "blocks_per_sm")
    with gzip.open(folder / "a4000_hotspot_energy.csv.gz", "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "time_ms", "energy_j"])
        for row in itertools.product((1, 2, 3, 4, 5, 6, 7), (1, 2, 4), (1, 2), (0, 1), (0, 1, 2)):
            milliseconds = 1 + abs(row[1] - 2) + 0.5 * row[2] + 0.1 * row[3] + 0.01 * row[4]
            writer.writerow([*row, milliseconds, milliseconds * (50 + 100 / row[0]) / 1e3])
    with gzip.open(folder / "a4000_gemm_noise.csv.gz", "wt", newline="") as file:
        csv.writer(file).writerows([("rep", "time_ms", "energy_j"), (0, 2, 0.98), (1, 2, 1.02)][: 2 + twice])
