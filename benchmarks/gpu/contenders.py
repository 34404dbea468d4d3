"""Contenders of a comparison: timed and metered in turn, or in rotation on a hot board, round by round.

A slice is one kernel called back to back for half a second. It begins as the kernel before ends: no idle
period, no warm-up, a lead-in that is dropped, a window between ticks of the energy counter. Each round has
one slice of each kernel, in an order that is drawn for that round. So the drift of the board from round
to round affects all kernels alike, and what a kernel leaves to the next one averages out.

Two kernels are compared by the ratios of their slices in the same round. The interval is that of 99 %: of a
hundred comparisons of a kernel with itself one finds a difference. A rotation makes up to five comparisons at
once, of which then at least one is wrong in at most 5 % of cases.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
from scipy import optimize, stats

from benchmarks.gpu.folder import Folder, Row
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Device, Metering, Timing
from ekc.devices.metering.meter import MeteringWindow
from ekc.devices.statistics import Difference, Interval, MeasuredValue, compare_pairwise
from ekc.errors import EkcError, InvalidInput

Figure = Literal["latency_s", "energy_j"]
SLICE_S = 0.5
"""Seconds of the window of a slice: five ticks of the energy counter of an H100."""
SLICE_PRICE_S = 0.85
"""Seconds that a slice takes on an H100: loading, lead-in, up to a tick before the window, and what is queued
behind it."""
SLICE_NOISE = 0.0055
"""Relative noise of the energy of a slice before any was measured: 0.5 % of power (five samples of 0.1 s with
1 to 1.2 % each, seen on an H100) and 0.3 % of time (estimate)."""
CONFIDENCE = 0.99
"""Confidence of the interval of a difference."""
DETECTION = 0.9
"""Share of cases in which a saving is found that counts as one that can be found."""
MIN_ROUNDS = 3
"""Rounds below which nothing is concluded."""
MAX_SHIFT = 300.0
"""Saving in standard errors from which on it is found for certain: even two rounds ask for less than that."""


@dataclass(frozen=True)
class Slice:
    """One kernel called back to back on a hot board. Energy and power are NaN where nothing can be read."""

    latency_s: float
    """Sustained seconds of a call: seconds of GPU events over calls, without the lead-in."""
    energy_j: float
    """Joules of a call."""
    power_w: float
    clock_mhz: float
    temperature_c: float
    throttle: tuple[str, ...]

    @classmethod
    def from_window(cls, window: MeteringWindow) -> Self:
        """The slice of a window of `ekc.devices.metering.meter.run_hot`."""
        return cls(
            latency_s=window.call_s,
            energy_j=window.power_w * window.call_s,
            power_w=window.power_w,
            clock_mhz=window.clock_mhz,
            temperature_c=window.temperature_c,
            throttle=window.throttle,
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The slice of a row, which has the fields by name; null where a figure is missing."""
        figures = {name: math.nan if data[name] is None else data[name] for name in cls.__annotations__}
        return cls(**figures | {"throttle": tuple(data["throttle"])})

    def to_json(self) -> dict[str, Any]:
        """The fields by name, null for NaN, which JSON does not have."""
        return {name: None if value != value else value for name, value in vars(self).items()}


class Contender(Protocol):
    """One way to compute an operator."""

    name: str

    def time(self, turn: int) -> Timing:
        """Latency of a call, warm."""

    def run(self, turn: int, seconds: float) -> Slice:
        """Sustained time and energy of a call, on a board that is hot from the contender before."""


@runtime_checkable
class HotDevice(Protocol):
    """A device that meters on a hot board."""

    def run_hot(self, kernel: CompiledKernel, *, seconds: float) -> MeteringWindow:
        """See `ekc.devices.metering.meter.run_hot`."""


@dataclass
class Ours:
    """A kernel of ekc on the device."""

    name: str
    device: Device
    kernel: CompiledKernel

    def time(self, turn: int) -> Timing:
        """See `Contender`."""
        return self.device.time(self.kernel, repeat=turn)

    def meter(self, turn: int, seconds: float) -> Metering:
        """See `Contender`."""
        return self.device.meter(self.kernel, seconds=seconds, repeat=turn)

    def run(self, turn: int, seconds: float) -> Slice:
        """See `Contender`. A recorded device has no board: its slice is the recorded timing and metering."""
        if isinstance(self.device, HotDevice):
            return Slice.from_window(self.device.run_hot(self.kernel, seconds=seconds))
        timing, metering = self.time(turn), self.meter(turn, seconds)
        seen = metering.conditions
        return Slice(
            latency_s=timing.latency_s,
            energy_j=metering.energy_j,
            power_w=metering.power_w,
            clock_mhz=seen.clock_mhz,
            temperature_c=seen.temperature_c,
            throttle=seen.throttle,
        )


