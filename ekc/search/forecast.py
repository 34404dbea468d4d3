"""What a run will take, told before it starts: from a compile and a generation measured here and now."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass

import numpy as np

from ekc.codegen import nvrtc
from ekc.codegen.generate import assemble_kernel, generate
from ekc.devices.device import Device
from ekc.errors import EkcError
from ekc.ir.schedule.schedule import Schedule
from ekc.search.cost_model.metering_policy import INITIAL_METERINGS, INITIAL_SHARE, MIN_SHARE
from ekc.search.data.cost import estimate_metering_s
from ekc.search.data.options import TuneOptions
from ekc.search.data.population import Population
from ekc.search.loop.breeding import GENERATIONS
from ekc.search.loop.finals import FASTEST_COUNT, FINAL_REPEATS, FINALIST_COUNT
from ekc.search.loop.generations import compute_population_size, compute_round_size
from ekc.search.loop.measure import FINAL_WINDOW_S, LABEL_WINDOW_S, Measurer
from ekc.search.run import MAX_CLOCKS_TRIED
from ekc.search.space.space import Space

PROBE_COUNT = 4
"""Schedules compiled, to see how long it takes."""


@dataclass(frozen=True)
class RunForecast:
    """A run before it starts. Seconds of the host are for as many cores as there are."""

    trials: int
    rounds: int
    compile_s: float
    """One compile, the cache left aside."""
    seconds: float
    """The whole run, if nothing is on file or in the cache."""
    budget_s: float | None
    """What the caller allows for it."""
    metering_s: tuple[float, float]
    """What the meter takes with the least share and with the one that a run begins with; it may grow."""
    simulated: str
    """The device's label where it is simulated, so that metering takes virtual seconds."""
    may_stop: bool
    on_file: int = 0
    """Schedules of this operator that were timed on this device before."""

    def __str__(self) -> str:
        most, plural = "at most " if self.may_stop else "", "s" if self.rounds > 1 else ""
        low, high = self.metering_s
        metering = f"metering {low:.0f} to {high:.0f} s"
        virtual = f" of virtual time ({self.simulated})" if self.simulated else ""
        cut = self.budget_s is not None and self.budget_s < self.seconds
        within = f", of which {_format_duration(self.budget_s or 0)} are allowed" if cut else ""
        known = f"; {self.on_file} timings on file are not made again" if self.on_file else ""
        return (
            f"{most}{self.trials} trials in {self.rounds} round{plural}: {self.trials} compiles "
            f"of about {self.compile_s:.2f} s, about {_format_duration(self.seconds)} here{within}; "
            f"{metering}{virtual}{known}"
        )


def forecast_run(space: Space, measurer: Measurer, options: TuneOptions) -> RunForecast:
    """Breeds and compiles a few schedules and multiplies. The random stream of the run is not touched; what
    the space records meanwhile, the run finds ready."""
    device, random = measurer.device, np.random.default_rng(0)
    _, first_s = _time_generation(space, device, random, options.trials)
    legal, generation_s = _time_generation(space, device, random, options.trials)
    rows = np.linspace(0, len(legal) - 1, min(PROBE_COUNT, len(legal))).astype(int).tolist()
    times = [t for row in rows if (t := _time_probe(space.build_schedule(legal, row), device))]
    # The first probe may also start a GPU's worker, make its context and fill the inputs: once in a run.
    compile_s, device_s = (statistics.median(column) for column in zip(*(times or [(0.0, 0.0)]), strict=True))
    rounds = _count_rounds(options.trials)
    breeding_s = first_s + rounds * (1 + GENERATIONS) * generation_s
    return RunForecast(
        trials=options.trials,
        rounds=rounds,
        compile_s=compile_s,
        seconds=options.trials * (compile_s / (os.cpu_count() or 1) + device_s) + breeding_s,
        budget_s=options.time_budget_s,
        metering_s=_estimate_metering_range_s(options, device),
        simulated=device.label if device.simulated else "",
        may_stop=options.expected_calls is not None,
        on_file=measurer.count_timed_schedules(space.op),
    )


def _time_generation(
    space: Space, device: Device, random: np.random.Generator, trials: int
) -> tuple[Population, float]:
    """Legal genomes, and the seconds that a population took to mend and to analyse."""
    drawn = space.sample(random, compute_population_size(trials))
    began = time.perf_counter()
    legal, _ = space.repair(random, drawn)
    space.extract_inputs(legal, device.peaks)
    return legal, _get_seconds_since(began)


def _time_probe(schedule: Schedule, device: Device) -> tuple[float, float] | None:
    """Seconds to compile a schedule and to time it on the device; None where either fails, as trials may:
    the run itself will say so."""
    began = time.perf_counter()
    try:
        made = generate(schedule, device.limits)
        kernel = assemble_kernel(schedule, made, nvrtc.compile(made.source, device.arch))
        compiled = time.perf_counter()
        device.time(kernel)
    except EkcError:
        return None
    return compiled - began, _get_seconds_since(compiled)


def _get_seconds_since(began: float) -> float:
    return time.perf_counter() - began


def _count_rounds(trials: int) -> int:
    number = done = 0
    while done < trials:
        number += 1
        done += compute_round_size(number, done, trials)
    return number


def _estimate_metering_range_s(options: TuneOptions, device: Device) -> tuple[float, float]:
    """From the least share of the trials metered to the one that a run begins with; the baseline, the finals
    and the line over clocks are in both."""
    clocks = min(MAX_CLOCKS_TRIED, len(device.clocks().mhz)) if options.search_clocks else 0
    final = estimate_metering_s(FINAL_WINDOW_S)
    least, most = (
        (1 + FINAL_REPEATS * n + clocks) * final for n in (FINALIST_COUNT, FINALIST_COUNT + FASTEST_COUNT)
    )
    if options.objective == "latency":
        return least, most
    few, many = (max(INITIAL_METERINGS, share * options.trials) for share in (MIN_SHARE, INITIAL_SHARE))
    label = estimate_metering_s(LABEL_WINDOW_S)
    return least + few * label, most + many * label


def _format_duration(seconds: float) -> str:
    """Seconds, or minutes from two on."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
