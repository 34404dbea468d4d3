"""Why one schedule costs more energy than another, on a device that does not tell: by features, as a model
learned them from what was measured there.

Energy is latency x power, so the log of a ratio of energies is the sum of those of both; each is credited to
the features by which the schedules differ, and what the model did not expect is a line of its own. The two
schedules are left out of what it learns from: otherwise it would credit their noise to their features.

Logs become joules by the logarithmic mean of the two energies (B. W. Ang's index decomposition, LMDI), which
leaves nothing over.

The figures that the models see, by what they are about.

A larger tile changes a dozen counts at once. Which of those that always move together does the work,
no model can know; which group does, it can.

What each input of a function has to do with the difference between two of its values.

Shapley's rule: the inputs change one after the other from those of A to those of B, and each is credited
with what the function does at its step, in the mean over orders. So the credits add up to the difference,
an input that does not differ has none, and B against A is the opposite of A against B. Inputs that move
together change together (Owen's rule): orders keep the members of a group side by side, and the
function is seldom asked about things that cannot be.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import Device, Peaks
from ekc.devices.statistics import Interval
from ekc.errors import InvalidInput
from ekc.ir.schedule.schedule import Schedule
from ekc.search.cost_model.features import make_model_inputs
from ekc.search.database.measured_set import MeasuredSet, analyse_schedules, load_measured_set
from ekc.search.explain.by_event import check_same_operator
from ekc.search.explain.schedule_model import (
    MIN_METERED,
    ModelQuality,
    ScheduleModel,
    cross_validate,
    predict_by_prior,
)

FEATURE_GROUPS: dict[str, tuple[str, ...]] = {
    "arithmetic": (
        "total_operations",
        "total_tensor_products",
        "total_group_products",
        "total_conversions",
        "useful_share",
    ),
    "loops and guards": ("total_loop_steps", "total_guards", "statements"),
    "global memory": (
        "total_global_load_requests",
        "total_global_load_sectors",
        "total_global_load_bytes",
        "total_global_store_requests",
        "total_global_store_sectors",
        "l2_bytes",
        "dram_bytes",
        "block_bytes",
    ),
    "shared memory": (
        "total_shared_load_requests",
        "total_shared_load_wavefronts",
        "total_shared_load_bytes",
        "total_shared_store_requests",
        "total_shared_store_wavefronts",
    ),
    "registers": ("registers", "accumulators", "prefetched"),
    "occupancy and waves": (
        "threads",
        "blocks",
        "shared_bytes",
        "resident_blocks",
        "active_warps",
        "occupancy",
        "waves",
        "wave_use",
        "balance",
        "lane_use",
    ),
    "synchronisation": ("total_barriers", "total_shuffles", "pipeline", "launches"),
}
"""Every figure that a feature or the prior is made of, once. Bytes of shared memory that a block owns stand
with the occupancy that they cost."""


def format_figure_name(figure: str) -> str:
    """A figure's name as it is printed."""
    return figure.removeprefix("total_").replace("_", " ")


Array = NDArray[np.float64]
ColumnFunction = Callable[[Mapping[str, Array]], Array]
"""Columns of inputs by name, [n] each -> [n, k]."""

ORDER_COUNT = 64
"""Drawn; each is walked there and back."""


def compute_shapley_values(
    function: ColumnFunction, a: Mapping[str, float], b: Mapping[str, float], groups: Sequence[Sequence[str]]
) -> dict[str, Array]:
    """For each input of `groups`, its part [k] of function(b) - function(a).

    `a` and `b` have the same names; those in no group must not matter to the function.
    """
    moving = [[name for name in group if a[name] != b[name]] for group in groups]
    players = [name for group in moving for name in group]
    width = function({name: np.array([a[name]]) for name in a}).shape[1]
    found = {name: np.zeros(width) for group in groups for name in group}
    if not players:
        return found
    orders = _sample_orders([len(group) for group in moving])
    place = np.argsort(orders, axis=1)
    # [order, step, player]: whether the player has changed by then.
    changed = (place[:, None, :] < np.arange(len(players) + 1)[None, :, None]).reshape(-1, len(players))
    columns = {name: np.full(len(changed), value) for name, value in a.items()}
    for i, name in enumerate(players):
        columns[name] = np.where(changed[:, i], b[name], a[name])
    values = function(columns).reshape(len(orders), len(players) + 1, width)
    credit = np.take_along_axis(np.diff(values, axis=1), place[:, :, None], axis=1).mean(axis=0)
    return found | dict(zip(players, credit, strict=True))