def compute_ratio(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Difference | None:
    """Ratio of the rival's figure to ours: above 1, ours is better. None where a measurement is missing."""
    if not ours or len(ours) != len(theirs):
        return None
    return compare_pairwise([_make_value(x) for x in theirs], [_make_value(x) for x in ours])


def _make_value(figure: Sequence[float]) -> MeasuredValue:
    value, low, high = figure
    return MeasuredValue(value, Interval(low, high))


def compute_median(figures: Iterable[float]) -> float:
    """The median of the figures that are known; NaN without any."""
    known = [one for one in figures if math.isfinite(one)]
    return statistics.median(known) if known else math.nan


def measure_in_turn(
    contenders: Sequence[Any], turns: int, windows: int = 0, window_s: float = 0.0
) -> dict[str, Any]:
    """A B, B A, and so on: first latencies, then energies. By contender: figures turn by turn, each with its
    95 % interval as [value, low, high], and the problem, if any."""
    figures_by_name: dict[str, Any] = {
        one.name: {"latency_s": [], "energy_j": [], "problem": ""} for one in contenders
    }
    for measure, count in ((_time, turns), (partial(_meter, seconds=window_s), windows)):
        for turn in range(count):
            for one in contenders[:: -1 if turn % 2 else 1]:
                _collect_figures(figures_by_name[one.name], partial(measure, one, turn))
    return figures_by_name


def _collect_figures(into: dict[str, Any], measure: Any) -> None:
    if into["problem"]:
        return
    try:
        figures = measure()
    except Exception as problem:
        # A library may raise anything (no memory, a lost GPU); other contenders are compared all the same.
        into["problem"] = str(problem) if isinstance(problem, EkcError) else describe_problem(problem)
        return
    for name, value in figures.items():
        into[name] = [*into[name], value] if isinstance(into.get(name), list) else value


def describe_problem(problem: Exception) -> str:
    """An error that a library raised, in one line."""
    return f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}"


def _time(one: Contender, turn: int) -> dict[str, Any]:
    timing = one.time(turn)
    figure = (timing.latency_s, timing.interval_s.low, timing.interval_s.high)
    return {"latency_s": figure, "clock_mhz": timing.conditions.clock_mhz, "method": timing.method}


def _meter(one: Ours, turn: int, seconds: float) -> dict[str, Any]:
    metering = one.meter(turn, seconds)
    conditions, span = metering.conditions, metering.energy_interval_j
    return {
        "energy_j": (metering.energy_j, span.low, span.high),
        "power_w": metering.power_w,
        "metered_clock_mhz": conditions.clock_mhz,
        "throttle": ", ".join(conditions.throttle),
        "temperature_c": conditions.temperature_c,
    }


def rotate(
    contenders: Sequence[Contender],
    rounds: int,
    slice_s: float,
    seed: int,
    on_slice: Callable[[str, int, Slice], object] | None = None,
    on_problem: Callable[[str, Exception], object] | None = None,
    is_over: Callable[[], bool] | None = None,
    first_round: int = 0,
) -> dict[str, list[Slice]]:
    """Slices by contender, one for each of `rounds` rounds after a first one that warms up and is dropped.

    The order in a round is drawn from `seed`. `on_slice` gets name, number and slice of each that is kept, as
    soon as it was taken; numbers begin at `first_round`. A contender that fails is left out from then on, and
    `on_problem` gets its name and error; without `on_problem` the error is raised. No round begins once
    `is_over()`. Raises `InvalidInput` for a name that occurs twice.
    """
    names = [one.name for one in contenders]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInput(f"rotation: {repeated[0]} is the name of two contenders; give each its own")
    random = np.random.default_rng([seed, first_round])
    slices: dict[str, list[Slice]] = {name: [] for name in names}
    failed: set[str] = set()
    for turn in range(rounds + 1):
        if is_over is not None and is_over():
            break
        for place in random.permutation(len(contenders)).tolist():
            one = contenders[place]
            if one.name in failed:
                continue
            try:
                taken = one.run(first_round + turn, slice_s)
            except Exception as problem:
                # A library may raise anything; the other contenders are compared all the same.
                if on_problem is None:
                    raise
                failed.add(one.name)
                on_problem(one.name, problem)
                continue
            if turn:
                slices[one.name].append(taken)
            if turn and on_slice is not None:
                on_slice(one.name, first_round + turn - 1, taken)
    return slices


def compare_slices(
    first: Sequence[Slice], second: Sequence[Slice], figure: Figure, confidence: float = CONFIDENCE
) -> Difference:
    """Ratio of `first` to `second` in a figure, paired by round, with the interval of this confidence.

    Rounds in which either has no figure are left out. Raises `InvalidInput` where none is left."""
    pairs = [
        (one, other)
        for one, other in (
            (getattr(a, figure), getattr(b, figure)) for a, b in zip(first, second, strict=False)
        )
        if math.isfinite(one) and math.isfinite(other)
    ]
    if not pairs:
        raise InvalidInput(f"a difference of {figure} needs a round in which both kernels have that figure")
    # A figure has no interval of its own: the scatter of the rounds contains all errors.
    found = compare_pairwise(
        *([_make_value((x, x, x)) for x in column] for column in zip(*pairs, strict=True))
    )
    if found.pair_count == 1:
        return found
    freedom = found.pair_count - 1
    widening = stats.t.ppf((1 + confidence) / 2, freedom) / stats.t.ppf(0.975, freedom)
    half = float(math.log(found.interval.high / found.ratio) * widening)
    return Difference(
        found.ratio,
        Interval(found.ratio * math.exp(-half), found.ratio * math.exp(half)),
        found.pair_count,
    )


