"""The forecast of a run's duration, from a few compiles and generations measured on this machine."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from ekc.codegen import nvrtc
from ekc.codegen.generate import assemble_kernel, generate
from ekc.devices.device import Device
from ekc.errors import EkcError
from ekc.ir.schedule.schedule import Schedule
from ekc.processes.pool import count_cores
from ekc.search.data.defaults import BREEDING, CLOCK_SEARCH, FINALS, FORECAST, MEASURING, METERING
from ekc.search.data.options import TuneOptions
from ekc.search.data.population import Population
from ekc.search.data.result import estimate_metering_s
from ekc.search.loop.generations import compute_population_size, compute_round_size
from ekc.search.loop.measure import Measurer
from ekc.search.space.space import Space


@dataclass(frozen=True)
class RunForecast:
    """The expected size and duration of a run."""

    trials: int
    rounds: int
    compile_s: float
    """Host seconds of one compile without a cache."""
    seconds: float
    """Host seconds of the run on the cores of this machine, if nothing is stored or in the cache."""
    budget_s: float | None
    metering_s: tuple[float, float]
    """Device seconds of metering, with the least and the initial share of metered kernels; it may grow."""
    simulated: str
    """Label of a simulated device, whose metering takes virtual seconds; "" for a real one."""
    may_stop: bool
    """Whether a stopping rule may end the run early."""
    on_file: int = 0
    """Schedules of this operator with a stored timing on this device."""

    def __str__(self) -> str:
        most, plural = "at most " if self.may_stop else "", "s" if self.rounds > 1 else ""
        low, high = self.metering_s
        metering = f"metering {low:.0f} to {high:.0f} s"
        virtual = f" of virtual time ({self.simulated})" if self.simulated else ""
        cut = self.budget_s is not None and self.budget_s < self.seconds
        within = f", of which {_format_duration(self.budget_s or 0)} are allowed" if cut else ""
        stored = f"; {self.on_file} timings on file are not made again" if self.on_file else ""
        return (
            f"{most}{self.trials} trials in {self.rounds} round{plural}: {self.trials} compiles "
            f"of about {self.compile_s:.2f} s, about {_format_duration(self.seconds)} here{within}; "
            f"{metering}{virtual}{stored}"
        )


def forecast_run(space: Space, measurer: Measurer, options: TuneOptions) -> RunForecast:
    """Breed and compile a few schedules, and extrapolate. The random stream of the run is not used; the space
    keeps the traces that it records meanwhile."""
    device, random = measurer.device, np.random.default_rng(0)
    _, first_s = _time_generation(space, device, random, options.trials)
    legal, generation_s = _time_generation(space, device, random, options.trials)
    rows = np.linspace(0, len(legal) - 1, min(FORECAST.probe_count, len(legal))).astype(int).tolist()
    times = [t for row in rows if (t := _time_probe(space.build_schedule(legal, row), device))]
    # The first probe may also start the worker of a GPU; the median is little affected by it.
    compile_s, device_s = (statistics.median(column) for column in zip(*(times or [(0.0, 0.0)]), strict=True))
    rounds = _count_rounds(options.trials)
    breeding_s = first_s + rounds * (1 + BREEDING.generations) * generation_s
    return RunForecast(
        trials=options.trials,
        rounds=rounds,
        compile_s=compile_s,
        seconds=options.trials * (compile_s / count_cores() + device_s) + breeding_s,
        budget_s=options.time_budget_s,
        metering_s=_estimate_metering_range_s(options, device),
        simulated=device.label if device.simulated else "",
        may_stop=options.expected_calls is not None,
        on_file=measurer.count_timed_schedules(space.op),
    )


def _time_generation(
    space: Space, device: Device, random: np.random.Generator, trials: int
) -> tuple[Population, float]:
    """Repair and analyse one population. Returns the legal genomes and the seconds."""
    population = space.sample(random, compute_population_size(trials))
    began = time.perf_counter()
    legal, _ = space.repair(random, population)
    space.extract_inputs(legal, device.prior)
    return legal, time.perf_counter() - began


def _time_probe(schedule: Schedule, device: Device) -> tuple[float, float] | None:
    """Seconds to compile a schedule and to time it on the device; None if either fails."""
    began = time.perf_counter()
    try:
        text = generate(schedule, device.limits)
        kernel = assemble_kernel(schedule, text, nvrtc.compile(text.source, device.arch))
        compiled = time.perf_counter()
        device.time(kernel)
    except EkcError:
        return None
    return compiled - began, time.perf_counter() - compiled


def _count_rounds(trials: int) -> int:
    number = done = 0
    while done < trials:
        number += 1
        done += compute_round_size(number, done, trials)
    return number


def _estimate_metering_range_s(options: TuneOptions, device: Device) -> tuple[float, float]:
    """Estimate the device seconds of metering with the fewest finalists and with the most. Both include the
    baseline, the search and the search of clocks."""
    final = estimate_metering_s(MEASURING.final_window_s)
    finalists = (FINALS.finalist_count, FINALS.finalist_count + FINALS.fastest_count)
    least, most = ((1 + FINALS.repeats * n) * final for n in finalists)
    if options.objective == "latency":
        return _add_clock_search(least, most, options, device)
    count = max(METERING.initial_meterings, METERING.share * options.trials)
    labels_s = count * estimate_metering_s(MEASURING.label_window_s)
    return _add_clock_search(least + labels_s, most + labels_s, options, device)


def _add_clock_search(
    least_s: float, most_s: float, options: TuneOptions, device: Device
) -> tuple[float, float]:
    """Add the search of clocks, which may end after a few meterings."""
    if not (options.search_clocks and device.clocks().mhz):
        return least_s, most_s
    final, share = estimate_metering_s(MEASURING.final_window_s), CLOCK_SEARCH.metered_share
    return least_s + final, most_s + max(CLOCK_SEARCH.min_meterings * final, share / (1 - share) * most_s)


def _format_duration(seconds: float) -> str:
    """Format a duration in seconds, or in minutes from two minutes on."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
