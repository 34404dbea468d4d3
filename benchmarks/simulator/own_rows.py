"""Kernels of ekc that a real GPU timed, metered or counted, and the same kernels on its simulated model."""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.contenders import Group
from benchmarks.gpu.equals_report import read_groups
from benchmarks.gpu.fidelity import find_model
from benchmarks.gpu.folder import RECORDING, TUNING, Folder
from ekc import devices
from ekc.codegen.generate import compile_schedule
from ekc.devices.recording import read_recording
from ekc.devices.simulated import power
from ekc.devices.simulated.events import Events
from ekc.devices.simulated.latency import estimate_latency
from ekc.devices.simulated.launch_counts import get_launch_profiles
from ekc.devices.simulated.operating_point import compute_work
from ekc.devices.simulated.specs import SPECS, GpuSpec
from ekc.errors import InvalidInput
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.processes.pool import count_cores
from ekc.search.database.database import RecordStore

DRAM = power.DRAM


@dataclass(frozen=True)
class Measured:
    """One kernel on the real GPU."""

    schedule: Schedule
    latency_s: float
    clock_mhz: float
    call_s: float | None = None
    """Seconds of a call while it was metered, at `metered_mhz`; None where it was not."""
    power_w: float = 0.0
    metered_mhz: float = 0.0
    temperature_c: float = 0.0
    is_equal: bool = False
    """Whether it is one of the schedules of equal speed."""
    counters: Mapping[str, float] | None = None
    """Nsight Compute's, of its first launch."""

    @property
    def is_fitted(self) -> bool:
        """Whether it belongs to the half that the model may be fitted on: an even digest."""
        return int(self.schedule.digest[-1], 16) % 2 == 0


@dataclass(frozen=True)
class OwnRow:
    """A measured kernel and its simulation, without the seeded residual."""

    measured: Measured
    events: Events
    """Events of the first launch."""
    simulated_s: float
    """At the recorded clock, whatever the power: a kernel is timed before the power cap acts."""
    prior_s: float
    """By the analytic prior, which needs no compiled kernel."""
    idle_w: float
    """Watts of the model without a kernel, at the clock and temperature of the metering."""
    clock_w: float
    """Watts of the clock tree of busy SMs."""
    joules: Mapping[str, float]
    """Joules of a call by kind of event, at the clock of the metering; empty where it was not metered."""

    def predict_power(self, call_s: float) -> float:
        """Watts of the board for a time of a call."""
        return self.idle_w + self.clock_w + sum(self.joules.values()) / call_s

    @property
    def operator(self) -> Operator:
        """The operator of the kernel."""
        return self.measured.schedule.op


def read_folder(path: Path) -> tuple[str, GpuSpec, list[OwnRow]]:
    """Label of the GPU, its simulated model, and every kernel of a folder of `benchmarks.gpu`. Raises
    `EkcError` for a folder without a recording, or of a GPU that has no model."""
    folder = Folder(path)
    recording = path / RECORDING
    if not recording.exists():
        raise InvalidInput(f"{path} has no {RECORDING}: run `python -m benchmarks.gpu record` there")
    name = read_recording(recording).origin.name
    model = find_model(name)
    if model is None:
        raise InvalidInput(f"there is no simulated model of {name}")
    spec = SPECS[model.name]
    measured = list(_read_kernels(folder).values())
    jobs = [(spec.name, one) for one in measured]
    with ProcessPoolExecutor(count_cores(), multiprocessing.get_context("spawn")) as pool:
        return str(folder.measured["device"]), spec, list(pool.map(_simulate, jobs, chunksize=4))


def _read_kernels(folder: Folder) -> dict[str, Measured]:
    """Measured kernels by digest; of a kernel that was measured twice, the metering beside its equals."""
    versus = (row for row in folder.list_rows("versus") if row["status"] == "ok" and "schedule" in row)
    found = {one.schedule.digest: one for one in map(_read_versus, versus)}
    found |= {one.schedule.digest: one for one in _read_timed(folder)}
    counters = {row["item"]: row["launches"][0] for row in folder.list_rows("counters") if "launches" in row}
    for row in folder.list_rows("equals"):
        for digest, figures in row.get("figures", {}).items():
            if figures["energy_j"]:
                schedule = Schedule.from_json(row["schedules"][digest])
                found[digest] = _read_equal(schedule, figures)
    for group in read_groups(folder):
        for name in group.kernels:
            if one := _read_rotated(group, name):
                found[one.schedule.digest] = one
    return {
        digest: Measured(**(vars(one) | {"counters": counters.get(digest)})) for digest, one in found.items()
    }


