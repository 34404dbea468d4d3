"""Simulated devices against measured kernels that ekc did not generate, tensor cores included.

    python -m benchmarks.simulator.foreign --data DIR --include DIR [--json FILE] [--cache DIR] [--only CARD]
        [--rows] [--list-rows]

DIR holds rows that `print_foreign.py` printed: CUDA text of kernels of emmy-ml, measured on an A100 (400
W), an H100 and an RTX 4090. Every kernel is compiled, counted from its PTX
(`foreign_rows.py`), and timed by the models of the simulated device at its boost clock,
without the seeded residual. Rows of the H100 that copy by TMA are printed with cp.async in its place and
judged apart: they are not what was measured. The CUDA headers that the text includes are in `pip install
nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl`, in nvidia/cu13/include.

The measured times are of launches in a graph, with data in L2 from the launch before. `foreign_rows.json`
names the rows: those left out (flagged by the printer, or stale) and two halves, by the group of a row.
What was fitted here was fitted on the first half; the bars hold on the other half and on all rows. Beside
each figure: the roofline of the data sheet, and a bootstrap interval (95 %) over groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.ranking import compute_error
from benchmarks.common.script import Arguments, format_verdict, make_main
from benchmarks.simulator.foreign_rows import (
    CARDS,
    CP_ASYNC,
    FITTED,
    LISTS,
    SCORED,
    ForeignRow,
    compile_row,
    derive_kind,
    list_rows,
    read_rows,
)
from benchmarks.simulator.rows import compute_interval, compute_rank, resample_groups
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.simulated.latency import estimate_latency
from ekc.devices.simulated.launch_counts import get_launch_profiles
from ekc.devices.simulated.memory_traffic import compute_compulsory_bytes
from ekc.devices.simulated.operating_point import compute_work
from ekc.devices.simulated.specs import SPECS, GpuSpec
from ekc.errors import DeviceError, EkcError
from ekc.ptx.counting.counts import HALF_SUMS

LONG_S = 10e-6
"""Seconds from which on a row counts: below, the launch takes most of the time."""
ERROR_BARS = {"a100_sm80": 0.09, "rtx4090_sm89": 0.11, "h100_sm90": 0.22, f"h100_sm90{CP_ASYNC}": 0.20}
RANK_BARS = {"a100_sm80": 0.98, "rtx4090_sm89": 0.97, "h100_sm90": 0.88, f"h100_sm90{CP_ASYNC}": 0.95}
PAIR_RATIO, PAIR_BAR, PICK_BAR = 1.2, 0.85, 0.06
"""Least ratio of two measured times for a pair to be scored; bars for the share of pairs in the right order
and for the mean cost of the pick."""
TIE = 1e-3
"""Relative difference below which two predictions are a tie."""
DRAWS = 1000
WORST = 10
"""Rows of each card that are printed as most wrong."""


@dataclass(frozen=True)
class Timed:
    """A row with its predictions."""

    row: ForeignRow
    kind: str
    simulated_s: float
    roofline_s: float
    parts_s: Mapping[str, float]
    """Seconds that each resource alone would take, by the model."""

    @property
    def card(self) -> str:
        """The card; rows with cp.async in TMA's place are apart."""
        return self.row.card + (CP_ASYNC if self.row.by_cp_async else "")


def time_row(row: ForeignRow, kernel: CompiledKernel) -> Timed:
    """Predict a row, at the boost clock whatever the power: a kernel is timed before the cap acts, as an H100
    showed (kernels that metering finds at 1.6 GHz are timed at 1.98). Raises `DeviceError` where the device
    cannot run it."""
    spec = SPECS[CARDS[row.card].device]
    work = compute_work(spec, kernel, get_launch_profiles(kernel), has_residual=False)
    found = [estimate_latency(spec, *one, spec.boost_mhz) for one in work.launches]
    parts = {
        part: sum(float(one.seconds_by_resource[part]) for one in found)
        for part in found[0].seconds_by_resource
    }
    seconds = sum(float(one.seconds) for one in found)
    return Timed(row, derive_kind(row, kernel), seconds, compute_roofline(spec, kernel), parts)


