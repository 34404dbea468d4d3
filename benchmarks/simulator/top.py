"""Gates at the top of the ranking: what is lost where the first choices of the simulator are taken.

A rank correlation over a whole space says little about the kernels that a tuning run chooses between. So
each recording is scored by its fastest kernels too: all of them by estimated counts, and again with the
estimate's best compiled. Kernels that stage both operands in shared memory and kernels that read one of them
directly stand apart. Half of the kernels, by a hash of their names, were never fitted on.

Beside the simulator stand three predictors that know no model: the time of the same configuration on another
card, times one factor; the elements of C that a thread owns; and a constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import linregress

from benchmarks.common.clblast import WIDEST, Xgemm
from benchmarks.common.ranking import compute_error
from benchmarks.simulator.rows import (
    LATENCY,
    Recording,
    Row,
    Vector,
    Work,
    compile_work,
    compute_rank,
    compute_works,
    estimate_work,
    is_unfitted,
    read,
    stack_works,
)
from ekc.devices.simulated import power
from ekc.devices.simulated.latency import estimate_latency

Mask = NDArray[np.bool_]

TEN = 10
"""Kernels that are measured after the model has ranked all; the fastest of them is kept."""
FASTEST_SHARE = 0.1
"""Share of the kernels, by recorded time, within which the ranking is scored again."""
TOLERANCE = 0.05
"""The least energy is sought among kernels predicted at most this much slower than the fastest."""
DIRECT_SAMPLE = 200
"""Kernels with direct reads, not fitted on, whose error is held against the distance between lanes."""
MIN_DIRECT = 10
"""Kernels without which no slope is fitted."""
TEMPERATURE_C = 60.0
"""Temperature of the die for predicted energies."""

BARS = {
    "rtx3090": {"pick": 1.05, "best_of_ten": 1.01, "rank_of_fastest_tenth": 0.7, "spearman": 0.955,
                "median_error": 0.057},
    "rtx2080ti": {"pick": 1.05, "best_of_ten": 1.01, "rank_of_fastest_tenth": 0.7, "spearman": 0.98,
                  "median_error": 0.041},
}  # fmt: skip
LEAST_ENERGY_BAR = 1.08
DIRECT_ERROR_BAR = 0.10
TRANSFER = {"a100": "rtx3090", "rtx3090": "rtx2080ti", "rtx2080ti": "rtx3090"}
"""Recording whose times predict another's."""


@dataclass(frozen=True)
class Space:
    """The distinct kernels of a recording: arrays with one entry per kernel."""

    recording: Recording
    configurations: tuple[Xgemm, ...]
    seconds: Vector
    """Recorded seconds, the mean over the rows of a kernel."""
    clocks_mhz: Vector
    works: tuple[Work, ...]

    @property
    def staged(self) -> Mask:
        """Kernels that stage both operands in shared memory."""
        return np.array([bool(one.sa and one.sb) for one in self.configurations])

    @property
    def unfitted(self) -> Mask:
        """Kernels that nothing was fitted on: the SHA-256 of their name is odd."""
        return np.array([is_unfitted(one) for one in self.configurations])

    def predict_times(self, at_boost: bool, works: Sequence[Work] = ()) -> Vector:
        """Seconds by the simulator, at the clock fitted for the card or the boost clock of its data sheet."""
        share = 1.0 if at_boost else (self.recording.clock_share or 1.0)
        work = stack_works(works or self.works)
        clocks_mhz = share * self.clocks_mhz
        spec = self.recording.spec
        return np.asarray(estimate_latency(spec, work.events, work.resident, clocks_mhz).seconds)

    def predict_energies(self, seconds: Vector) -> Vector:
        """Joules by the simulator, at the clock fitted for the card."""
        spec, work = self.recording.spec, stack_works(self.works)
        clocks_mhz = self.clocks_mhz * (self.recording.clock_share or 1.0)
        dynamic = power.compute_dynamic_energy(spec, work.events).at_voltage(
            spec.voltage.at_clock(clocks_mhz)
        )
        standing_w = power.compute_idle_power(spec, clocks_mhz, TEMPERATURE_C)
        standing_w = standing_w + power.compute_active_clock_power(spec, clocks_mhz, 1.0)
        return np.asarray(dynamic + standing_w * seconds)


def read_space(data: Path, recording: Recording) -> Space:
    """The distinct kernels of a recording that fit the card, with estimated counts."""
    rows: dict[Xgemm, list[Row]] = {}
    for row in read(data, recording):
        rows.setdefault(row.one, []).append(row)
    works = compute_works(recording.spec, (same[0] for same in rows.values()), estimate_work)
    kept = [(one, work) for one in rows if (work := works[one]) is not None]
    return Space(
        recording,
        tuple(one for one, _ in kept),
        np.array([np.mean([row.seconds for row in rows[one]]) for one, _ in kept]),
        np.array([np.mean([row.clock_mhz for row in rows[one]]) for one, _ in kept]),
        tuple(work for _, work in kept),
    )


