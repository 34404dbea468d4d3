"""From a tuning result to the data of its pictures and of its report.

A part that the result lacks is left out, and `RunData.missing` says why.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from ekc.devices.statistics import Interval
from ekc.report.run_data import NamedTrial, Predictions, Roofs, RunData, Table, TrialColumns
from ekc.search.cost_model.features import COUNT_FEATURES, FEATURE_NAMES
from ekc.search.data.result import TuningData, get_arithmetic_type
from ekc.search.data.trial import Trial
from ekc.search.run_data.code import break_down_energy, list_kernels
from ekc.search.run_data.models import map_space, measure_importance
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
from ekc.tables import count_nouns

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
    """Make the columns of all trials."""
    trials = data.trials
    known = [t.energy_interval_j if t.metered else None for t in trials]
    return TrialColumns(
        digest=tuple(t.schedule.digest for t in trials),
        structure=tuple(t.structure for t in trials),
        status=tuple(t.status for t in trials),
        round=np.array([t.round for t in trials], dtype=np.int64),
        latency_s=_make_column([t.latency_s if t.ok else None for t in trials]),
        power_w=_make_column([t.power_w if t.ok else None for t in trials]),
        energy_j=_make_column([t.energy_j if t.ok else None for t in trials]),
        energy_low_j=_make_column([x.low if x else None for x in known]),
        energy_high_j=_make_column([x.high if x else None for x in known]),
        metered=np.array([t.ok and t.metered for t in trials], dtype=bool),
        metering_s=_make_column([t.metering_s for t in trials]),
        dram_bytes=_read_dram_bytes(data),
    )


def _make_column(values: Sequence[float | None]) -> np.ndarray:
    return np.array([math.nan if v is None else v for v in values], dtype=np.float64)


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