def _read_equal(schedule: Schedule, figures: Mapping[str, Any]) -> Measured:
    watts = figures["power_w"]
    return Measured(
        schedule=schedule,
        latency_s=figures["latency_s"][0][0],
        clock_mhz=figures["clock_mhz"],
        call_s=figures["energy_j"][0][0] / watts,
        power_w=watts,
        metered_mhz=figures["metered_clock_mhz"],
        temperature_c=figures["temperature_c"],
        is_equal=True,
    )


def _read_versus(row: Mapping[str, Any]) -> Measured:
    """The kernel that ran beside a library, by the median of its repetitions."""
    figures = row["figures"]["ekc"]
    latency_s = statistics.median(one[0] for one in figures["latency_s"])
    return Measured(Schedule.from_json(row["schedule"]), latency_s, float(figures["clock_mhz"]))


def _read_rotated(group: Group, name: str) -> Measured | None:
    """A kernel of a rotation, by the medians of its slices; None without a slice that has a power."""
    slices = [one for one in group.list_slices(name) if one.power_w == one.power_w]
    if not slices:
        return None
    figures = ("latency_s", "power_w", "clock_mhz", "temperature_c")
    call_s, watts, mhz, celsius = (statistics.median(getattr(one, x) for one in slices) for x in figures)
    return Measured(
        schedule=Schedule.from_json(group.row["schedules"][name]),
        latency_s=group.row["short_s"][name],
        clock_mhz=group.row["short_mhz"][name],
        call_s=call_s,
        power_w=watts,
        metered_mhz=mhz,
        temperature_c=celsius,
        is_equal=True,
    )


def _read_timed(folder: Folder) -> Iterator[Measured]:
    """Kernels of the records of `tune`, then those of the recording."""
    if (folder.path / TUNING).exists():
        with RecordStore(folder.path / TUNING, create=False) as store:
            for row in store.read_rows(kind="timing"):
                if row.status == "ok" and row.key.draw == 0:
                    clock = float(row.payload["conditions"]["clock_mhz"])
                    yield Measured(Schedule.from_json(row.schedule), float(row.payload["latency_s"]), clock)
    for recorded in read_recording(folder.path / RECORDING).rows:
        if not recorded.timings or recorded.failure:
            continue
        timing = recorded.find_timing()
        one = Measured(recorded.schedule, timing.latency_s, timing.conditions.clock_mhz)
        if recorded.meterings:
            metering = recorded.find_metering()
            conditions = metering.conditions
            one = Measured(
                one.schedule,
                one.latency_s,
                one.clock_mhz,
                metering.energy_j / metering.power_w,
                metering.power_w,
                conditions.clock_mhz,
                conditions.temperature_c,
            )
        yield one


def _simulate(job: tuple[str, Measured]) -> OwnRow:
    name, one = job
    spec = SPECS[name]
    kernel = compile_schedule(one.schedule, spec.arch, spec.limits())
    work = compute_work(spec, kernel, get_launch_profiles(kernel), has_residual=False)
    figures = analyse_program(one.schedule.program, spec.limits())
    clock = min(one.clock_mhz, float(spec.boost_mhz))
    joules: dict[str, float] = {}
    idle_w = clock_w = 0.0
    if one.call_s is not None:
        idle_w = float(power.compute_idle_power(spec, one.metered_mhz, one.temperature_c))
        share = min(1.0, work.launches[0][0].blocks / spec.sms)
        clock_w = float(power.compute_active_clock_power(spec, one.metered_mhz, share))
        scale = float(spec.voltage.at_clock(one.metered_mhz)) ** 2
        for events, _ in work.launches:
            for part in power.compute_event_energies(spec, events):
                joules[part.kind] = joules.get(part.kind, 0.0) + part.joules * (
                    scale if part.is_core else 1.0
                )
    return OwnRow(
        measured=one,
        events=work.launches[0][0],
        simulated_s=sum(float(estimate_latency(spec, *launch, clock).seconds) for launch in work.launches),
        prior_s=float(devices.open(name).prior(figures).latency_s[0]),
        idle_w=idle_w,
        clock_w=clock_w,
        joules=joules,
    )
