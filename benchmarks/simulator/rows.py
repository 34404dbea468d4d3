"""Recorded rows of CLBlast's GEMM, and what our kernels of the same configurations do."""

from __future__ import annotations

import csv
import gzip
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import clblast, estimated
from benchmarks.common.clblast import Xgemm
from ekc.codegen.compiled import CompiledKernel, Launch, Resources
from ekc.devices.simulated import specs
from ekc.devices.simulated.events import Events, count_events
from ekc.devices.simulated.launch_counts import LaunchProfile, Occupancy, compute_occupancy, profile_kernel
from ekc.devices.simulated.memory_traffic import SimulatedTraffic
from ekc.devices.simulated.specs import GpuSpec
from ekc.errors import InvalidInput

SIDE = 4096


@dataclass(frozen=True)
class Recording:
    """One file of rows, and the GPU they are of."""

    file: str
    device: str
    clock_share: float = 0.0
    """Clock over the boost clock of the data sheet where the rows do not hold it: fitted by
    fidelity.py, as cards boost beyond their data sheet while they are cool. 0 where they do."""

    @property
    def spec(self) -> GpuSpec:
        """Its GPU."""
        found = specs.find_spec(self.device)
        assert found is not None
        return found


LATENCY = (
    Recording("a100_gemm_energy.csv.gz", "a100"),
    Recording("clblast_gemm_rtx_3090.csv.gz", "rtx3090", 1.05),
    Recording("clblast_gemm_rtx_2080_ti.csv.gz", "rtx2080ti", 1.19),
)
CLOCKS = Recording("a100_gemm_clocks.csv", "a100")
FMA = Recording("fp32_power_vs_clock.csv", "a100")


@dataclass(frozen=True)
class Row:
    """One recorded measurement; power 0 where none was taken, the data sheet's clock where none was kept."""

    one: Xgemm
    seconds: float
    clock_mhz: float
    power_w: float


@dataclass(frozen=True)
class Work:
    """Work of a configuration, compiled or estimated; or of several, with an array for each figure."""

    events: Events
    resident: Occupancy
    registers: Any


Pairs = Sequence[tuple[Row, Work]]
"""Rows, and what their configurations do."""


def stack_works(works: Sequence[Work]) -> Work:
    """Several works as one whose figures are arrays, for the models, which compute all at once."""

    def stack(parts: Sequence[Any]) -> dict[str, Any]:
        return {f.name: np.array([getattr(one, f.name) for one in parts]) for f in fields(parts[0])}

    events, traffic = [w.events for w in works], [w.events.traffic for w in works]
    stacked = stack(events) | {"traffic": SimulatedTraffic(**stack(traffic))}
    residents = Occupancy(**stack([w.resident for w in works]))
    return Work(Events(**stacked), residents, np.array([w.registers for w in works]))


def pair_rows(rows: Sequence[Row], works: dict[Xgemm, Work | None]) -> Pairs:
    """Rows whose kernel fits the GPU."""
    return [(row, work) for row in rows if (work := works[row.one]) is not None]


def read(data: Path, recording: Recording) -> list[Row]:
    """All rows of a recording."""
    return [_parse_row(fields, recording) for fields in read_table(data / recording.file)]


def read_table(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, compressed or not; `InvalidInput` where there is none."""
    if not file.is_file():
        raise InvalidInput(f"no recording {file}: --data must name the folder that holds {file.name}")
    with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as stream:
        return list(csv.DictReader(stream))


def _parse_row(fields: dict[str, str], recording: Recording) -> Row:
    clock = float(fields.get("clock_mhz", recording.spec.boost_mhz))
    power = float(fields.get("power_w", 0.0))
    return Row(clblast.parse_configuration(fields), float(fields["time_ms"]) * 1e-3, clock, power)


def sample_stratified(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    """One row out of each of `count` equal slices of the rows in order of time."""
    if count >= len(rows):
        return list(rows)
    random = np.random.default_rng(seed)
    order = np.argsort([row.seconds for row in rows], kind="stable")
    return [rows[int(random.choice(part))] for part in np.array_split(order, count)]


def select_half(rows: Iterable[Row], seed: int) -> NDArray[np.bool_]:
    """Which rows to fit on: half of the configurations, all rows of one on the same side."""
    listed = [row.one for row in rows]
    kinds = sorted(set(listed), key=str)
    drawn = np.random.default_rng(seed).permutation(len(kinds)) < len(kinds) / 2
    side = dict(zip(kinds, drawn, strict=True))
    return np.array([side[one] for one in listed])


def is_unfitted(one: Xgemm) -> bool:
    """Whether a configuration belongs to the half that scores; the other half may be fitted on."""
    return hashlib.sha256(str(one).encode()).digest()[-1] % 2 == 1


def compile_work(spec: GpuSpec, one: Xgemm) -> Work | None:
    """Work by ptxas and the PTX machine; None where no block fits the GPU."""
    return get_kernel_work(spec, clblast.compile_kernel(one, SIDE, spec.arch))


def get_kernel_work(spec: GpuSpec, kernel: CompiledKernel) -> Work | None:
    """Work of a kernel of one launch."""
    return _make_work(spec, kernel.launches[0], kernel.resources[0], profile_kernel(kernel)[0])


def estimate_work(spec: GpuSpec, one: Xgemm) -> Work | None:
    """Work by the analysis."""
    return _make_work(spec, *estimated.estimate_work(one, SIDE))


def compute_works(
    spec: GpuSpec, rows: Iterable[Row], how: Callable[[GpuSpec, Xgemm], Work | None]
) -> dict[Xgemm, Work | None]:
    """The work of every configuration among the rows."""
    return {one: how(spec, one) for one in dict.fromkeys(row.one for row in rows)}


def _make_work(spec: GpuSpec, launch: Launch, resources: Resources, ran: LaunchProfile) -> Work | None:
    shared = launch.shared_bytes + resources.shared_bytes
    threads = launch.block[0] * launch.block[1]
    resident = compute_occupancy(spec.capability, threads, resources.registers, shared)
    if resident.blocks == 0:
        return None
    return Work(count_events(spec, launch, resources, ran, resident), resident, resources.registers)