def _sample_orders(sizes: Sequence[int]) -> NDArray[np.int64]:
    """[2 x ORDERS, players]: who changes at each step. The same ones each time."""
    random = np.random.default_rng(0)
    ends = np.cumsum(sizes)
    members = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    drawn = np.stack(
        [
            np.concatenate([random.permutation(members[g]) for g in random.permutation(len(members))])
            for _ in range(ORDER_COUNT)
        ]
    )
    return np.concatenate([drawn, drawn[:, ::-1]])


UNEXPLAINED = "unexplained"
SEED = 0
"""Of folds and models: an account is the same each time."""
MAX_NAMED_FEATURES, MIN_NAMED_SHARE = 3, 0.1
"""Features named of a group, and the least share of its largest one that is worth a word."""


@dataclass(frozen=True)
class ExplainedSchedule:
    """One of the two schedules. Per call; what was not measured is expected of it by the model."""

    digest: str
    latency_s: float
    power_w: float
    timed: bool
    metered: bool
    energy_interval_j: Interval | None

    @property
    def energy_j(self) -> float:
        """Joules per call: power times latency."""
        return self.power_w * self.latency_s


@dataclass(frozen=True)
class FeatureContribution:
    """One figure of both schedules, and its part of the log of the ratio of energies."""

    name: str
    a: float
    b: float
    energy: float


@dataclass(frozen=True)
class GroupContribution:
    """What a group of features, or nothing known, does to the log of B over A."""

    cause: str
    latency: float
    power: float
    prior: float
    """Of the energy: what physics alone says of this group."""
    features: tuple[FeatureContribution, ...] = ()
    """The strongest first."""

    @property
    def energy(self) -> float:
        """Latency and power together."""
        return self.latency + self.power


@dataclass(frozen=True)
class EnergyAccount:
    """Two schedules of one operator on one device, and what the logs of their ratios are made of."""

    a: ExplainedSchedule
    b: ExplainedSchedule
    lines: tuple[GroupContribution, ...]
    """They add up to the logs of the ratios. The largest first; what is unexplained last."""

    @property
    def log_ratio(self) -> float:
        """Natural log of the energy of B over that of A."""
        return math.log(self.b.energy_j / self.a.energy_j)

    @property
    def difference_j(self) -> float:
        """Joules per call that B costs more than A."""
        return self.b.energy_j - self.a.energy_j

    @property
    def joules_per_log(self) -> float:
        """The logarithmic mean of the energies: turns parts of the log into joules."""
        return self.difference_j / self.log_ratio if self.log_ratio else self.a.energy_j

    def compute_share_of_a(self, log_part: float) -> float:
        """A part of the log as a share of A's energy."""
        return log_part * self.joules_per_log / self.a.energy_j


