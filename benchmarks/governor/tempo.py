"""Error of the tempo of a job, and whether its stated error covers it, on made traces (simulated).

    python -m benchmarks.governor.tempo [--jobs N] [--seed N] [--json FILE]

Jobs have iterations of 0.5 to 6 s whose length drifts slowly, jitters at random, and wanders as a random
walk; some pause now and then, and power levels change from iteration to iteration. Sensors are those of
traces.py. The period is found in the first `FOUND_S` seconds, as the governor does. Then stretches of 20 to
160 s, one after the other, are measured. True is the number of iterations in the stretch, with the parts of
the first and the last, over its seconds; pauses of `MIN_PAUSE_S` or more are left out of these. The stated
error is judged on differences of readings of one unchanged job (A/A), each over its standard error: 68 and
95 % of them should be within 1 and 2. For comparison: the period found at first, for all of the job; and the
frequency whose harmonics are strongest in a stretch.

A second table has steady jobs that save checkpoints: pauses of 1 to 6 s every 20 to 60 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.common.script import Arguments, Column, format_lines, make_main
from benchmarks.governor.traces import KINDS, Load, Sensors, is_visible, read_sensors
from ekc.errors import InvalidInput
from ekc.governor.period.detect import assess_recording
from ekc.governor.period_tracking import interpolate_signals, measure_strongest_period
from ekc.governor.progress_rate import ProgressSource, choose_progress_source, measure_progress_rate
from ekc.governor.samples import MIN_PAUSE_S, SensorSamples, Values

FOUND_S = 40.0
STRETCHES_S = (20.0, 40.0, 80.0, 160.0)
MAX_STRETCH = 1.05
"""Largest length of an iteration over that found, as `measure_progress_rate` takes it."""
MEASURED_S = 640.0
"""Seconds of each job after the period was found."""
PERIOD_RANGE_S = (0.5, 6.0)
JITTER_RANGE = (0.01, 0.06)
"""Standard deviation of the log length of an iteration."""
WANDER_RANGE = (0.01, 0.06)
"""Standard deviation of the log length after a minute of its random walk, which forgets in `MEMORY_S`."""
MEMORY_S = 60.0
DRIFT_RANGE = (-0.04, 0.04)
"""Relative change of the length along the job."""
LEVEL_RANGE = (0.02, 0.15)
PAUSING_SHARE = 0.3
PAUSES_PER_S = 1 / 100
PAUSE_RANGE_S = (0.3, 3.0)
STEADY_JITTER = 0.01
CHECKPOINT_GAP_RANGE_S, CHECKPOINT_RANGE_S = (20.0, 60.0), (1.0, 6.0)
"""Seconds of work between two checkpoints, and of a checkpoint."""
SENSORS = (
    Sensors(0.025, 1 / 6, True, noise=1.5),
    Sensors(0.1, 1 / 6, True),
    Sensors(1.0, 1.0, True, noise=0.5),
)


@dataclass(frozen=True)
class TempoTrace:
    """A recording whose iterations are known."""

    samples: SensorSamples
    edge_s: Values
    """Start and end of the work of each iteration in seconds, (2 * iterations,)."""

    def count_iterations(self, start_s: float, end_s: float) -> float:
        """Iterations between two times, with parts of them; none in a pause."""
        done = (np.arange(len(self.edge_s)) + 1) // 2
        before, after = np.interp([start_s, end_s], self.edge_s, done)
        return float(after - before)

    def compute_rate(self, start_s: float, end_s: float) -> float:
        """Iterations a second between two times, the pauses that the governor cuts out not counted."""
        begins = np.clip(self.edge_s[1:-1:2], start_s, end_s)
        lengths = np.clip(self.edge_s[2::2], start_s, end_s) - begins
        paused_s = float(lengths[lengths >= MIN_PAUSE_S].sum())
        return self.count_iterations(start_s, end_s) / (end_s - start_s - paused_s)

    def cut(self, start_s: float, end_s: float) -> SensorSamples:
        """The readings between two times."""
        first, last = np.searchsorted(self.samples.time_s, (start_s, end_s))
        columns = (getattr(self.samples, name)[first:last] for name in SIGNALS)
        return SensorSamples(*columns, self.samples.power_limit_w, self.samples.sensor_s)


SIGNALS = ("time_s", "power_w", "sm_util", "memory_util", "clock_mhz")


def make_tempo_trace(seed: int) -> TempoTrace:
    """A trace of `FOUND_S` + `MEASURED_S` seconds."""
    rng = np.random.default_rng([seed, 7])
    period_s = float(np.exp(rng.uniform(*np.log(PERIOD_RANGE_S))))
    names = ("plain", "harmonics", "sub-periods")
    sensors = SENSORS[int(rng.integers(len(SENSORS)))]
    make_pattern, sample_variation, _ = KINDS[names[int(rng.integers(3))]]
    period_s = max(period_s, 2.0 * sensors.power_s)
    while not is_visible(pattern := make_pattern(rng), period_s, sensors, sample_variation(rng)):
        pass
    seconds = 2.0 + FOUND_S + MEASURED_S
    count = int(1.1 * seconds / period_s) + 3
    jitter, wander = (float(np.exp(rng.uniform(*np.log(x)))) for x in (JITTER_RANGE, WANDER_RANGE))
    keep = float(np.exp(-period_s / MEMORY_S))
    walk, value = np.empty(count), 0.0
    for n, step in enumerate(rng.standard_normal(count)):
        value = keep * value + wander * np.sqrt(1.0 - keep**2) * step
        walk[n] = value
    drift = rng.uniform(*DRIFT_RANGE) * np.linspace(-0.5, 0.5, count)
    lengths = period_s * np.exp(walk + drift + jitter * rng.standard_normal(count))
    pauses = np.zeros(count)
    if rng.random() < PAUSING_SHARE:
        is_paused = rng.random(count) < PAUSES_PER_S * period_s
        pauses = is_paused * rng.uniform(*PAUSE_RANGE_S, count)
    return _read_trace(rng, pattern, sensors, lengths, pauses, jitter, LEVEL_RANGE)


def make_checkpoint_trace(seed: int) -> TempoTrace:
    """A trace of the same length of a steady job that saves a checkpoint now and then, of about the same
    length each time."""
    rng = np.random.default_rng([seed, 11])
    sensors = SENSORS[int(rng.integers(len(SENSORS)))]
    make_pattern, sample_variation, _ = KINDS[("plain", "harmonics", "sub-periods")[int(rng.integers(3))]]
    period_s = max(float(np.exp(rng.uniform(*np.log(PERIOD_RANGE_S)))), 2.0 * sensors.power_s)
    while not is_visible(pattern := make_pattern(rng), period_s, sensors, sample_variation(rng)):
        pass
    count = int(1.1 * (2.0 + FOUND_S + MEASURED_S) / period_s) + 3
    lengths = period_s * np.exp(STEADY_JITTER * rng.standard_normal(count))
    gap_s, pause_s = rng.uniform(*CHECKPOINT_GAP_RANGE_S), rng.uniform(*CHECKPOINT_RANGE_S)
    saved = np.diff(np.floor(np.cumsum(lengths) / gap_s + rng.uniform()), prepend=0.0) > 0
    saved[0] = False
    pauses = saved * pause_s * np.exp(0.1 * rng.standard_normal(count))
    return _read_trace(rng, pattern, sensors, lengths, pauses, STEADY_JITTER, (0.02, 0.02))


def _read_trace(
    rng: np.random.Generator,
    pattern: Load,
    sensors: Sensors,
    lengths: Values,
    pauses: Values,
    jitter: float,
    level_range: tuple[float, float],
) -> TempoTrace:
    """The trace of iterations of some lengths, each with a pause after it, both in seconds."""
    count = len(lengths)
    shares = pattern.seconds * np.exp(jitter * rng.standard_normal((count, len(pattern.seconds))))
    stretches = lengths[:, None] * shares / shares.sum(axis=1, keepdims=True)
    level = float(np.exp(rng.uniform(*np.log(level_range))))
    levels = pattern.levels * np.exp(level * rng.standard_normal((count, len(pattern.seconds), 1)))
    levels = np.concatenate([levels, np.broadcast_to([20.0, 0.0, 0.0], (count, 1, 3))], axis=1)
    load = Load(np.hstack([stretches, pauses[:, None]]).ravel(), levels.reshape(-1, 3))
    begin_s = np.concatenate([[0.0], np.cumsum(lengths + pauses)[:-1]])
    edge_s = np.stack([begin_s, begin_s + lengths], axis=1).ravel()
    hz = 10.0 if sensors.power_s >= 1.0 else 20.0
    return TempoTrace(read_sensors(load, sensors, hz, 2.0, FOUND_S + MEASURED_S, rng), edge_s)


@dataclass(frozen=True)
class TempoReadings:
    """Readings of one job in stretches of one length, in order; arrays of (stretches,)."""

    rate: Values
    """Measured iterations per second; NaN where the period was not seen."""
    stated_error: Values
    """Stated relative standard error of each."""
    true_rate: Values
    first_rate: Values
    """Rate of the period that was found at first, the same for all."""
    strongest_rate: Values
    """Frequency whose harmonics are strongest together."""

    def compute_errors(self, rate: Values) -> Values:
        """Relative error of each rate."""
        return np.abs(rate / self.true_rate - 1.0)

    def normalise_differences(self) -> Values:
        """Differences of consecutive readings over their stated standard errors."""
        rate, error = self.rate, self.stated_error * self.rate
        return np.abs(np.diff(rate)) / np.hypot(error[1:], error[:-1])


def measure_trace(trace: TempoTrace) -> dict[float, TempoReadings] | None:
    """Readings by length of the stretch; None where the period is not found to 10 %."""
    begin = float(trace.samples.time_s[0])
    found = assess_recording(trace.cut(begin, begin + FOUND_S))
    source = choose_progress_source(found)
    first_rate = 1.0 / found.period.seconds
    _, source = measure_progress_rate(source, found.samples, MAX_STRETCH)
    true_s = 1.0 / trace.compute_rate(begin, begin + FOUND_S)
    if source.kind != "period" or abs(source.period_s / true_s - 1.0) > 0.1:
        return None
    return {s: measure_stretches(trace, source, first_rate, begin + FOUND_S, s) for s in STRETCHES_S}


def measure_stretches(
    trace: TempoTrace, source: ProgressSource, first_rate: float, start_s: float, seconds: float
) -> TempoReadings:
    """Consecutive readings of one length, as the governor takes them."""
    rows = []
    for begin in start_s + seconds * np.arange(int(MEASURED_S / seconds)):
        samples = trace.cut(begin, begin + seconds)
        rate, source = measure_progress_rate(source, samples, MAX_STRETCH)
        span = float(samples.time_s[0]), float(samples.time_s[-1])
        _, signals = interpolate_signals(samples)
        strongest_s, _ = measure_strongest_period(signals, source.period_s, 0.95, 1.05 * MAX_STRETCH)
        truth = trace.compute_rate(*span)
        rows.append((rate.beats, rate.beats_error, truth, first_rate, 1.0 / strongest_s))
    return TempoReadings(*np.array(rows).T)


def make_row(seconds: float, readings: list[TempoReadings]) -> dict[str, Any]:
    """The row of one length of stretch over all jobs."""
    error, first, strongest = (
        np.concatenate([x.compute_errors(getattr(x, name)) for x in readings])
        for name in ("rate", "first_rate", "strongest_rate")
    )
    stated = np.concatenate([x.stated_error for x in readings])
    share = np.concatenate([x.normalise_differences() for x in readings])
    is_measured, share = np.isfinite(error), share[np.isfinite(share)]
    return {
        "seconds": seconds,
        "readings": len(error),
        "measured": float(is_measured.mean()),
        "median_error": float(np.median(error[is_measured])),
        "p90_error": float(np.quantile(error[is_measured], 0.9)),
        "first_median_error": float(np.median(first)),
        "strongest_median_error": float(np.median(strongest)),
        "median_stated_error": float(np.median(stated[is_measured])),
        "within_1": float(np.mean(share <= 1.0)),
        "within_2": float(np.mean(share <= 2.0)),
    }


COLUMNS = (
    Column("stretch [s]", "seconds", "g"),
    Column("readings", "readings"),
    Column("measured", "measured", ".2%"),
    Column("median error", "median_error", ".2%"),
    Column("90 %", "p90_error", ".2%"),
    Column("first period", "first_median_error", ".2%"),
    Column("strongest", "strongest_median_error", ".2%"),
    Column("stated error", "median_stated_error", ".2%"),
    Column("A/A in 1 sigma", "within_1", ".2%"),
    Column("in 2", "within_2", ".2%"),
)


def measure(arguments: Arguments) -> dict[str, Any]:
    """Measure all jobs and print the table."""
    if arguments.jobs < 1:
        raise InvalidInput(f"--jobs is {arguments.jobs}; at least 1")
    seeds = range(arguments.seed, arguments.seed + arguments.jobs)
    found = [x for x in (measure_trace(make_tempo_trace(seed)) for seed in seeds) if x is not None]
    print(f"made traces (simulated), seeds {seeds[0]} to {seeds[-1]}; period found in {len(found)}")
    rows = [make_row(s, [x[s] for x in found]) for s in STRETCHES_S] if found else []
    print(format_lines(COLUMNS, rows))
    saving = [x for x in (measure_trace(make_checkpoint_trace(seed)) for seed in seeds) if x is not None]
    print(f"\nsteady jobs with checkpoints, the same seeds; period found in {len(saving)}")
    checkpoint_rows = [make_row(s, [x[s] for x in saving]) for s in STRETCHES_S] if saving else []
    print(format_lines(COLUMNS, checkpoint_rows))
    return {
        "seeds": [seeds[0], seeds[-1]],
        "jobs": len(seeds),
        "found": len(found),
        "rows": rows,
        "checkpoints_found": len(saving),
        "checkpoint_rows": checkpoint_rows,
    }


OPTIONS = {
    "--jobs": {"type": int, "default": 120, "help": "jobs, default %(default)s"},
}
main = make_main(__doc__, measure, options=OPTIONS, seed=30_000)

if __name__ == "__main__":
    raise SystemExit(main())
