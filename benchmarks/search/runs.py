"""The runs of `paper.py` and `ablation.py`: what is searched, what is kept, the file of finished runs.

All runs of an ablation on one operator and device share a record store and one simulated device. So a kernel
that any run has timed is not compiled again. With the objective latency nothing is metered, and no finalist
is executed with either: neither changes which kernel is the best.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import ekc
from benchmarks.common.operators import PAPER_OPERATORS
from benchmarks.common.run_log import Line, RunLog, name_file
from benchmarks.common.script import select_names
from benchmarks.search.ablation_variants import LATENCY, METHODS, VARIANTS, Variant, apply_changes
from benchmarks.search.depth import remove_own_factor
from ekc import devices
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Metering, Timing
from ekc.errors import InvalidInput
from ekc.ir.schedule.schedule import Schedule
from ekc.search.data.options import TuneOptions
from ekc.search.database.database import RecordStore
from ekc.search.loop.measure import MeasurementFailure, Measurer
from ekc.search.run import TuningRun
from ekc.search.space.space import Space

PAPER_KEYS = ("operator", "device", "variant", "seed", "trials", "code")
KEYS = ("program", "operator", "device", "variant", "seed", "trials", "objective")
"""Fields that identify a run of `paper.py`, and of `ablation.py`, where only energy is named as objective."""
NOT_EXECUTED = "not executed: an ablation compares figures alone"
MAX_SLOWDOWN = 0.05
DEVICES = ("a100", "rtx4090")
ONLY_PLACE = {"metavar": "TEXT", "default": "", "help": 'operators and devices with this in "MM 1024^3 a100"'}
"""The option that selects places."""


def select_places(only: str) -> list[tuple[str, str]]:
    """(operator, device) of the pairs whose names together contain `only`."""
    every = {f"{operator} {device}": (operator, device) for operator in PAPER_OPERATORS for device in DEVICES}
    return [every[name] for name in select_names(every, only)]


def parse_variants(text: str, separator: str, known: Iterable[str]) -> tuple[str, ...]:
    """The variants that an option names. Raises `InvalidInput` for a name that is not known."""
    names = tuple(name.strip() for name in text.split(separator))
    for name in names:
        if name not in known:
            raise InvalidInput(f"--variants: no {name!r}; variants are {f'{separator} '.join(known)}")
    return names


@dataclass
class WatchedMeasurer(Measurer):
    """Tells the search's time from the rest."""

    clock: Callable[[], float] = time.thread_time
    """CPU seconds so far."""
    elsewhere_s: float = 0.0
    """CPU seconds spent on devices and on executing finalists."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count the seconds of a block."""
        began = self.clock()
        yield
        self.elsewhere_s += self.clock() - began

    def time(
        self, schedule: Schedule, get_kernel: Callable[[], CompiledKernel], repeat: int = 0
    ) -> Timing | MeasurementFailure:
        """Time a schedule as `Measurer` does."""
        with self.watch():
            return super().time(schedule, get_kernel, repeat)

    def meter(
        self, schedule: Schedule, get_kernel: Callable[[], CompiledKernel], window_s: float, repeat: int = 0
    ) -> Metering | MeasurementFailure:
        """Meter a schedule as `Measurer` does."""
        with self.watch():
            return super().meter(schedule, get_kernel, window_s, repeat)


