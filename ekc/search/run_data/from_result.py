"""From a tuning result to the data of its pictures and of its report.

A part that the result lacks is left out, and `RunData.missing` says why.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from ekc.ir.analysis.analysis import analyse_program
from ekc.report.run_data import NamedTrial, RunData, Table, TrialColumns
from ekc.search.cost_model.features import decode_features
from ekc.search.data.result import TuningData
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
from ekc.tables import count_nouns

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
    model_card = _make_model_card(data, missing)
    if data.explanation is None or data.best.digest == data.fastest.digest:
        missing["explanation"] = "the best schedule is the fastest, or no boosted model was used"
    if data.device.peaks is None:
        missing["roofline"] = "the ceilings of the device are unknown here"
    if len(data.predictions) < MIN_PREDICTIONS:
        missing["predicted"] = (
            f"{count_nouns(len(data.predictions), 'kernel')} metered after the energy model had first "
            f"learned, and {MIN_PREDICTIONS} are needed; a run with more trials has them"
        )
    headers, rows = make_main_table(data)
    return RunData(
        data=data,
        title=str(data.op).splitlines()[0],
        operator=str(data.op),
        trials=trials,
        named=_list_named(data, trials),
        figures=Table(headers, tuple(rows)),
        notes=tuple(note for note in list_notes(data) if note[1]),
        conditions=_list_conditions(data),
        clock_front=_make_clock_front(data),
        model_card=model_card,
        predicted=predicted,
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
    shown = ("latency_s", "energy_j", "energy_low_j", "energy_high_j")
    return TrialColumns(
        **{name: np.where(ok, np.array(columns[name], np.float64), math.nan) for name in shown},
        metered=ok & np.array(columns["metered"], dtype=bool),
        metering_s=np.array([t.metering_s for t in data.trials], dtype=np.float64),
        dram_bytes=_read_dram_bytes(data),
    )


def _read_dram_bytes(data: TuningData) -> np.ndarray:
    """Bytes of device memory, from the features."""
    if data.features is None:
        return np.full(len(data.trials), np.nan)
    return decode_features(data.features)["dram_bytes"]


def _list_named(data: TuningData, trials: TrialColumns) -> dict[str, NamedTrial]:
    pairs = ("best", data.best), ("fastest", data.fastest), ("naive", data.baseline)
    dram_bytes = dict(zip((t.digest for t in data.trials), trials.dram_bytes.tolist(), strict=True))
    return {
        role: NamedTrial(
            digest=t.digest,
            latency_s=t.latency_s,
            energy_j=math.nan if t.energy_j is None else t.energy_j,
            metered=t.metered,
            dram_bytes=dram_bytes[t.digest] if t.digest in dram_bytes else _analyse_dram_bytes(t, data),
        )
        for role, t in pairs
        if t.ok and t.latency_s is not None
    }


def _analyse_dram_bytes(trial: Trial, data: TuningData) -> float:
    """Bytes of device memory of a schedule that is none of the trials; NaN on an unknown device."""
    if data.device.limits is None:
        return math.nan
    return float(analyse_program(trial.schedule.program, data.device.limits)["dram_bytes"][0])


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
