"""The runs behind `paper.py`: what is searched, the variants of the search, and what is kept of each run."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import ekc
from benchmarks.common.operators import PAPER_OPERATORS
from ekc import devices
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Metering, Timing
from ekc.ir.schedule.schedule import Schedule
from ekc.search.data.defaults import BREEDING
from ekc.search.data.options import DEFAULT_METHOD, RANDOM_SEARCH, SearchMethod, TuneOptions
from ekc.search.database.database import RecordStore
from ekc.search.loop.measure import MeasurementFailure, Measurer
from ekc.search.run import TuningRun
from ekc.search.space.space import Space
from ekc.search.tuning_result import TuningResult

MAX_SLOWDOWN = 0.05
DEVICES = ("a100", "rtx4090")
EVERYTHING, DEFAULT, LATENCY = "meter everything", "default", "latency only"
METHODS: dict[str, SearchMethod] = {
    EVERYTHING: SearchMethod(metered_share=1.0),
    DEFAULT: DEFAULT_METHOD,
    "fixed 30 %": SearchMethod(metered_share=0.3),
    "latency x constant power": SearchMethod(power_source="constant"),
    LATENCY: DEFAULT_METHOD,
    "no crossover": SearchMethod(
        breeding=replace(
            BREEDING,
            crossover_share=0.0,
            mutation_share=BREEDING.crossover_share + BREEDING.mutation_share,
        )
    ),
    "random search": RANDOM_SEARCH,
}
"""`LATENCY` makes the latency small, and meters the finalists alone."""


@dataclass
class WatchedMeasurer(Measurer):
    """Follows the least energy over the seconds of metering, and tells the search's time from the rest."""

    elsewhere_s: float = 0.0
    """CPU seconds of this thread spent on devices and on executing finalists."""
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
        began = time.thread_time()
        outcome = super().time(schedule, get_kernel, repeat)
        self.elsewhere_s += time.thread_time() - began
        if isinstance(outcome, Timing):
            self._latency_s.setdefault(schedule.digest, outcome.latency_s)
        return outcome

    def meter(
        self, schedule: Schedule, get_kernel: Callable[[], CompiledKernel], window_s: float, repeat: int = 0
    ) -> Metering | MeasurementFailure:
        """As the bench; adds a point to the curve."""
        began = time.thread_time()
        outcome = super().meter(schedule, get_kernel, window_s, repeat)
        self.elsewhere_s += time.thread_time() - began
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
        self._checking = time.thread_time() if verdict is None else None
        return verdict

    def record_verdict(self, schedule: Schedule, verdict: str) -> None:
        """As the bench."""
        if self._checking is not None:
            self.elsewhere_s += time.thread_time() - self._checking
        super().record_verdict(schedule, verdict)


def run(
    op: ekc.Operator, device: str, store: RecordStore, variant: str, trials: int, seed: int
) -> dict[str, Any]:
    """One run, and what the tables and plots want of it. Energies in joules per call."""
    bench = WatchedMeasurer(devices.open(device), store)
    objective = "latency" if variant == LATENCY else "energy"
    wish = TuneOptions(trials, objective, MAX_SLOWDOWN, False, seed, None)
    began = time.thread_time()
    with ThreadPoolExecutor(1) as workers:
        search = TuningRun(Space(op, bench.device.limits), bench, workers, wish, None, METHODS[variant])
        result = search.run(())
    search_s = time.thread_time() - began - bench.elsewhere_s
    return _summarize_result(result) | {
        "metering_s": bench.cost.metering_s,
        "search_s": search_s,
        "curve": bench.curve,
        "judged": [(j.predicted_j, j.std, j.measured_j) for j in search.task.learner.prediction_records],
    }


def _summarize_result(result: TuningResult) -> dict[str, Any]:
    timed = sum(t.latency_s is not None for t in result.trials)
    span = result.saving_interval
    return {
        "energy_j": result.best.energy_j,
        "latency_s": result.best.latency_s,
        "fastest_energy_j": result.fastest.energy_j,
        "fastest_latency_s": result.fastest.latency_s,
        "other_models": [0.0, 0.0] if span is None else [span.low, span.high],
        "timed": timed,
        "metered": result.metered_count,
    }


def run_variants(
    operator: str, device: str, variants: tuple[str, ...], seeds: range, trials: int, folder: Path
) -> list[dict[str, Any]]:
    """All runs of one operator on one device. Those finished before by the same code are read, not run."""
    name = "".join(c if c.isalnum() else "-" for c in f"{operator} {device}")
    log = folder / f"{name}.jsonl"
    done = {_get_identity(line): line for line in _read_log(log)}
    found = []
    op = PAPER_OPERATORS[operator]()
    with RecordStore(folder / f"{name}.db") as store:
        for seed in seeds:
            for variant in variants:
                asked = {
                    "operator": operator,
                    "device": device,
                    "variant": variant,
                    "seed": seed,
                    "trials": trials,
                    "code": digest_code(),
                }
                line = done.get(_get_identity(asked))
                if line is None:
                    line = asked | run(op, device, store, variant, trials, seed)
                    with log.open("a") as file:
                        file.write(json.dumps(line) + "\n")
                    print(_format_run(line), flush=True)
                found.append(line)
    return found


def _format_run(line: dict[str, Any]) -> str:
    return (
        f"{line['operator']} {line['device']} seed {line['seed']} {line['variant']}: "
        f"{line['energy_j'] * 1e3:.4g} mJ, {line['metered']} of {line['timed']} metered, "
        f"search {line['search_s']:.0f} s"
    )


def _get_identity(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[k] for k in ("operator", "device", "variant", "seed", "trials", "code"))


def _read_log(log: Path) -> Iterator[dict[str, Any]]:
    if not log.exists():
        return
    for text in log.read_text().splitlines():
        try:
            yield json.loads(text)
        except json.JSONDecodeError:
            # The last line of a benchmark that was killed while it wrote: that run is run again.
            print(f"{log}: a line is cut short and does not count")


@cache
def digest_code() -> str:
    """A digest of the package: what another search found is not shown as this one's."""
    folder = Path(ekc.__file__).parent
    text = b"".join(p.read_bytes() for p in sorted(folder.rglob("*")) if p.suffix in (".py", ".j2"))
    return hashlib.sha256(text).hexdigest()[:16]