def score_top(predicted: Vector, recorded: Vector, seconds: Vector | None) -> dict[str, Any]:
    """Score an order `predicted[kernels]` of recorded seconds `[kernels]`, and predicted seconds, if any. Of
    equal predictions the mean counts.

    pick, best_of_ten: recorded time of the kernel predicted fastest, and of the fastest of the ten predicted
    fastest, over that of the fastest. median_error: None for a predictor that only ranks."""
    least, order = recorded.min(), np.argsort(predicted, kind="stable")
    first = predicted == predicted[order[0]]
    fast = recorded <= np.quantile(recorded, FASTEST_SHARE)
    return {
        "kernels": len(recorded),
        "pick": float(recorded[first].mean() / least),
        "best_of_ten": float(recorded[order[:TEN]].min() / least),
        "rank_of_fastest_tenth": compute_rank(predicted[fast], recorded[fast]),
        "spearman": compute_rank(predicted, recorded),
        "median_error": None if seconds is None else compute_error(seconds, recorded),
    }


def compile_best(space: Space, seconds: Vector, count: int, at_boost: bool) -> tuple[Vector, Vector]:
    """An order in which the estimate's `count` best, compiled, come before all others; and the seconds."""
    best = np.argsort(seconds, kind="stable")[:count]
    works = [compile_work(space.recording.spec, space.configurations[i]) for i in best]
    refined = np.array(seconds)
    for i, work in zip(best, works, strict=True):
        one = Space(space.recording, (), np.empty(0), space.clocks_mhz[i : i + 1], ())
        refined[i] = np.inf if work is None else one.predict_times(at_boost, [work])[0]
    # The others keep their order, after the slowest of these.
    others = np.setdiff1d(np.arange(len(seconds)), best)
    slowest = refined[best][np.isfinite(refined[best])].max()
    order = np.array(refined)
    order[others] *= max(1.0, slowest / seconds[best[-1]])
    return order, refined


def predict_by_other_card(space: Space, others: dict[str, Space]) -> Vector:
    """Seconds of the same configuration on another card times one factor; NaN where that has no row."""
    other = others[TRANSFER[space.recording.device]]
    seconds = dict(zip(other.configurations, other.seconds, strict=True))
    found = np.array([seconds.get(one, np.nan) for one in space.configurations])
    learn = ~space.unfitted & np.isfinite(found)
    return np.asarray(found * np.exp(np.median(np.log(space.seconds[learn] / found[learn]))))


def score_predictors(
    space: Space, predictions: dict[str, tuple[Vector, Vector | None]], part: Mask
) -> dict[str, dict[str, Any]]:
    """Scores of several predictors on part of the kernels; (order, seconds or None) by name."""
    scores = {}
    for name, (order, seconds) in predictions.items():
        known = part & np.isfinite(order)
        predicted = None if seconds is None else seconds[known]
        scores[name] = score_top(order[known], space.seconds[known], predicted)
    return scores


def make_lines(space: Space, others: dict[str, Space], compiled: int) -> Iterator[dict[str, Any]]:
    """Lines of the table: by clock, half of the kernels, and whether they stage both operands."""
    area = np.array([-float(one.thread_tile) for one in space.configurations])
    middle = np.full(len(space.seconds), np.median(space.seconds[~space.unfitted]))
    transferred = predict_by_other_card(space, others)
    trivial = {
        "other card": (transferred, transferred),
        "minus thread tile": (area, None),
        "constant": (middle, middle),
    }
    everything = np.ones(len(space.seconds), np.bool_)
    for at_boost in (False, True) if space.recording.clock_share else (False,):
        estimated = space.predict_times(at_boost)
        predictions = {"estimated": (estimated, estimated)}
        if compiled:
            predictions[f"best {compiled} compiled"] = compile_best(space, estimated, compiled, at_boost)
        for half, mask in (("all", everything), ("unfitted half", space.unfitted)):
            parts = {"all": mask, "both staged": mask & space.staged, "direct reads": mask & ~space.staged}
            for part, kernels in parts.items():
                scores = score_predictors(space, predictions | trivial, kernels)
                yield {
                    "device": space.recording.device,
                    "clock": "boost" if at_boost else "own",
                    "half": half,
                    "part": part,
                    "scores": scores,
                    "pass": _judge(space, part, at_boost, {name: scores[name] for name in predictions}),
                }


def _judge(space: Space, part: str, at_boost: bool, scores: dict[str, dict[str, Any]]) -> bool | None:
    """Whether all bars are met; None without any. The recordings did not run at the boost clock, so errors of
    times at that clock have none."""
    bars = dict(BARS.get(space.recording.device, {}))
    if not bars or part != "all":
        return None
    if at_boost:
        del bars["median_error"]
    return all(
        figures[name] <= bar if name in ("pick", "best_of_ten", "median_error") else figures[name] >= bar
        for figures in scores.values()
        for name, bar in bars.items()
    )