def compute_roofline(spec: GpuSpec, kernel: CompiledKernel) -> float:
    """Seconds by the data sheet: operations at the peak of their type, or each byte once: the longer."""
    peaks, total = spec.peaks(spec.boost_mhz), 0.0
    for launch, profile in zip(kernel.launches, get_launch_profiles(kernel), strict=True):
        counts, threads = profile.counts, float(np.prod([*launch.grid, *launch.block]))
        warps = threads / 32
        seconds = threads * (2 * counts.fma32 + counts.fp32 + 2 * counts.fp16) / peaks.fp32_flops
        for kind, flops in (*counts.tensor_flops.items(), *counts.group_flops.items()):
            rate = peaks.flops_by_type[kind.removesuffix(HALF_SUMS)]
            seconds += warps * flops / rate / (spec.throughput.half_sum_rate if HALF_SUMS in kind else 1.0)
        moved = sum(compute_compulsory_bytes(footprint) for footprint in launch.footprints)
        total += max(seconds, moved / peaks.dram_bytes_per_s)
    return total


def score_times(rows: Sequence[Timed], seed: int) -> dict[str, Any]:
    """Median error and rank correlation of the simulated device and of the roofline, with intervals."""
    real = np.array([one.row.seconds for one in rows])
    predictions = {
        "simulated": np.array([one.simulated_s for one in rows]),
        "roofline": np.array([one.roofline_s for one in rows]),
    }
    figures: dict[str, Any] = {"rows": len(rows)}
    draws = list(resample_groups([one.row.group for one in rows], seed, DRAWS))
    for name, predicted in predictions.items():
        figures[name] = {
            "median_error": compute_error(predicted, real),
            "error_interval": compute_interval([compute_error(predicted[d], real[d]) for d in draws]),
            "spearman": compute_rank(predicted, real),
            "rank_interval": compute_interval([compute_rank(predicted[d], real[d]) for d in draws]),
            "median_ratio": float(np.median(predicted / real)),
        }
    return figures


def score_groups(rows: Sequence[Timed], seed: int, predict: Callable[[Timed], float]) -> dict[str, Any]:
    """Pairs of one group and card that are ordered right, and the cost of taking the predicted fastest."""
    groups: dict[tuple[str, str], list[Timed]] = {}
    for one in rows:
        groups.setdefault((one.card, one.row.group), []).append(one)
    several = [group for group in groups.values() if len(group) > 1]
    tables = np.array([_judge_group(group, predict) for group in several])
    right, judged, ties, pick_cost, random_cost = tables.T
    draws = list(resample_groups(range(len(tables)), seed, DRAWS))
    return {
        "groups": len(tables),
        "pairs": int(judged.sum()),
        "right": int(right.sum()),
        "ties": int(ties.sum()),
        "right_interval": compute_interval(
            [right[d].sum() / judged[d].sum() for d in draws if judged[d].any()]
        ),
        "pick_cost": float(pick_cost.mean()),
        "pick_interval": compute_interval([pick_cost[d].mean() for d in draws]),
        "random_cost": float(random_cost.mean()),
    }


def _judge_group(
    group: Sequence[Timed], predict: Callable[[Timed], float]
) -> tuple[int, int, int, float, float]:
    """Right pairs, judged pairs, ties; cost of the pick and of a random one, over the fastest row."""
    right = judged = ties = 0
    for pair in combinations(group, 2):
        fast, slow = sorted(pair, key=lambda one: one.row.seconds)
        if slow.row.seconds >= PAIR_RATIO * fast.row.seconds:
            judged += 1
            ratio = predict(slow) / predict(fast)
            ties += abs(ratio - 1.0) <= TIE
            right += ratio > 1.0 + TIE
    real = np.array([one.row.seconds for one in group])
    predicted = np.array([predict(one) for one in group])
    picked = predicted <= predicted.min() * (1.0 + TIE)
    return (
        right,
        judged,
        ties,
        float(real[picked].mean() / real.min() - 1),
        float(real.mean() / real.min() - 1),
    )


