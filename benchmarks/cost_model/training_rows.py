"""Rows that the boosted model is trained on: schedules of many operators, on every simulated device.

The figures are those of the models of the simulated devices, without the seeded residual of each kernel: it
cannot be learned. Half of the schedules of an operator are drawn at random among the legal ones, half among
the twentieth that the analytic prior expects to be fastest, where a search decides. Kernels that spill
registers are left out, as in a search.

Rows are kept in a folder, a file for each operator, architecture and version of the simulator, so that a run
that was stopped goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import ekc
from ekc import devices
from ekc.codegen.generate import compile_schedule
from ekc.devices.device import Device, Peaks
from ekc.devices.recording import read_recording
from ekc.devices.simulated.device import SIMULATOR_VERSION, SimulatedDevice
from ekc.devices.simulated.launch_counts import collect_facts
from ekc.devices.simulated.specs import SPECS
from ekc.errors import EkcError
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.search.cost_model.surrogate import has_spilled
from ekc.search.space.space import Space

Array = NDArray[np.float64]

OPERATORS: Mapping[str, Callable[[], Operator]] = {
    "matmul 1024x1024x1024": lambda: ekc.matmul(1024, 1024, 1024),
    "matmul 512x3072x768": lambda: ekc.matmul(512, 3072, 768),
    "matmul 4096x4096x4096": lambda: ekc.matmul(4096, 4096, 4096),
    "matmul 127x255x63": lambda: ekc.matmul(127, 255, 63),
    "matmul 64x512x8192": lambda: ekc.matmul(64, 512, 8192),
    "matmul 768x768x2048 transposed": lambda: ekc.matmul(768, 768, 2048, transpose_a=True),
    "matmul 512x512x512 float16": lambda: ekc.matmul(512, 512, 512, dtype="float16"),
    "matmul 2048x2048x2048 float16": lambda: ekc.matmul(2048, 2048, 2048, dtype="float16"),
    "matmul 4096x4096x4096 float16": lambda: ekc.matmul(4096, 4096, 4096, dtype="float16"),
    "matmul 1024x1024x1024 int8": lambda: ekc.matmul(1024, 1024, 1024, dtype="int8"),
    "batch_matmul 12x512x512x64": lambda: ekc.batch_matmul(12, 512, 512, 64),
    "batch_matmul 16x256x256x128 float16": lambda: ekc.batch_matmul(16, 256, 256, 128, dtype="float16"),
    "matvec 4096x4096": lambda: ekc.matvec(4096, 4096),
    "matvec 1024x8192": lambda: ekc.matvec(1024, 8192),
    "matvec 11008x4096 float16": lambda: ekc.matvec(11008, 4096, dtype="float16"),
    "conv2d 1x64x56x56 3x3": lambda: ekc.conv2d(1, 64, 56, 56, out_channels=64, kernel=3, padding=1),
    "conv2d 8x128x28x28 3x3": lambda: ekc.conv2d(8, 128, 28, 28, out_channels=128, kernel=3, padding=1),
    "conv2d 16x256x14x14 3x3": lambda: ekc.conv2d(16, 256, 14, 14, out_channels=256, kernel=3, padding=1),
    "conv2d 1x64x56x56 1x1": lambda: ekc.conv2d(1, 64, 56, 56, out_channels=256, kernel=1),
    "conv2d 1x96x56x56 depthwise": lambda: ekc.conv2d(
        1, 96, 56, 56, out_channels=96, kernel=3, padding=1, groups=96
    ),
    "conv2d 4x64x56x56 3x3 float16": lambda: ekc.conv2d(
        4, 64, 56, 56, out_channels=64, kernel=3, padding=1, dtype="float16"
    ),
    "softmax 1024x1000": lambda: ekc.softmax((1024, 1000)),
    "layer_norm 2048x768": lambda: ekc.layer_norm((2048, 768)),
    "rms_norm 512x4096 float16": lambda: ekc.rms_norm((512, 4096), dtype="float16"),
    "reduce 4096x4096": lambda: ekc.reduce((4096, 4096), (1,), "sum"),
}
SCHEDULES = 40
"""Schedules of each operator and architecture."""
DRAWN, FAST_SHARE = 3000, 0.05
"""Genomes drawn to choose from; share of them, by the prior's latency, that half of the schedules are of."""


