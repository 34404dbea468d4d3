"""The energy difference of two schedules on any device, by features of the schedules.

A model learns latency and power from the measurements on that device, without the two schedules: otherwise it
would attribute their noise to their features. Energy is latency x power, so the log of the ratio of energies
is the sum of the logs of both ratios. Each is attributed to groups of features; the part that the model did
not predict is a line of its own. Logs become joules by the logarithmic mean of the two energies (B. W. Ang's
index decomposition, LMDI), so that the lines add up to the difference.

The attribution is by Shapley values. The features change one after the other from those of A to those of B,
and each gets the change of the prediction at its step, averaged over orders. So the parts add up to the
difference, a feature that does not differ gets none, and B against A is the opposite of A against B. A larger
tile changes a dozen counts at once, and no model can know which of them matters; so features are grouped, and
the members of a group change one after another (Owen values). Few of the combinations between A and B
are then impossible ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import Device, PriorFunction
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
        "total_global_passes",
        "direct_load_words",
        "direct_load_trips",
        "tile_load_words",
        "tile_load_trips",
    ),
    "shared memory": (
        "total_shared_load_requests",
        "total_shared_load_wavefronts",
        "total_shared_load_bytes",
        "total_shared_store_requests",
        "total_shared_store_wavefronts",
        "total_one_pass_requests",
        "total_async_copies",
    ),
    "registers": ("registers", "needed_registers", "accumulators", "prefetched", "body_trips"),
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
    "synchronisation": (
        "total_barriers",
        "total_shuffles",
        "copy_waits",
        "group_waits",
        "pipeline",
        "launches",
    ),
}
"""All quantities of the analysis that features and prior use, each in one group. Shared memory per block is
with the occupancy, which it limits."""


def format_figure_name(figure: str) -> str:
    """Format the name of a quantity for printing."""
    return figure.removeprefix("total_").replace("_", " ")


Array = NDArray[np.float64]
ColumnFunction = Callable[[Mapping[str, Array]], Array]
"""A function of columns by name, each [n]. Returns [n, k]."""

ORDER_COUNT = 64
"""Random orders of the features. Each is used forwards and backwards."""


def compute_shapley_values(
    function: ColumnFunction, a: Mapping[str, float], b: Mapping[str, float], groups: Sequence[Sequence[str]]
) -> dict[str, Array]:
    """Compute the part [k] of each input of `groups` in function(b) - function(a).

    `a` and `b` have the same names. The function must not depend on inputs that are in no group.
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
    """Sample orders in which inputs change: [2 x ORDER_COUNT, inputs]. Every call returns the same."""
    random = np.random.default_rng(0)
    ends = np.cumsum(sizes)
    members = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    shuffles = (random.permutation(len(members)) for _ in range(ORDER_COUNT))
    sampled = np.stack(
        [np.concatenate([random.permutation(members[g]) for g in order]) for order in shuffles]
    )
    return np.concatenate([sampled, sampled[:, ::-1]])


UNEXPLAINED = "unexplained"
SEED = 0
"""Seed of folds and models, so that an account is reproducible."""
MAX_NAMED_FEATURES, MIN_NAMED_SHARE = 3, 0.1
"""Features named of a group, at most, and the least part of a named one relative to the largest."""


@dataclass(frozen=True)
class ExplainedSchedule:
    """Figures of one of the two schedules, per call: measured, or predicted by the model."""

    digest: str
    latency_s: float
    power_w: float
    timed: bool
    metered: bool
    energy_interval_j: Interval | None
    """95 % confidence interval of the metered energy in joules; None without a metering."""

    @property
    def energy_j(self) -> float:
        """Joules per call: power times latency."""
        return self.power_w * self.latency_s


@dataclass(frozen=True)
class FeatureContribution:
    """One quantity of both schedules, and its part of the log of the energy ratio."""

    name: str
    a: float
    b: float
    energy: float
    """Part of the natural log of the energy of B over A."""


@dataclass(frozen=True)
class GroupContribution:
    """The part of a group of features, or the unexplained part, of the logs of B over A."""

    cause: str
    """Name of the group, or "unexplained"."""
    latency: float
    """Part of the natural log of the latency ratio."""
    power: float
    """Part of the natural log of the power ratio."""
    prior: float
    """Part of the natural log of the energy ratio by the prior alone."""
    features: tuple[FeatureContribution, ...] = ()
    """Features with the largest parts, largest first."""

    @property
    def energy(self) -> float:
        """Part of the natural log of the energy ratio."""
        return self.latency + self.power


@dataclass(frozen=True)
class EnergyAccount:
    """The parts of the latency, power and energy ratios of two schedules."""

    a: ExplainedSchedule
    b: ExplainedSchedule
    lines: tuple[GroupContribution, ...]
    """Parts that add up to the logs of the ratios, largest first; the unexplained part last."""

    @property
    def log_ratio(self) -> float:
        """Natural log of the energy of B over A."""
        return math.log(self.b.energy_j / self.a.energy_j)

    @property
    def difference_j(self) -> float:
        """Joules per call of B minus those of A."""
        return self.b.energy_j - self.a.energy_j

    @property
    def joules_per_log(self) -> float:
        """Logarithmic mean of the energies: joules per unit of the log ratio."""
        return self.difference_j / self.log_ratio if self.log_ratio else self.a.energy_j

    def compute_share_of_a(self, log_part: float) -> float:
        """Convert a part of the log ratio to a share of A's energy."""
        return log_part * self.joules_per_log / self.a.energy_j


