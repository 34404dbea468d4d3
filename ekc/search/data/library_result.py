"""The kernel of a library that a tuning run measured beside its own, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ekc.devices.device import Metering, Timing
from ekc.devices.statistics import (
    Difference,
    Interval,
    MeasuredValue,
    compare_pairwise,
    estimate_mean_interval,
)
from ekc.display import format_line
from ekc.search.data.trial import Trial
from ekc.tables import format_rounded


@dataclass(frozen=True)
class LibraryResult:
    """The best algorithm of a library. Latency, power and energy are per call of the operator. It is never
    exported."""

    name: str
    """Library, version and algorithm: "cuBLASLt 13.1.0, algorithm 2"."""
    checked: str
    """Verdict of executing it and comparing its results."""
    algorithms: int
    """Algorithms that the library proposed."""
    failures: tuple[str, ...]
    """Algorithms that were wrong or could not run, with the reason."""
    latency_s: float
    latency_interval_s: Interval | None
    power_w: float | None
    energy_j: float | None
    """Metered energy; None where it was not metered."""
    energy_interval_j: Interval | None
    energies_j: tuple[MeasuredValue, ...]
    in_turn: bool
    """Whether it was measured in turn with the finalists, so that `energies_j` of both are pairs."""
    throttle: tuple[str, ...]
    speed: float
    """Latency of the run's best kernel over that of the library: above 1, the library is faster."""
    energy: float | None
    """Energy of the library's kernel over that of the run's best: below 1, the library takes less."""
    energy_difference: Difference | None
    """The same ratio from measurements in turn, with its interval; None where they were not."""

    def __repr__(self) -> str:
        return format_line(self, str(self))

    def __str__(self) -> str:
        """`cuBLASLt 13.1.0, algorithm 2: 1.07 times as fast and takes 0.93 of the energy`."""
        return f"{self.name}: {describe_ratios(self)}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values under the attribute names; an interval is [low, high]."""
        intervals = {
            name: None if interval is None else [interval.low, interval.high]
            for name, interval in vars(self).items()
            if isinstance(interval, Interval) or name in ("latency_interval_s", "energy_interval_j")
        }
        found = self.energy_difference
        span = None if found is None else [found.interval.low, found.interval.high]
        energies = [[m.value, m.interval.low, m.interval.high] for m in self.energies_j]
        lists = {"failures": list(self.failures), "throttle": list(self.throttle), "energies_j": energies}
        difference = None if found is None else {"ratio": found.ratio, "interval": span}
        return vars(self) | intervals | lists | {"energy_difference": difference}


def describe_ratios(result: LibraryResult) -> str:
    """Speed and energy of the library beside the run's best kernel, and what the meter shows."""
    words = f"{format_rounded(result.speed, 3)} times as fast as the best kernel"
    if result.energy is None:
        return f"{words}; its energy was not compared"
    words += f" and takes {format_rounded(result.energy, 3)} of the energy"
    found = result.energy_difference
    if found is None:
        return f"{words}; significance unknown, because they were not metered in turn"
    low, high = (format_rounded(edge, 3) for edge in (found.interval.low, found.interval.high))
    verdict = "a significant difference" if found.is_significant else "no significant difference"
    return f"{words} ({verdict}: {low} to {high}, metered {found.pair_count} times in turn)"


def make_library_result(
    name: str,
    checked: str,
    proposed: tuple[int, tuple[str, ...]],
    measured: tuple[Sequence[Timing], Sequence[Metering]],
    best: Trial,
    in_turn: bool,
) -> LibraryResult:
    """Make the result. `proposed`: number of algorithms, and failures; `measured`: timings, at least one, and
    meterings."""
    timings, meterings = measured
    latency_s = sum(t.latency_s for t in timings) / len(timings)
    energies = tuple(MeasuredValue(m.energy_j, m.energy_interval_j) for m in meterings)
    power_w = sum(m.power_w for m in meterings) / len(meterings) if meterings else None
    energy_j = None if power_w is None else power_w * latency_s
    is_paired = in_turn and best.in_turn and bool(energies) and len(energies) == len(best.energies_j)
    latencies = [MeasuredValue(t.latency_s, t.interval_s) for t in timings]
    last: Timing | Metering = meterings[-1] if meterings else timings[-1]
    assert best.latency_s is not None
    ours_j = best.energy_j if best.metered else None
    return LibraryResult(
        name=name,
        checked=checked,
        algorithms=proposed[0],
        failures=proposed[1],
        latency_s=latency_s,
        latency_interval_s=estimate_mean_interval(latencies),
        power_w=power_w,
        energy_j=energy_j,
        energy_interval_j=estimate_mean_interval(energies),
        energies_j=energies,
        in_turn=in_turn,
        throttle=last.conditions.throttle,
        speed=best.latency_s / latency_s,
        energy=energy_j / ours_j if energy_j is not None and ours_j else None,
        energy_difference=compare_pairwise(energies, best.energies_j) if is_paired else None,
    )