def measure_direct_reads(space: Space, seed: int) -> dict[str, Any]:
    """Errors of kernels with direct reads against the distance between lanes, on the unfitted half.

    Fewer than `MIN_DIRECT` kernels have no slope and no verdict."""
    candidates = np.flatnonzero(space.unfitted & ~space.staged)
    drawn = np.random.default_rng(seed).permutation(candidates)[:DIRECT_SAMPLE]
    logs = np.log(space.predict_times(at_boost=False)[drawn] / space.seconds[drawn])
    distances = np.array([compute_lane_distance(space.configurations[i]) for i in drawn], dtype=np.float64)
    line: dict[str, Any] = {"device": space.recording.device, "kernels": len(drawn), "pass": None}
    if len(drawn) < MIN_DIRECT:
        return line
    slope = linregress(np.log2(distances), logs)
    low, high = slope.slope - 1.96 * slope.stderr, slope.slope + 1.96 * slope.stderr
    error = float(np.median(np.abs(np.expm1(logs))))
    return line | {
        "median_error": error,
        "slope_per_octave": float(slope.slope),
        "slope_interval": (float(low), float(high)),
        "pass": bool(error <= DIRECT_ERROR_BAR and low <= 0.0 <= high),
    }


def compute_lane_distance(one: Xgemm) -> int:
    """Elements between the addresses of neighbouring lanes, the larger of the operands read directly."""
    operands = (
        (one.sa, one.strm, one.vwm, one.mwg // one.mdimc),
        (one.sb, one.strn, one.vwn, one.nwg // one.ndimc),
    )
    return max(
        min(vector, WIDEST) if strided else own for staged, strided, vector, own in operands if not staged
    )


def measure_least_energy(space: Space) -> dict[str, Any]:
    """Recorded time of the kernel with the least predicted energy among those predicted nearly fastest."""
    seconds = space.predict_times(at_boost=False)
    near = seconds <= (1.0 + TOLERANCE) * seconds.min()
    joules = np.where(near, space.predict_energies(seconds), np.inf)
    chosen = int(np.argmin(joules))
    slower = float(space.seconds[chosen] / space.seconds.min())
    return {
        "device": space.recording.device,
        "kernels_near": int(near.sum()),
        "time_over_fastest": slower,
        "claimed_saving": float(
            1.0 - joules[chosen] / space.predict_energies(seconds)[int(np.argmin(seconds))]
        ),
        "choice": str(space.configurations[chosen]),
        "pass": slower <= LEAST_ENERGY_BAR if space.recording.device in BARS else None,
    }


def measure(data: Path, compiled: int, seed: int) -> dict[str, Any]:
    """All gates of all recordings."""
    spaces = {one.device: read_space(data, one) for one in LATENCY}
    lines = [line for space in spaces.values() for line in make_lines(space, spaces, compiled)]
    direct = [measure_direct_reads(spaces[device], seed) for device in BARS]
    energy = [measure_least_energy(space) for space in spaces.values()]
    verdicts = [line["pass"] for line in (*lines, *direct, *energy)]
    return {"lines": lines, "direct": direct, "energy": energy, "pass": False not in verdicts}


def format_result(result: dict[str, Any]) -> str:
    """The gates as text."""
    text = [
        "gates at the top: recorded time over the fastest of the first choice (pick) and of the best of ten;",
        "rank correlation within the fastest tenth and over all; median error of the time",
        f"{'device':10}{'clock':7}{'kernels':15}{'part':14}{'predictor':20}{'n':>6}{'pick':>7}{'ten':>7}"
        f"{'tenth':>7}{'all':>7}{'error':>8}",
    ]
    for line in result["lines"]:
        verdict = {True: "  pass", False: "  FAIL", None: ""}[line["pass"]]
        for name, figures in line["scores"].items():
            error = figures["median_error"]
            shown = "" if error is None else f"{error:.1%}"
            text.append(
                f"{line['device']:10}{line['clock']:7}{line['half']:15}{line['part']:14}{name:20}"
                f"{figures['kernels']:6}{figures['pick']:7.3f}{figures['best_of_ten']:7.3f}"
                f"{figures['rank_of_fastest_tenth']:7.3f}{figures['spearman']:7.3f}{shown:>8}{verdict}"
            )
            verdict = ""
    for one in result["direct"]:
        if "slope_interval" not in one:
            text.append(
                f"direct reads, {one['device']}: only {one['kernels']} kernels not fitted on, no slope"
            )
            continue
        low, high = one["slope_interval"]
        text.append(
            f"direct reads, {one['device']}, {one['kernels']} kernels not fitted on: median error "
            f"{one['median_error']:.1%}, log error an octave of lane distance {one['slope_per_octave']:+.3f} "
            f"(95 % {low:+.3f} to {high:+.3f}): {'pass' if one['pass'] else 'FAIL'}"
        )
    for one in result["energy"]:
        verdict = {True: "pass", False: "FAIL", None: "no bar"}[one["pass"]]
        text.append(
            f"least energy within {TOLERANCE:.0%}, {one['device']}: one of {one['kernels_near']} kernels "
            f"that takes {one['time_over_fastest']:.3f} of the fastest, claimed saving "
            f"{one['claimed_saving']:.1%}: {verdict}"
        )
    return "\n".join(text)