@dataclass
class EnergyMeasurer(WatchedMeasurer):
    """Follows the least energy over the seconds of metering."""

    curve: list[tuple[float, float]] = field(default_factory=list)
    """(metering seconds so far, least joules metered among kernels at most `MAX_SLOWDOWN` slower than the
    fastest so far): a point after each first metering of a kernel."""
    _latency_s: dict[str, float] = field(default_factory=dict)
    _energy_j: dict[str, float] = field(default_factory=dict)
    _checking: float | None = None

    def time(
        self, schedule: Schedule, get_kernel: Callable[[], CompiledKernel], repeat: int = 0
    ) -> Timing | MeasurementFailure:
        """As the bench; remembers the first latency."""
        outcome = super().time(schedule, get_kernel, repeat)
        if isinstance(outcome, Timing):
            self._latency_s.setdefault(schedule.digest, outcome.latency_s)
        return outcome

    def meter(
        self, schedule: Schedule, get_kernel: Callable[[], CompiledKernel], window_s: float, repeat: int = 0
    ) -> Metering | MeasurementFailure:
        """As the bench; adds a point to the curve."""
        outcome = super().meter(schedule, get_kernel, window_s, repeat)
        if isinstance(outcome, Metering):
            self._energy_j.setdefault(schedule.digest, outcome.energy_j)
            limit = min(self._latency_s.values()) * (1 + MAX_SLOWDOWN)
            near = [j for digest, j in self._energy_j.items() if self._latency_s[digest] <= limit]
            if near:
                self.curve.append((self.cost.metering_s, min(near)))
        return outcome

    def find_verdict(self, schedule: Schedule) -> str | None:
        """As the bench; where nothing is on file, the finalist is executed next."""
        verdict = super().find_verdict(schedule)
        self._checking = self.clock() if verdict is None else None
        return verdict

    def record_verdict(self, schedule: Schedule, verdict: str) -> None:
        """As the bench."""
        if self._checking is not None:
            self.elsewhere_s += self.clock() - self._checking
        super().record_verdict(schedule, verdict)


def run_method(
    op: ekc.Operator, device: str, store: RecordStore, variant: str, trials: int, seed: int
) -> dict[str, Any]:
    """One run, and what the tables and plots want of it. Energies in joules per call."""
    bench = EnergyMeasurer(devices.open(device), store)
    objective = "latency" if variant == LATENCY else "energy"
    wish = TuneOptions(trials, objective, MAX_SLOWDOWN, False, seed, None)
    began = time.thread_time()
    with ThreadPoolExecutor(1) as workers:
        search = TuningRun(Space(op, bench.device.limits), bench, workers, wish, None, METHODS[variant])
        result = search.run(())
    search_s = time.thread_time() - began - bench.elsewhere_s
    span = result.saving_interval
    return {
        "energy_j": result.best.energy_j,
        "latency_s": result.best.latency_s,
        "fastest_energy_j": result.fastest.energy_j,
        "fastest_latency_s": result.fastest.latency_s,
        "other_models": [0.0, 0.0] if span is None else [span.low, span.high],
        "timed": sum(t.latency_s is not None for t in result.trials),
        "metered": result.metered_count,
        "metering_s": bench.cost.metering_s,
        "search_s": search_s,
        "curve": bench.curve,
        "judged": [(j.predicted_j, j.std, j.measured_j) for j in search.task.learner.prediction_records],
    }


def run_variants(
    operator: str, device: str, variants: tuple[str, ...], seeds: range, trials: int, folder: Path
) -> list[Line]:
    """All runs of one operator on one device. Those finished before by the same code are read, not run."""
    log = RunLog(name_file(folder, f"{operator} {device}", "jsonl"), PAPER_KEYS)
    found, op = [], PAPER_OPERATORS[operator]()
    with RecordStore(log.path.with_suffix(".db")) as store:
        for seed in seeds:
            for variant in variants:
                asked = {"operator": operator, "device": device, "variant": variant, "seed": seed}
                asked |= {"trials": trials, "code": digest_code()}
                make = partial(run_method, op, device, store, variant, trials, seed)
                found.append(log.find_or_make(asked, make, format_run))
    return found


def format_run(line: Line) -> str:
    """One line of text about a finished run."""
    energy = f"{line['energy_j'] * 1e3:.4g} mJ, {line['metered']} metered, " if "energy_j" in line else ""
    measuring = f", measuring {line['measuring_s']:.1f} s" if "measuring_s" in line else ""
    return (
        f"{line['operator']} {line['device']} seed {line['seed']} {line['variant']}: "
        f"{line['latency_s'] * 1e6:.6g} us, {energy}{line['timed']} timed, "
        f"search {line['search_s']:.1f} s{measuring}"
    )


@cache
def digest_code() -> str:
    """A digest of the package: what another search found is not shown as this one's."""
    folder = Path(ekc.__file__).parent
    text = b"".join(p.read_bytes() for p in sorted(folder.rglob("*")) if p.suffix in (".py", ".j2"))
    return hashlib.sha256(text).hexdigest()[:16]