class DeviceFigures(NamedTuple):
    """Figures of a device that are inputs of the models."""

    peaks: Peaks
    sms: int


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Measured schedules. Arrays have one entry per row."""

    devices: Mapping[str, DeviceFigures]
    """Devices of the rows, by name."""
    operator: NDArray[np.str_]
    device: NDArray[np.str_]
    arch: NDArray[np.str_]
    quantities: Mapping[str, Array]
    """The analysis of each schedule."""
    latency_s: Array
    power_w: Array

    def __len__(self) -> int:
        return len(self.latency_s)

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> TrainingRows:
        picked = {name: values[rows] for name, values in self.quantities.items()}
        labels = self.operator[rows], self.device[rows], self.arch[rows]
        return TrainingRows(self.devices, *labels, picked, self.latency_s[rows], self.power_w[rows])


def collect_rows(folder: Path, seed: int) -> TrainingRows:
    """Collect the rows of all operators, from files of the folder where they were collected before."""
    folder.mkdir(parents=True, exist_ok=True)
    archs = sorted({spec.arch for spec in SPECS.values()})
    parts = [_collect_cached(folder, name, arch, seed) for name in OPERATORS for arch in archs]
    return concatenate([part for part in parts if len(part)])


def concatenate(parts: Sequence[TrainingRows]) -> TrainingRows:
    """All rows of several sets."""
    names = set(parts[0].quantities).intersection(*(part.quantities for part in parts))
    devices = {name: figures for part in parts for name, figures in part.devices.items()}
    quantities = {name: np.concatenate([part.quantities[name] for part in parts]) for name in sorted(names)}
    columns = ("operator", "device", "arch", "latency_s", "power_w")
    operator, device, arch, *figures = (np.concatenate([getattr(p, c) for p in parts]) for c in columns)
    return TrainingRows(devices, operator, device, arch, quantities, *figures)


def _collect_cached(folder: Path, name: str, arch: str, seed: int) -> TrainingRows:
    file = folder / f"{name.replace(' ', '_')}-{arch}-seed{seed}-simulator{SIMULATOR_VERSION}.npz"
    if not file.exists():
        rows = _collect(name, arch, seed)
        print(f"{name}, {arch}: {len(rows)} rows", flush=True)
        columns = {f"quantity {key}": values for key, values in rows.quantities.items()}
        partial = file.with_suffix(".part.npz")
        np.savez_compressed(
            partial,
            **columns,
            operator=rows.operator,
            device=rows.device,
            arch=rows.arch,
            latency_s=rows.latency_s,
            power_w=rows.power_w,
        )
        partial.rename(file)
    with np.load(file) as stored:
        quantities = {k.removeprefix("quantity "): stored[k] for k in stored if k.startswith("quantity ")}
        labels = stored["operator"], stored["device"], stored["arch"]
        found = {str(name): _get_figures(devices.open(str(name))) for name in set(labels[1])}
        return TrainingRows(found, *labels, quantities, stored["latency_s"], stored["power_w"])


def _get_figures(device: Device) -> DeviceFigures:
    return DeviceFigures(device.peaks, device.limits.sms)


def read_recorded_rows(file: Path) -> TrainingRows:
    """Read the metered kernels of a recording, as this version of ekc analyses them."""
    recording = read_recording(file)
    origin = recording.origin
    rows = [r for r in recording.rows if r.timings and r.meterings and not r.failure]
    analyses = [analyse_program(r.schedule.program, origin.limits) for r in rows]
    return TrainingRows(
        {origin.name: DeviceFigures(origin.peaks, origin.limits.sms)},
        np.array([str(recording.operators[r.operator]).splitlines()[0] for r in rows]),
        np.full(len(rows), origin.name),
        np.full(len(rows), origin.arch),
        {name: np.concatenate([a[name] for a in analyses]) for name in analyses[0]},
        np.array([r.find_timing().latency_s for r in rows]),
        np.array([r.find_metering().power_w for r in rows]),
    )


def _collect(name: str, arch: str, seed: int) -> TrainingRows:
    """Draw schedules of an operator, compile them once, and ask every device of the architecture."""
    opened = [devices.open(f"{device}@no-residual") for device, spec in SPECS.items() if spec.arch == arch]
    targets = [device for device in opened if isinstance(device, SimulatedDevice)]
    op = OPERATORS[name]()
    labels, columns, figures = list[str](), list[dict[str, float]](), list[tuple[float, float]]()
    for schedule, quantities in _draw_schedules(op, targets[0], seed):
        try:
            kernel = compile_schedule(schedule, arch, targets[0].limits)
            kernel = replace(kernel, facts=collect_facts(kernel))
        except EkcError as problem:
            print(f"{name}, {arch}: left out, {str(problem).splitlines()[0]}")
            continue
        if has_spilled(kernel.resources):
            continue
        for target in targets:
            found = target.break_down_energy(kernel)
            labels.append(target.name)
            columns.append(quantities)
            figures.append((found.latency_s, found.power_w))
    latency_s, power_w = np.array(figures).reshape(-1, 2).T
    names = sorted(columns[0]) if columns else []
    return TrainingRows(
        {target.name: _get_figures(target) for target in targets},
        np.full(len(labels), name),
        np.array(labels, dtype=str),
        np.full(len(labels), arch),
        {key: np.array([c[key] for c in columns]) for key in names},
        latency_s,
        power_w,
    )


def _draw_schedules(
    op: Operator, device: SimulatedDevice, seed: int
) -> Iterator[tuple[Schedule, dict[str, float]]]:
    """Yield (schedule, its analysis): half of all legal ones, half of those with the least expected time."""
    space, random = Space(op, device.limits), np.random.default_rng(seed)
    drawn, _ = space.repair(random, space.sample(random, DRAWN))
    drawn = drawn[np.unique(space.compute_keys(drawn), return_index=True)[1]]
    quantities = space.compute_quantities(drawn)
    order = np.argsort(device.prior(quantities).latency_s, kind="stable")
    fast = order[: max(int(FAST_SHARE * len(order)), 1)]
    half = SCHEDULES // 2
    rows = np.union1d(random.permutation(fast)[:half], random.permutation(len(drawn))[:half])
    for row in rows.tolist():
        yield space.build_schedule(drawn, row), {key: float(v[row]) for key, v in quantities.items()}