@dataclass(frozen=True)
class LearnedExplanation:
    """An account, the measurements it was learned from, and the error of the model."""

    device: str
    """Label of the device, such as "a100 (simulated)"."""
    source: str
    """Path of the record file or recording."""
    account: EnergyAccount
    timed: int
    """Schedules that the latency model learned from, without A and B."""
    metered: int
    """Schedules that the power model learned from, without A and B."""
    failed: int
    """Schedules that failed, and were not learned from."""
    quality: ModelQuality
    """Error of the model on schedules that it did not learn from."""

    @property
    def doubt(self) -> str:
        """Why single lines are not reliable; "" if there is no reason."""
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
        lines = []
        for line in of.lines:
            figures = {"difference_j": line.energy * of.joules_per_log}
            figures["share_of_a"] = of.compute_share_of_a(line.energy)
            lines.append(dataclasses.asdict(line) | {"energy": line.energy} | figures)
        a, b = (dataclasses.asdict(side) | {"energy_j": side.energy_j} for side in (of.a, of.b))
        learned = {"source": self.source, "timed": self.timed, "metered": self.metered, "failed": self.failed}
        head = {"a": a, "b": b, "difference_j": of.difference_j, "log_ratio": of.log_ratio, "lines": lines}
        quality = dataclasses.asdict(self.quality)
        return head | {"learned_from": learned, "quality": quality, "doubt": self.doubt}


def explain_learned(
    a: Schedule, b: Schedule, device: Device, records: str | Path | None
) -> LearnedExplanation:
    """Explain the energy difference of two schedules by features, learned from a record file or from the
    recording that the device replays.

    Raises `InvalidInput` for schedules of different operators, for one that failed, and for too few metered
    schedules; `RecordError` for the file.
    """
    check_same_operator(a, b)
    measured_set = load_measured_set(a.op, device, records)
    others = measured_set.exclude([a.digest, b.digest])
    _check_metered_count(others, a, device)
    return LearnedExplanation(
        device=device.label,
        source=measured_set.source,
        account=make_account(a, b, measured_set, device),
        timed=len(others.candidates),
        metered=int(others.is_metered.sum()),
        failed=len(measured_set.failures),
        quality=cross_validate(others, device.prior, SEED),
    )


def make_account(a: Schedule, b: Schedule, measured_set: MeasuredSet, device: Device) -> EnergyAccount:
    """Make the account from a set of measurements. `device` gives limits and prior only."""
    others = measured_set.exclude([a.digest, b.digest])
    model = ScheduleModel(others.candidates, device.prior)
    pair = analyse_schedules([a, b], device.limits)
    expected = model.predict(pair)
    one, other = (
        _make_side(s, measured_set, float(expected.log_latency[i]), float(expected.log_power[i]))
        for i, s in enumerate((a, b))
    )
    lines = sorted(_make_lines(model, device.prior, pair), key=lambda line: -abs(line.energy))
    return EnergyAccount(one, other, (*lines, _make_unexplained_line(one, other, lines)))


def _check_metered_count(others: MeasuredSet, schedule: Schedule, device: Device) -> None:
    metered = int(others.is_metered.sum())
    if metered < MIN_METERED:
        more = others.elsewhere and f"; it also holds {others.elsewhere}, which cannot be learned from here"
        raise InvalidInput(
            f"{schedule.op.name} on {device.label}: beside A and B, {others.source} holds {metered} metered "
            f"schedules, and {MIN_METERED} are needed to learn from and to judge by; "
            f"tune it with more --trials, or record more{more}"
        )


def _make_side(
    schedule: Schedule, measured_set: MeasuredSet, log_latency: float, log_power: float
) -> ExplainedSchedule:
    """Make the figures of a schedule: measured, or the predicted logs."""
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
    model: ScheduleModel, predict_prior: PriorFunction, pair: Mapping[str, Array]
) -> list[GroupContribution]:
    def logs(figures: Mapping[str, Array]) -> Array:
        inputs = make_model_inputs(figures, predict_prior)
        predicted = model.predict_inputs(inputs)
        by_prior = predict_by_prior(inputs).log_energy
        return np.stack([predicted.log_latency, predicted.log_power, by_prior], axis=1)

    a, b = ({name: float(values[i]) for name, values in pair.items()} for i in (0, 1))
    parts = compute_shapley_values(logs, a, b, list(FEATURE_GROUPS.values()))
    return [_make_line(cause, names, parts, a, b) for cause, names in FEATURE_GROUPS.items()]


def _make_line(
    cause: str,
    names: tuple[str, ...],
    parts: Mapping[str, Array],
    a: Mapping[str, float],
    b: Mapping[str, float],
) -> GroupContribution:
    latency, power, prior = (float(x) for x in sum(parts[name] for name in names))  # type: ignore[union-attr]
    energy = {n: float(parts[n][0] + parts[n][1]) for n in names}
    found = [FeatureContribution(format_figure_name(n), a[n], b[n], energy[n]) for n in names]
    found.sort(key=lambda f: -abs(f.energy))
    least = MIN_NAMED_SHARE * abs(found[0].energy)
    strong = (f for f in found[:MAX_NAMED_FEATURES] if f.energy and abs(f.energy) >= least)
    return GroupContribution(cause, latency, power, prior, tuple(strong))


def _make_unexplained_line(
    a: ExplainedSchedule, b: ExplainedSchedule, lines: Sequence[GroupContribution]
) -> GroupContribution:
    """Make the line of the measured logs of B over A minus the predicted ones."""
    latency = math.log(b.latency_s / a.latency_s) - sum(line.latency for line in lines)
    power = math.log(b.power_w / a.power_w) - sum(line.power for line in lines)
    return GroupContribution(UNEXPLAINED, latency, power, 0.0)