@dataclass(frozen=True)
class LearnedExplanation:
    """An account, what it was learned from, and how far to believe it."""

    device: str
    """With "(simulated)" where it is."""
    source: str
    account: EnergyAccount
    timed: int
    """Schedules that the model learned latencies from, A and B not among them, ..."""
    metered: int
    """... and powers: a part of the same."""
    failed: int
    quality: ModelQuality

    @property
    def doubt(self) -> str:
        """Why the lines should not be believed one by one; "" where there is no reason."""
        of, error = self.account, self.quality.energy.error
        if of.a.digest == of.b.digest:
            return "A and B are one schedule"
        if abs(of.log_ratio) <= math.log1p(error):
            return "A and B differ by no more than the model errs on schedules it has not seen"
        if abs(of.lines[-1].energy) > abs(of.log_ratio) / 2:
            return "what the model did not expect is more than half as large as the difference"
        if error >= self.quality.energy_by_prior.error:
            return "on schedules it has not seen the model errs no less than physics alone"
        return ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values. Logs are natural ones, of B over A."""
        of = self.account
        lines = [
            dataclasses.asdict(line)
            | {
                "energy": line.energy,
                "difference_j": line.energy * of.joules_per_log,
                "share_of_a": of.compute_share_of_a(line.energy),
            }
            for line in of.lines
        ]
        sides = {
            name: dataclasses.asdict(side) | {"energy_j": side.energy_j}
            for name, side in (("a", of.a), ("b", of.b))
        }
        learned = {"source": self.source, "timed": self.timed, "metered": self.metered, "failed": self.failed}
        return sides | {
            "difference_j": of.difference_j,
            "log_ratio": of.log_ratio,
            "lines": lines,
            "learned_from": learned,
            "quality": dataclasses.asdict(self.quality),
            "doubt": self.doubt,
        }


def explain_learned(
    a: Schedule, b: Schedule, device: Device, records: str | Path | None
) -> LearnedExplanation:
    """The energies of two schedules, by features, learned from a record file or from the recording that the
    device is.

    Raises `InvalidInput` for schedules of different operators, for one that failed, and where too little was
    metered; `RecordError` for the file.
    """
    check_same_operator(a, b)
    known = load_measured_set(a.op, device, records)
    others = known.exclude([a.digest, b.digest])
    _check_metered_count(others, a, device)
    return LearnedExplanation(
        device=device.label,
        source=known.source,
        account=make_account(a, b, known, device),
        timed=len(others.candidates),
        metered=int(others.is_metered.sum()),
        failed=len(known.failures),
        quality=cross_validate(others, device.peaks, SEED),
    )


def make_account(a: Schedule, b: Schedule, measured_set: MeasuredSet, device: Device) -> EnergyAccount:
    """The lines alone: `device` says what can be had at most, all else is out of `known`."""
    others = measured_set.exclude([a.digest, b.digest])
    model = ScheduleModel(others.candidates, device.peaks, SEED)
    pair = analyse_schedules([a, b], device.limits)
    expected = model.predict(pair)
    one, other = (
        _make_side(s, measured_set, float(expected.log_latency[i]), float(expected.log_power[i]))
        for i, s in enumerate((a, b))
    )
    lines = sorted(_make_lines(model, device.peaks, pair), key=lambda line: -abs(line.energy))
    return EnergyAccount(one, other, (*lines, _make_unexplained_line(one, other, lines)))


def _check_metered_count(others: MeasuredSet, schedule: Schedule, device: Device) -> None:
    metered = int(others.is_metered.sum())
    if metered < MIN_METERED:
        held = others.elsewhere
        more = f"; it also holds {held}, which cannot be learned from here" if held else ""
        raise InvalidInput(
            f"{schedule.op.name} on {device.label}: beside A and B, {others.source} holds {metered} metered "
            f"schedules, and {MIN_METERED} are needed to learn from and to judge by; "
            f"tune it with more --trials, or record more{more}"
        )


def _make_side(
    schedule: Schedule, measured_set: MeasuredSet, log_latency: float, log_power: float
) -> ExplainedSchedule:
    """Measured where it was; `latency` and `power` are the logs that the model expects."""
    found = measured_set.find_candidate(schedule)
    metered = found is not None and found.metered
    return ExplainedSchedule(
        digest=schedule.digest,
        latency_s=found.latency_s if found is not None else math.exp(log_latency),
        power_w=found.power_w if found is not None and metered else math.exp(log_power),
        timed=found is not None,
        metered=metered,
        energy_interval_j=found.to_trial().energy_interval_j if found is not None and metered else None,
    )


def _make_lines(
    model: ScheduleModel, peaks: Peaks, pair: Mapping[str, NDArray[np.float64]]
) -> list[GroupContribution]:
    def logs(figures: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        seen = make_model_inputs(figures, peaks)
        said = model.predict_inputs(seen)
        return np.stack([said.log_latency, said.log_power, predict_by_prior(seen).log_energy], axis=1)

    a, b = ({name: float(values[i]) for name, values in pair.items()} for i in (0, 1))
    parts = compute_shapley_values(logs, a, b, list(FEATURE_GROUPS.values()))
    return [_make_line(cause, names, parts, a, b) for cause, names in FEATURE_GROUPS.items()]


def _make_line(
    cause: str,
    names: tuple[str, ...],
    parts: Mapping[str, NDArray[np.float64]],
    a: Mapping[str, float],
    b: Mapping[str, float],
) -> GroupContribution:
    latency, power, prior = (float(x) for x in sum(parts[name] for name in names))  # type: ignore[union-attr]
    found = [
        FeatureContribution(format_figure_name(n), a[n], b[n], float(parts[n][0] + parts[n][1]))
        for n in names
    ]
    found.sort(key=lambda f: -abs(f.energy))
    strong = [
        f
        for f in found[:MAX_NAMED_FEATURES]
        if f.energy and abs(f.energy) >= MIN_NAMED_SHARE * abs(found[0].energy)
    ]
    return GroupContribution(cause, latency, power, prior, tuple(strong))


def _make_unexplained_line(
    a: ExplainedSchedule, b: ExplainedSchedule, lines: Sequence[GroupContribution]
) -> GroupContribution:
    """The logs of B over A, less what the model expects of them."""
    latency = math.log(b.latency_s / a.latency_s) - sum(line.latency for line in lines)
    power = math.log(b.power_w / a.power_w) - sum(line.power for line in lines)
    return GroupContribution(UNEXPLAINED, latency, power, 0.0)
