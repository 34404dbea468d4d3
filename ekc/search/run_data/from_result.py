"""From a tuning result or a clock plan to the data of its pictures and of its report.

A part that the result lacks is left out, and `RunData.missing` says why.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from ekc.devices.statistics import Interval
from ekc.report.run_data import NamedTrial, PlanData, Predictions, Roofs, RunData, Table, TrialColumns
from ekc.search.clocks.plan import ClockPlan, PlannedLayer
from ekc.search.cost_model.features import COUNT_FEATURES, FEATURE_NAMES
from ekc.search.data.result import TuningData, get_arithmetic_type
from ekc.search.data.trial import Trial, list_columns
from ekc.search.run_data.parts import break_down_energy, list_kernels, map_space, measure_importance
from ekc.search.summary import (
    CARD_HEADERS,
    CLOCK_NOTE,
    NO_COMPARISON,
    describe_verdict,
    is_card_judged,
    list_card_rows,
    list_notes,
    make_clock_table,
    make_main_table,
)
from ekc.tables import count_nouns, format_quantity

DRAM_COLUMN = FEATURE_NAMES.index("dram_bytes")
assert "dram_bytes" in COUNT_FEATURES
NORMAL_95 = 1.96
"""Standard deviations on each side of the mean in a 95 % interval of a normal distribution."""
MIN_PREDICTIONS = 3


PREDICTED_IN_RUN = "by the energy model of the run, before each kernel was metered"


PARTS = ("importance", "energy", "space", "kernels")
"""Parts that take time to collect: three pictures, and the listings of code."""


def collect_run(
    data: TuningData, parts: Collection[str] = PARTS, predicted: str = PREDICTED_IN_RUN
) -> RunData:
    """Collect the data of pictures and reports.

    parts: those of `PARTS` that are wanted; names of other pictures are allowed. predicted: how the
    predictions of the data were made.
    """
    missing: dict[str, str] = {}
    trials = make_trial_columns(data)
    if not np.isfinite(trials.energy_j).any():
        missing["front"] = "no energy of a trial was metered or predicted"
    headers, rows = make_main_table(data)
    return RunData(
        title=str(data.op).splitlines()[0],
        operator=str(data.op),
        device=data.device.label,
        simulated=data.device.simulated,
        objective=data.objective,
        max_slowdown=data.max_slowdown,
        flops=float(data.op.flops),
        trials=trials,
        named=_list_named(data),
        figures=Table(headers, tuple(rows)),
        notes=tuple(note for note in list_notes(data) if note[1]),
        conditions=_list_conditions(data),
        clock_front=_make_clock_front(data),
        model_card=_make_model_card(data, missing),
        roofs=_make_roofs(data, missing),
        predictions=_make_predictions(data, predicted, missing),
        importances=measure_importance(data, trials, missing) if "importance" in parts else (),
        causes=break_down_energy(data, missing) if "energy" in parts else None,
        space=map_space(data, missing) if "space" in parts else None,
        kernels=list_kernels(data, missing) if "kernels" in parts else (),
        missing=missing,
    )


def make_trial_columns(data: TuningData) -> TrialColumns:
    """Make the columns of all trials, from those of their data frame. Failed trials have no figures."""
    columns = list_columns(data.trials)
    ok = np.array([t.ok for t in data.trials], dtype=bool)
    shown: dict[str, Any] = {
        name: np.where(ok, np.array(columns[name], np.float64), math.nan)
        for name in ("latency_s", "power_w", "energy_j", "energy_low_j", "energy_high_j")
    }
    shown |= {name: tuple(columns[name]) for name in ("digest", "structure", "status")}
    return TrialColumns(
        **shown,
        round=np.array(columns["round"], dtype=np.int64),
        metered=ok & np.array(columns["metered"], dtype=bool),
        metering_s=np.array([t.metering_s for t in data.trials], dtype=np.float64),
        dram_bytes=_read_dram_bytes(data),
    )


def _read_dram_bytes(data: TuningData) -> np.ndarray:
    """Bytes of device memory, back from the feature log2(1 + bytes)."""
    if data.features is None:
        return np.full(len(data.trials), np.nan)
    return np.exp2(data.features[:, DRAM_COLUMN].astype(np.float64)) - 1


def _list_named(data: TuningData) -> tuple[NamedTrial, ...]:
    pairs = ("best", data.best), ("fastest", data.fastest), ("naive", data.baseline)
    row_by_digest = {t.schedule.digest: i for i, t in enumerate(data.trials)}
    dram_bytes = _read_dram_bytes(data)
    return tuple(
        _make_named(role, t, data, None if row is None else dram_bytes[row])
        for role, t in pairs
        for row in [row_by_digest.get(t.schedule.digest)]
        if t.ok and t.latency_s is not None
    )


def _make_named(role: str, trial: Trial, data: TuningData, dram_bytes: float | None) -> NamedTrial:
    if dram_bytes is None and data.device.limits is not None:
        from ekc.ir.analysis.analysis import analyse_program

        dram_bytes = float(analyse_program(trial.schedule.program, data.device.limits)["dram_bytes"][0])
    return NamedTrial(
        role=role,
        digest=trial.schedule.digest,
        latency_s=trial.latency_s or math.nan,
        energy_j=math.nan if trial.energy_j is None else trial.energy_j,
        metered=trial.metered,
        dram_bytes=math.nan if dram_bytes is None else float(dram_bytes),
    )


def _list_conditions(data: TuningData) -> tuple[tuple[str, str], ...]:
    device = data.device
    simulated = "every figure; it comes from a model of the device, and nothing ran on a GPU"
    limit = f", at most {100 * data.max_slowdown:g} % slower than the fastest"
    pairs = (
        ("device", device.label),
        ("simulated", simulated if device.simulated else "nothing"),
        ("clocks", device.clock_regime),
        ("driver", device.driver),
        ("toolchain", f"NVRTC {data.toolchain}" if data.toolchain else ""),
        ("ekc", data.ekc_version),
        ("data", device.data_policy),
        ("objective", data.objective + ("" if data.objective == "latency" else limit)),
        ("seed", "" if data.seed is None else str(data.seed)),
        ("finished", data.finished),
    )
    return tuple(pair for pair in pairs if pair[1])


def _make_clock_front(data: TuningData) -> Table | None:
    if not data.clock_front:
        return None
    headers, rows = make_clock_table(data)
    return Table(headers, tuple(rows), CLOCK_NOTE)


def _make_model_card(data: TuningData, missing: dict[str, str]) -> Table | None:
    if not is_card_judged(data.model_cards):
        missing["model card"] = NO_COMPARISON
        return None
    rows = tuple(list_card_rows(data.model_cards))
    return Table(CARD_HEADERS, rows, "; ".join(describe_verdict(data.model_cards)))


def _make_roofs(data: TuningData, missing: dict[str, str]) -> Roofs | None:
    peaks = data.device.peaks
    if peaks is None:
        missing["roofline"] = "the ceilings of the device are unknown here"
        return None
    of = get_arithmetic_type(data.op)
    return Roofs(
        flops_per_s=peaks.flops_by_type[of],
        unit="OP" if of.startswith("int") else "FLOP",
        element_type=of,
        bytes_per_s=peaks.dram_bytes_per_s,
        idle_w=data.spent.idle_w or math.nan,
        cap_w=peaks.board_power_w,
        source=peaks.source,
    )


def _make_predictions(data: TuningData, how: str, missing: dict[str, str]) -> Predictions | None:
    records = data.predictions
    if len(records) < MIN_PREDICTIONS:
        missing["predicted"] = (
            f"{count_nouns(len(records), 'kernel')} metered after the energy model had first learned, and "
            f"{MIN_PREDICTIONS} are needed; a run with more trials has them"
        )
        return None
    predicted, std = (np.array([getattr(r, name) for r in records]) for name in ("predicted_j", "std"))
    intervals: list[Interval] = [r.measured_interval_j for r in records]
    return Predictions(
        how=how,
        digest=tuple(r.digest for r in records),
        predicted_j=predicted,
        low_j=predicted * np.exp(-NORMAL_95 * std),
        high_j=predicted * np.exp(NORMAL_95 * std),
        metered_j=np.array([r.measured_j for r in records]),
        metered_low_j=np.array([i.low for i in intervals]),
        metered_high_j=np.array([i.high for i in intervals]),
        constant_power_j=np.array([r.constant_j for r in records]),
        two_number_j=np.array([r.two_number_j for r in records]),
    )


LAYER_HEADERS = ("layer", "calls", "kernel", "latency", "energy", "time", "saves")


def collect_plan(plan: ClockPlan) -> PlanData:
    """Collect the figures of a plan."""
    choices = plan.savings.list_named()
    ranked = plan.list_layers_by_saving()
    return PlanData(
        choice=plan.describe_choice(),
        simulated=plan.simulated,
        clock_mhz=plan.clock_mhz,
        max_slowdown=plan.max_slowdown,
        choices=tuple(name for name, _ in choices),
        saving=np.array([x.value for _, x in choices]),
        saving_low=np.array([x.low for _, x in choices]),
        saving_high=np.array([x.high for _, x in choices]),
        front_slowdown=np.array([x.max_slowdown for x in plan.front]),
        front_clock_mhz=np.array([x.clock_mhz for x in plan.front], np.int64),
        front_saving=np.array([x.saving for x in plan.front]),
        layer_names=tuple(layer.name for layer, _ in ranked),
        layer_saving=np.array([share for _, share in ranked]),
        layers=Table(
            LAYER_HEADERS,
            tuple(_format_layer(layer, share) for layer, share in ranked),
            f"Latency and energy of a call at {plan.clock_mhz} MHz. Time: against the fastest kernel at "
            f"{plan.default_mhz} MHz. Saves: share of the model's energy.",
        ),
        advice=plan.list_advice(),
    )


def _format_layer(layer: PlannedLayer, share: float) -> tuple[str, ...]:
    figures = (_format_scaled(layer.latency_s.value, "s"), _format_scaled(layer.energy_j.value, "J"))
    more = (f"{100 * layer.slowdown:+z.1f} %", f"{100 * share:z.1f} %")
    return (layer.name, str(layer.calls), layer.role, *figures, *more)


def _format_scaled(value: float, unit: str) -> str:
    return format_quantity(value, unit).replace(" u", " \N{MICRO SIGN}")
