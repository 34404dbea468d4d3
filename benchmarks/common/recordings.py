"""The recordings that `search/quality.py` searches, and the bar on each."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ekc.errors import InvalidInput
from ekc.search.replay.table_space import MeasurementTable, make_table

GEMM = (
    "MWG",
    "NWG",
    "KWG",
    "MDIMC",
    "NDIMC",
    "MDIMA",
    "NDIMB",
    "KWI",
    "VWM",
    "VWN",
    "STRM",
    "STRN",
    "SA",
    "SB",
)
CONVOLUTION = (
    *("block_size_x", "block_size_y", "tile_size_x", "tile_size_y"),
    *("read_only", "use_padding", "use_shmem"),
)
HOTSPOT = ("tile_size_y", "temporal_tiling_factor", "loop_unroll_factor_t", "sh_power", "blocks_per_sm")
COSTS = ("compile_time_ms", "benchmark_time_ms")


@dataclass(frozen=True)
class Recording:
    """One file, what its columns mean, and how many evaluations a search gets."""

    name: str
    file: str
    decisions: tuple[str, ...]
    figure: str
    costs_ms: tuple[str, ...]
    trials: int
    tuned_on: bool
    """Whether constants of the search were chosen with an eye on this recording."""
    bar: tuple[float, float] | None = None
    """Median and 90th percentile of figure over optimum that the project asks for."""


RECORDINGS = (
    Recording("GEMM RTX 3090", "clblast_gemm_rtx_3090", GEMM, "time_ms", COSTS, 200, False, (1.018, 1.049)),
    Recording("GEMM RTX 2080 Ti", "clblast_gemm_rtx_2080_ti", GEMM, "time_ms", COSTS, 200, True),
    Recording("conv A100", "convolution_a100", CONVOLUTION, "time_ms", COSTS, 100, False, (1.128, 1.487)),
    Recording("conv A4000", "convolution_a4000", CONVOLUTION, "time_ms", COSTS, 100, True),
    Recording(
        *("hotspot A4000 energy", "a4000_hotspot_energy", HOTSPOT, "energy_j", ()),
        *(100, False, (1.000, 1.152)),
    ),
    Recording("GEMM A100 energy", "a100_gemm_energy", GEMM, "energy_j", (), 100, True),
)


@cache
def read(folder: Path, recording: Recording) -> MeasurementTable:
    """The table of a recording; `InvalidInput` where the folder has none."""
    rows = read_table(folder / f"{recording.file}.csv.gz")
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return make_table(columns, recording.decisions, recording.figure, recording.costs_ms)


def read_table(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, compressed or not; `InvalidInput` where there is none."""
    if not file.is_file():
        raise InvalidInput(
            f"data: {file.parent} has no {file.name}; name the folder that holds the recordings"
        )
    with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as stream:
        return list(csv.DictReader(stream))