class InlineExecutor(Executor):
    """Runs each job in `submit`, in this thread, and sums the CPU seconds."""

    seconds: float = 0.0
    """CPU seconds of all jobs."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor`."""
        start, job = time.process_time(), Future[Any]()
        try:
            job.set_result(fn(*args, **kwargs))
        except Exception as problem:
            job.set_exception(problem)
        self.seconds += time.process_time() - start
        return job


@dataclass
class AblationMeasurer(WatchedMeasurer):
    """Times kernels, meters them where the objective needs it, and executes none."""

    clock: Callable[[], float] = time.process_time
    is_metering: bool = False

    def meter(
        self, schedule: Any, get_kernel: Callable[[], Any], window_s: float, repeat: int = 0
    ) -> Metering | MeasurementFailure:
        """Meter a schedule as `Measurer` does, or nothing."""
        if not self.is_metering:
            return MeasurementFailure("not metered")
        return super().meter(schedule, get_kernel, window_s, repeat)

    def find_verdict(self, schedule: Any) -> str:
        """Execute nothing."""
        return NOT_EXECUTED


class Place:
    """An operator on a device, and what its runs share."""

    def __init__(self, operator: str, device: str, folder: Path) -> None:
        self.operator, self.device_name = operator, device
        self.log = RunLog(name_file(folder, f"{operator} {device}", "jsonl"), KEYS)
        self.device = devices.open(device)
        self.op = PAPER_OPERATORS[operator]()
        self._store: RecordStore | None = None
        self._space: Space | None = None

    def run(self, name: str, seed: int, trials: int, objective: str = "latency") -> Line:
        """Run a variant once."""
        variant = VARIANTS[name]
        self._store = self._store or RecordStore(self.log.path.with_suffix(".db"))
        start, wall_start = time.process_time(), time.monotonic()
        with apply_changes(variant.changes):
            space, recording_s = self._get_space(variant)
            measurer = AblationMeasurer(self.device, self._store, is_metering=objective == "energy")
            executor = InlineExecutor()
            calls = None if variant.calls_per_trial is None else variant.calls_per_trial * trials
            options = TuneOptions(trials, objective, MAX_SLOWDOWN, False, seed, None, calls)
            search = TuningRun(space, measurer, executor, options, None, variant.method)
            result = search.run(())
            measuring_s = measurer.elsewhere_s + executor.seconds
            used = time.process_time() - start - measuring_s
        winner = next(c for c in search.task.candidates if c.schedule == result.best.schedule)
        energy = {"energy_j": winner.energy_j, "metered": result.metered_count}
        return {
            "latency_s": winner.latency_s,
            "without_luck_s": remove_own_factor(winner, self.device),
            **(energy if measurer.is_metering else {}),
            "timed": sum(t.latency_s is not None for t in result.trials),
            "stopped": result.stopped,
            "bred": result.bred,
            "search_s": used - recording_s,
            "recording_s": recording_s,
            "measuring_s": measuring_s,
            "wall_s": time.monotonic() - wall_start - recording_s,
        }

    def _get_space(self, variant: Variant) -> tuple[Space, float]:
        """The space, and the CPU seconds that were used now to make it."""
        if self._space is not None and not variant.needs_own_space:
            return self._space, 0.0
        start = time.process_time()
        space = variant.make_space(self.op, self.device.limits)
        space.evaluator.record_traces()
        if not variant.needs_own_space:
            self._space = space
        return space, time.process_time() - start


def read_lines(folder: Path) -> list[Line]:
    """All finished runs in a folder, each once, in the order of writing."""
    return [line for log in sorted(folder.glob("*.jsonl")) for line in RunLog(log, KEYS).list_lines()]


def check_program(lines: list[Line], program: str) -> None:
    """Exit where runs under this name are of other code than ours."""
    others = {line["code"] for line in lines if line["program"] == program} - {digest_code()}
    if others:
        raise SystemExit(f"--program: {program!r} is other code ({', '.join(others)}); name another")
