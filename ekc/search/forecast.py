"""What a run will take, told before it starts: from a compile and a generation measured here and now."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass

import numpy as np

from ekc.codegen import nvrtc
from ekc.codegen.generate import assemble, generate
from ekc.devices.base import Device
from ekc.errors import EkcError
from ekc.ir.schedule import Schedule
from ekc.search.breeding import GENERATIONS
from ekc.search.finals import FASTEST, FINALISTS, REPEATS
from ekc.search.measuring import FINAL_WINDOW_S, LABEL_WINDOW_S, Bench
from ekc.search.models.metering import BEGIN, FLOOR, START
from ekc.search.options import Wish
from ekc.search.population import Population
from ekc.search.rounds import population_size, round_size
from ekc.search.run import CLOCKS_TRIED
from ekc.search.space.space import Space
from ekc.search.spent import metering_seconds

PROBES = 4
"""Schedules compiled, to see how long it takes."""


@dataclass(frozen=True)
class Forecast:
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
        within = f", of which {_time(self.budget_s or 0)} are allowed" if cut else ""
        known = f"; {self.on_file} timings on file are not made again" if self.on_file else ""
        return (
            f"{most}{self.trials} trials in {self.rounds} round{plural}: {self.trials} compiles "
            f"of about {self.compile_s:.2f} s, about {_time(self.seconds)} here{within}; "
            f"{metering}{virtual}{known}"
        )


def forecast(space: Space, bench: Bench, wish: Wish) -> Forecast:
    """Breeds and compiles a few schedules and multiplies. The random stream of the run is not touched; what
    the space records meanwhile, the run finds ready."""
    device, random = bench.device, np.random.default_rng(0)
    _, first_s = _bred(space, device, random, wish.trials)
    legal, generation_s = _bred(space, device, random, wish.trials)
    rows = np.linspace(0, len(legal) - 1, min(PROBES, len(legal))).astype(int).tolist()
    times = [t for row in rows if (t := _probe(space.schedule(legal, row), device))]
    # The first probe may also start a GPU's worker, make its context and fill the inputs: once in a run.
    compile_s, device_s = (statistics.median(column) for column in zip(*(times or [(0.0, 0.0)]), strict=True))
    rounds = _rounds(wish.trials)
    breeding_s = first_s + rounds * (1 + GENERATIONS) * generation_s
    return Forecast(
        trials=wish.trials,
        rounds=rounds,
        compile_s=compile_s,
        seconds=wish.trials * (compile_s / (os.cpu_count() or 1) + device_s) + breeding_s,
        budget_s=wish.time_budget_s,
        metering_s=_metering_seconds(wish, device),
        simulated=device.label if device.simulated else "",
        may_stop=wish.calls is not None,
        on_file=bench.timed_before(space.op),
    )


def _bred(space: Space, device: Device, random: np.random.Generator, trials: int) -> tuple[Population, float]:
    """Legal genomes, and the seconds that a population took to mend and to analyse."""
    drawn = space.draw(random, population_size(trials))
    began = time.perf_counter()
    legal, _ = space.repair(random, drawn)
    space.seen(legal, device.peaks)
    return legal, _since(began)


def _probe(schedule: Schedule, device: Device) -> tuple[float, float] | None:
    """Seconds to compile a schedule and to time it on the device; None where either fails, as trials may:
    the run itself will say so."""
    began = time.perf_counter()
    try:
        made = generate(schedule, device.limits)
        kernel = assemble(schedule, made, nvrtc.compile(made.source, device.arch))
        compiled = time.perf_counter()
        device.time(kernel)
    except EkcError:
        return None
    return compiled - began, _since(compiled)


def _since(began: float) -> float:
    return time.perf_counter() - began


def _rounds(trials: int) -> int:
    number = done = 0
    while done < trials:
        number += 1
        done += round_size(number, done, trials)
    return number


def _metering_seconds(wish: Wish, device: Device) -> tuple[float, float]:
    """From the least share of the trials metered to the one that a run begins with; the baseline, the finals
    and the line over clocks are in both."""
    clocks = min(CLOCKS_TRIED, len(device.clocks().mhz)) if wish.search_clocks else 0
    final = metering_seconds(FINAL_WINDOW_S)
    least, most = ((1 + REPEATS * n + clocks) * final for n in (FINALISTS, FINALISTS + FASTEST))
    if wish.objective == "latency":
        return least, most
    few, many = (max(BEGIN, share * wish.trials) for share in (FLOOR, START))
    label = metering_seconds(LABEL_WINDOW_S)
    return least + few * label, most + many * label


def _time(seconds: float) -> str:
    """Seconds, or minutes from two on."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