def make_lines(timed: Sequence[Timed], lists: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
    """One line for each card: all rows, each half, each kind; the last ones for the order inside groups."""
    lines = []
    for card in dict.fromkeys(one.card for one in timed):
        own = [one for one in timed if one.card == card]
        long = [one for one in own if one.row.seconds >= LONG_S]
        scored = [one for one in long if one.row.number in lists[one.row.card][SCORED]]
        fitted = [one for one in long if one.row.number in lists[one.row.card][FITTED]]
        for which, rows in (("all", long), (f"{SCORED} half", scored), (f"{FITTED} half", fitted)):
            if len(rows) > 1:
                line = {"card": card, "which": which, **score_times(rows, seed)}
                judged = which != f"{FITTED} half"
                lines.append(line | (_judge_times(card, line["simulated"]) if judged else {}))
        kinds = {kind: [one for one in long if one.kind == kind] for kind in sorted({o.kind for o in long})}
        for kind, rows in (kinds | {"short rows": [o for o in own if o.row.seconds < LONG_S]}).items():
            if len(rows) > 1:
                lines.append({"card": card, "which": kind, **score_times(rows, seed)})
    return lines


def format_worst(timed: Sequence[Timed]) -> list[str]:
    """The long rows of each card that are most wrong, with the resources that the model says take longest."""
    lines = []
    for card in dict.fromkeys(one.card for one in timed):
        own = [one for one in timed if one.card == card and one.row.seconds >= LONG_S]
        own.sort(key=lambda one: -abs(np.log(one.simulated_s / one.row.seconds)))
        for one in own[:WORST]:
            longest = sorted(one.parts_s.items(), key=lambda part: -part[1])[:3]
            shown = ", ".join(f"{name} {seconds * 1e6:.1f}" for name, seconds in longest)
            lines.append(
                f"{card} {one.row.number} {one.kind}: {one.row.seconds * 1e6:.1f} us, "
                f"x {one.simulated_s / one.row.seconds:.2f}; alone: {shown}"
            )
    return lines


def _judge_times(card: str, found: Mapping[str, float]) -> dict[str, Any]:
    bar = {"median_error": ERROR_BARS[card], "spearman": RANK_BARS[card]}
    passed = found["median_error"] <= bar["median_error"] and found["spearman"] >= bar["spearman"]
    return {"bar": bar, "pass": passed}


def make_group_lines(timed: Sequence[Timed], lists: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
    """The order inside groups: all cards and both halves, the scored half, and each card."""
    measured = [one for one in timed if not one.row.by_cp_async]
    parts = {
        "all": measured,
        f"{SCORED} half": [o for o in measured if o.row.number in lists[o.row.card][SCORED]],
    }
    parts |= {card: [one for one in timed if one.card == card] for card in {o.card for o in timed}}
    lines = []
    for which, rows in parts.items():
        line: dict[str, Any] = {"card": "groups", "which": which}
        for name in ("simulated", "roofline"):
            line[name] = score_groups(rows, seed, attrgetter(f"{name}_s"))
        found = line["simulated"]
        if which in ("all", f"{SCORED} half"):
            line["bar"] = {"right": PAIR_BAR, "pick_cost": PICK_BAR}
            right = found["right"] >= PAIR_BAR * found["pairs"]
            line["pass"] = right and found["pick_cost"] <= PICK_BAR
        lines.append(line)
    return lines


def format_line(line: Mapping[str, Any]) -> str:
    """One line of the table."""
    parts = [f"{line['card']:30} {line['which']:14}"]
    for name in ("simulated", "roofline"):
        found = line[name]
        if "groups" in found:
            share, (low, high) = found["right"] / max(found["pairs"], 1), found["right_interval"]
            least, most = found["pick_interval"]
            parts.append(
                f"{name}: {found['right']} of {found['pairs']} pairs right ({share:.0%}, "
                f"{low:.0%} to {high:.0%}; {found['ties']} ties), "
                f"pick {found['pick_cost']:+.1%} ({least:.1%} to {most:.1%}; random "
                f"{found['random_cost']:+.0%}), {found['groups']} groups"
            )
        else:
            low, high = found["error_interval"]
            least, most = found["rank_interval"]
            parts.append(
                f"{name}: error {found['median_error']:5.1%} ({low:.1%} to {high:.1%}), rank "
                f"{found['spearman']:.3f} ({least:.2f} to {most:.2f}), "
                f"ratio {found['median_ratio']:.2f}"
            )
    rows = f"{line['rows']:4} rows  " if "rows" in line else ""
    return f"{parts[0]}{rows}{'   '.join(parts[1:])}  {format_verdict(line)}"


def measure(arguments: Arguments) -> dict[str, Any]:
    """Time all rows and print the table."""
    rows = read_rows(arguments.data)
    if arguments.list_rows:
        LISTS.write_text(json.dumps(list_rows(rows)) + "\n")
        return {"lines": []}
    lists = json.loads(LISTS.read_text())
    kept = [row for row in rows if is_kept(row, lists) and arguments.only in (None, row.card)]
    options = [f"-I{folder}" for folder in arguments.include]
    timed, refused = time_rows(kept, options, arguments.cache)
    for card, problems in refused.items():
        for problem, numbers in problems.items():
            print(f"{card}: {len(numbers)} rows are not timed: {problem} (rows {numbers[:8]})")
    if arguments.rows:
        for one in sorted(timed, key=lambda one: (one.card, one.kind, one.row.number)):
            ratio = one.simulated_s / one.row.seconds
            print(f"{one.card} {one.row.number} {one.kind}: {one.row.seconds * 1e6:.1f} us, x {ratio:.2f}")
    lines = make_lines(timed, lists, arguments.seed) + make_group_lines(timed, lists, arguments.seed)
    print("\n".join(format_line(line) for line in lines))
    print(f"the {WORST} most wrong of each card, with the times that the longest resources take alone [us]")
    print("\n".join(format_worst(timed)))
    return {"lines": lines, "refused": refused}


def is_kept(row: ForeignRow, lists: Mapping[str, Any]) -> bool:
    """Whether a row is in one of the halves."""
    return any(row.number in lists[row.card][half] for half in (FITTED, SCORED))


def time_rows(
    rows: Sequence[ForeignRow], options: Sequence[str], cache: Path | None
) -> tuple[list[Timed], dict[str, dict[str, list[int]]]]:
    """(timed rows, row numbers that were refused by card and error message)."""
    timed, refused = [], dict[str, dict[str, list[int]]]()
    for row in rows:
        try:
            if row.has_tma:
                raise DeviceError("TMA")
            timed.append(time_row(row, compile_row(row, options, cache)))
        except EkcError as problem:
            reason = str(problem).splitlines()[0][:100]
            refused.setdefault(row.card, {}).setdefault(reason, []).append(row.number)
    return timed, refused


OPTIONS = {
    "--data": {"type": Path, "required": True, "help": "the folder of printed rows"},
    "--include": {"type": Path, "action": "append", "default": [], "help": "folder with cuda_fp16.h"},
    "--cache": {"type": Path, "help": "folder that keeps counted kernels; default: none is kept"},
    "--only": {"choices": tuple(CARDS), "help": "one card"},
    "--list-rows": {"action": "store_true", "help": f"write {LISTS.name} from the rows, and stop"},
    "--rows": {"action": "store_true", "help": "print every row"},
}
main = make_main(__doc__, measure, {"median_error": ERROR_BARS, "spearman": RANK_BARS}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