MISSING = Slice(math.nan, math.nan, math.nan, math.nan, math.nan, ())


@dataclass(frozen=True)
class Group:
    """A measured group: kernels, the reference first, and their slices by number of the round."""

    name: str
    kernels: tuple[str, ...]
    rounds: Mapping[int, Mapping[str, Slice]]
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why a kernel has no further slices, by its name."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The row of the group. Of `equals`: schedules, short timings in seconds (`short_s`) and their clocks."""

    @property
    def next_round(self) -> int:
        """The number of the first round that was not begun."""
        return max(self.rounds, default=-1) + 1

    def list_slices(self, kernel: str) -> list[Slice]:
        """Slices of a kernel round by round, without figures in a round that has none."""
        return [self.rounds[number].get(kernel, MISSING) for number in sorted(self.rounds)]

    def compare(self, kernel: str, figure: Figure, min_rounds: int = MIN_ROUNDS) -> Difference | None:
        """Ratio of a kernel's figure to that of the reference; None where too few rounds have both."""
        try:
            found = compare_slices(self.list_slices(kernel), self.list_slices(self.kernels[0]), figure)
        except InvalidInput:
            return None
        return found if found.pair_count >= min_rounds else None


@dataclass(frozen=True)
class SliceLog:
    """Writes the slices of a group, a row for each, which has the names of group and kernel."""

    folder: Folder
    part: str
    group: str

    def write(self, name: str, number: int, taken: Slice) -> None:
        """Write a slice."""
        facts = {"group": self.group, "round": number, "kernel": name, **taken.to_json()}
        self.folder.add_row(self.part, f"{self.group}, round {number}, {name}", "ok", **facts)

    def write_problem(self, name: str, problem: Exception) -> None:
        """Write why a kernel has no further slices."""
        status = describe_problem(problem)
        self.folder.add_row(self.part, f"{self.group}, {name}", status, group=self.group, kernel=name)


def read_group(folder: Folder, part: str, row: Row, kernels: Sequence[str]) -> Group:
    """Read the slices of the group of a row. Older rows of `versus` name the kernel "contender"."""
    rounds: dict[int, dict[str, Slice]] = {}
    problems: dict[str, str] = {}
    for one in folder.list_rows(part):
        if one.get("group") != row["item"]:
            continue
        name = one["kernel"] if "kernel" in one else one["contender"]
        if one["status"] == "ok":
            rounds.setdefault(one["round"], {})[name] = Slice.from_json(one)
        else:
            problems[name] = one["status"]
    return Group(row["item"], tuple(kernels), rounds, problems, row)


def estimate_slice_noise(slices: Mapping[str, Sequence[Slice]], figure: Figure) -> float | None:
    """Relative noise of one slice: scatter of the log figures about the means of kernels and rounds. None
    where there are too few complete rounds."""
    rounds = min((len(taken) for taken in slices.values()), default=0)
    logs = np.log([[getattr(one, figure) for one in taken[:rounds]] for taken in slices.values()])
    if logs.ndim != 2 or min(logs.shape) < 2 or not np.all(np.isfinite(logs)):
        return None
    rest = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    return float(np.sqrt(np.sum(rest**2) / ((logs.shape[0] - 1) * (logs.shape[1] - 1))))


def compute_detection(saving: float, noise: float, rounds: int, confidence: float = CONFIDENCE) -> float:
    """Probability that rounds with this relative noise of a slice find a saving (a share of the energy)."""
    freedom = rounds - 1
    shift = -math.log1p(-saving) * math.sqrt(rounds / 2.0) / noise
    if shift > MAX_SHIFT:
        return 1.0
    return float(stats.nct.sf(stats.t.ppf((1 + confidence) / 2, freedom), freedom, shift))


def compute_findable_saving(
    noise: float, rounds: int, confidence: float = CONFIDENCE, detection: float = DETECTION
) -> float | None:
    """Smallest saving that so many rounds find with the probability `detection`; None above a half, and for a
    single round."""
    if rounds < 2 or compute_detection(0.5, noise, rounds, confidence) < detection:
        return None
    return float(
        optimize.brentq(
            lambda saving: compute_detection(saving, noise, rounds, confidence) - detection, 0.0, 0.5
        )
    )


def count_rounds(seconds: float, contenders: int) -> int:
    """Rounds that fit into a time after the one that warms up, by the price of a slice on an H100."""
    return max(0, int(seconds / (contenders * SLICE_PRICE_S)) - 1)
